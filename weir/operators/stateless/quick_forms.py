"""Expressions in a form that Polars computes sooner, with the same values.

Plans, fingerprints and checkpoints have expressions as they were written.

- ``NULLIF(f(x), '')`` is ``when(f(x) == '').then(None).otherwise(f(x))``. Polars computes ``f`` twice there if it is
  in a branch of CASE: with a regular expression that is half of a query.
- ``LENGTH(x) - LENGTH(REPLACE(x, 'c', ''))`` is how SQL counts: it need not make texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl

from weir.specs.expression_trees import NOT_UNDERSTOOD, Tree, expression_of, tree_of
from weir.specs.row_wise import has_selector
from weir.specs.shared_parts import repeated_parts

#: In place of a value that comes later, and what columns of parts are called.
_HOLE, _PART = "\1value", "\1part"


class QuickExpressions:
    """Expressions over frames, in their quick forms, what stands in them several times computed once."""

    def __init__(self, expressions: Sequence[pl.Expr]) -> None:
        quick = [quick_form(each) for each in expressions]
        self._parts: list[pl.Expr] = []
        self._expressions = quick
        # A selector would choose the parts, too.
        if not any(map(has_selector, quick)):
            self._parts, self._expressions = repeated_parts(quick, _PART)

    def select(self, frame: pl.DataFrame) -> pl.DataFrame:
        """A frame of the values alone."""
        return self._with_parts(frame).select(self._expressions)

    def with_columns(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with the values; columns of parts may stand beside them."""
        return self._with_parts(frame).with_columns(self._expressions)

    def _with_parts(self, frame: pl.DataFrame) -> pl.DataFrame:
        return frame.with_columns(self._parts) if self._parts else frame


def quick_form(expression: pl.Expr) -> pl.Expr:
    """The expression, or one with its values and its name that takes less time."""
    try:
        text = expression.meta.serialize(format="json")
        if '"Ternary"' not in text and '"LenChars"' not in text:
            return expression
        tree = tree_of(expression)
        quick = _quick(tree)
        if quick is tree:
            return expression
        return expression_of(quick).alias(expression.meta.output_name())
    except NOT_UNDERSTOOD:
        return expression


def _quick(tree: Tree) -> Tree:
    if isinstance(tree, list):
        listed = [_quick(part) for part in tree]
        return tree if all(new is old for new, old in zip(listed, tree, strict=True)) else listed
    if not isinstance(tree, dict):
        return tree
    changed = {name: _quick(part) for name, part in tree.items()}
    if all(changed[name] is tree[name] for name in tree):
        changed = tree
    found = None
    if "Ternary" in changed:
        found = _null_of_one_text(changed["Ternary"])
    elif "BinaryExpr" in changed and changed["BinaryExpr"]["op"] == "Minus":
        found = _number_of_parts(changed)
    return changed if found is None else found


def _null_of_one_text(node: Tree) -> Tree | None:
    """``when(x == 'text').then(None).otherwise(x)`` with ``x`` computed once; None: it is something else."""
    equal, value = node["predicate"].get("BinaryExpr"), node["falsy"]
    if equal is None or equal["op"] != "Eq" or equal["left"] != value or "Column" in value:
        return None
    if node["truthy"] != _form(pl.lit(None)):
        return None
    text = pl.select(expression_of(equal["right"])).item() if "Literal" in equal["right"] else None
    if not isinstance(text, str):
        return None
    return _filled(_form(pl.col(_HOLE).replace(text, None)), _without_text(value, text))


def _without_text(value: Tree, text: str) -> Tree:
    """What a regular expression finds, of ``REGEXP_EXTRACT``, with null in place of the text that says: nothing."""
    try:
        found = value["Ternary"]["truthy"]["Function"]["input"][0]
        looked_at, pattern = found["Function"]["input"]
        group = found["Function"]["function"]["StringExpr"]["Extract"]
        pattern = pl.select(expression_of(pattern)).item()
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError):
        return value
    hole = pl.col(_HOLE)
    filled = hole.str.extract(pl.lit(pattern, pl.String), group).fill_null(pl.lit(text, pl.String))
    written = _form(pl.when(hole.is_not_null()).then(filled))
    return found if pattern is not None and value == _filled(written, looked_at) else value


def _number_of_parts(tree: Tree) -> Tree | None:
    """How much shorter a text is without a part of it, without making the shorter one; None: it is something else."""
    try:
        sides = [
            tree["BinaryExpr"][side]["Cast"]["expr"]["Function"]["input"][0] for side in ("left", "right")
        ]
        part = pl.select(expression_of(sides[1]["Function"]["input"][1])).item()
    except (KeyError, TypeError, pl.exceptions.PolarsError):
        return None
    if not isinstance(part, str) or not part:
        return None
    text = pl.col(_HOLE).str
    shorter = text.replace_all(pl.lit(part, pl.String), pl.lit("", pl.String), literal=True)
    written = text.len_chars().cast(pl.Int64) - shorter.str.len_chars().cast(pl.Int64)
    if tree != _filled(_form(written), sides[0]):
        return None
    return _filled(_form(text.count_matches(part, literal=True).cast(pl.Int64) * len(part)), sides[0])


def _form(expression: pl.Expr) -> Tree:
    return json.loads(expression.meta.serialize(format="json"))


def _filled(tree: Tree, value: Tree) -> Tree:
    """A form with a value in its hole."""
    if isinstance(tree, list):
        return [_filled(part, value) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if tree == {"Column": _HOLE}:
        return value
    return {name: _filled(part, value) for name, part in tree.items()}
