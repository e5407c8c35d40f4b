"""Whether a Polars expression makes one value of each row, from that row alone: batches are cut anywhere.

Polars tells it of an expression (``meta.is_row_separable``, ``is_length_preserving``), but of none that it has not
resolved: several columns (``pl.col("x", "y")``, selectors), several fields of a struct, or an expression over the
elements of a list. So these are replaced, in the form in which Polars writes expressions, by what has the same rows.
"""

from __future__ import annotations

import io
import json
import warnings
from typing import Any, TypeAlias

import polars as pl

#: A part of Polars' own form of an expression.
_Tree: TypeAlias = Any

#: Evaluate an expression over the elements of each row's list or array; the others go over rows.
_OVER_ELEMENTS = ("List", "ListAgg", "Array", "ArrayAgg")
#: Take a series of values that is the same for all rows.
_OF_SETS = ("IsIn", "Replace", "ReplaceStrict", "ContainsAny", "ReplaceMany", "FindMany", "ExtractMany")


def named_columns(expression: pl.Expr) -> list[str]:
    """The columns that an expression names, in order, each as often as it does."""
    # In an expression over the elements of a list, Polars may call these a column without a name.
    return [name for name in expression.meta.root_names() if name]


def has_selector(expression: pl.Expr) -> bool:
    """Return whether an expression is about columns that it does not name, such as ``pl.all()`` or ``cs.float()``."""
    # Several fields of a struct are several outputs, too, but of a column that is named.
    return expression.meta.has_multiple_outputs() and "cs." in str(expression)


def crosses_rows(expression: pl.Expr) -> bool:
    """Return whether a part of the expression looks at several rows; of Python functions Polars cannot tell."""
    return _any_part(_resolved(expression), _is_over_rows)


def changes_length(expression: pl.Expr) -> bool:
    """Return whether a part of an expression that crosses no rows leaves rows out, or makes several of one."""
    return _any_part(_resolved(expression), _has_other_length)


def _any_part(expression: pl.Expr, holds: Any) -> bool:
    meta = expression.meta
    try:
        # Polars panics for several fields of a struct.
        if not meta.has_multiple_outputs() and holds(expression):
            return True
    except pl.exceptions.PolarsError:
        pass
    return any(_any_part(part, holds) for part in meta.pop())


def _is_over_rows(expression: pl.Expr) -> bool:
    return not expression.meta.is_row_separable()


def _has_other_length(expression: pl.Expr) -> bool:
    meta = expression.meta
    return not (meta.is_literal() or meta.is_length_preserving() or meta.is_scalar())


def _resolved(expression: pl.Expr) -> pl.Expr:
    """The expression with plain columns; itself, where it has a Python function or Polars writes it in another form."""
    try:
        tree = _plain(json.loads(expression.meta.serialize(format="json")))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pl.Expr.deserialize(io.StringIO(json.dumps(tree)), format="json")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, pl.exceptions.PolarsError):
        # Polars' form of expressions is its own business and may change.
        return expression


def _plain(tree: _Tree) -> _Tree:
    if isinstance(tree, list):
        return [_plain(part) for part in tree]
    if not isinstance(tree, dict):
        return tree
    if "Selector" in tree:
        return {"Column": "_"}
    if "Field" in tree:
        # A field of the struct whose fields are computed.
        return {"Column": "_"}
    if "Eval" in tree and _name(tree["Eval"]["variant"]) in _OVER_ELEMENTS:
        return _plain(tree["Eval"]["expr"])
    if "StructEval" in tree:
        node = tree["StructEval"]
        return {"Function": {"input": _plain([node["expr"], *node["evaluation"]]), "function": "AsStruct"}}
    if "Function" in tree:
        return _plain_function(tree["Function"])
    return {name: _plain(part) for name, part in tree.items()}


def _plain_function(node: dict[str, _Tree]) -> _Tree:
    function = node["function"]
    inner = next(iter(function.values())) if isinstance(function, dict) else None
    name = _name(inner if _name(function) in ("Boolean", "StringExpr", "StructExpr") else function)
    if name == "SelectFields":
        return _plain(node["input"][0])
    given = _plain(node["input"])
    if name in _OF_SETS:
        given = [given[0], *(_without_series(part) for part in given[1:])]
    return {"Function": {**node, "input": given}}


def _without_series(tree: _Tree) -> _Tree:
    is_series = isinstance(tree, dict) and "Series" in tree.get("Literal", ())
    return {"Literal": {"Dyn": {"Int": 0}}} if is_series else tree


def _name(node: _Tree) -> str:
    """How Polars calls a variant, with settings or without."""
    return str(next(iter(node))) if isinstance(node, dict) else str(node)
