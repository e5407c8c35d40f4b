"""Parts that expressions have in common, and these with columns in their place.

One that is not understood for certain has nothing in common with others: it is computed as often as it stands there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import polars as pl

from weir.specs.expression_trees import NOT_UNDERSTOOD, Tree, expression_of, tree_of

#: Functions that take no longer than to filter a column more.
_QUICK = ("IsNull", "IsNotNull", "Not")
_LOGIC = ("And", "LogicalAnd", "Or", "LogicalOr")


@dataclass(frozen=True)
class Shared:
    """Expressions in which columns stand for what they have in common.

    Attributes:
        parts: what these columns are, each under its name.
        predicate: as it was, but for them.
        others: the other expressions, in their order; a name: it is this column.
    """

    parts: tuple[pl.Expr, ...]
    predicate: pl.Expr
    others: tuple[str | pl.Expr, ...]


def shared_parts(
    predicate: pl.Expr, others: Sequence[pl.Expr], *, texts: Collection[str], taken: Collection[str]
) -> Shared | None:
    """What a predicate computes of every row and other expressions again, where that takes long; None: nothing.

    Args:
        predicate: of a filter.
        others: computed of the rows that it leaves.
        texts: columns whose values take long to convert.
        taken: names that are no names of new columns.
    """
    try:
        trees = [tree_of(each) for each in others]
        if all(tree is None for tree in trees) or (asked := tree_of(predicate)) is None:
            return None
        numbers = _Numbers()
        elsewhere = set().union(*(numbers.add(tree) for tree in trees))
        numbers.add(asked)
        found = {numbers.of(part): part for part in _common(asked, numbers, elsewhere, texts)}
        if not found:
            return None
        names = _names(found, trees, numbers, taken)
        parts = tuple(expression_of(part).alias(names[number]) for number, part in found.items())
        told = tuple(
            each if tree is None else _told(tree, each, names, numbers)
            for tree, each in zip(trees, others, strict=True)
        )
        return Shared(parts, expression_of(_over(asked, names, numbers)), told)
    except NOT_UNDERSTOOD:
        return None


def repeated_parts(expressions: Sequence[pl.Expr], name: str) -> tuple[list[pl.Expr], list[pl.Expr]]:
    """What takes long and stands in expressions several times, as columns, and the expressions over these.

    Polars finds what stands beside each other by itself, but not what is in branches of ``when``.

    Args:
        expressions: of one step.
        name: what names of the columns begin with.
    """
    plain: tuple[list[pl.Expr], list[pl.Expr]] = ([], list(expressions))
    try:
        if not any('"Ternary"' in each.meta.serialize(format="json") for each in expressions):
            return plain
        trees = [tree_of(each) for each in expressions]
        numbers = _Numbers()
        for tree in trees:
            numbers.add(tree)
        often = {number for number, times in numbers.times.items() if times > 1}
        known = [tree for tree in trees if tree is not None]
        found = {numbers.of(part): part for tree in known for part in _common(tree, numbers, often, ())}
        names = {number: f"{name}{place}" for place, number in enumerate(found)}
        parts = [expression_of(part).alias(names[number]) for number, part in found.items()]
        over = [
            each if tree is None or (made := _over(tree, names, numbers)) is tree else _named_as(each, made)
            for tree, each in zip(trees, expressions, strict=True)
        ]
        return parts, over
    except NOT_UNDERSTOOD:
        return plain


def _named_as(expression: pl.Expr, tree: Tree) -> pl.Expr:
    made = expression_of(tree)
    name = expression.meta.output_name()
    return made if made.meta.output_name() == name else made.alias(name)


class _Numbers:
    """A number of each part of some trees; equal parts have one in common."""

    def __init__(self) -> None:
        #: How often the part of a number is there.
        self.times = Counter[int]()
        self._numbers: dict[tuple[Any, ...], int] = {}
        #: By the identity of a part. The trees outlive it.
        self._of: dict[int, int] = {}

    def add(self, tree: Tree) -> set[int]:
        """Give numbers to the parts of a tree, and return them."""
        found: set[int] = set()
        if tree is not None:
            self._number(tree, found)
        return found

    def of(self, part: Tree) -> int:
        """The number of a part; below 0: it is none that may be an expression."""
        return self._of.get(id(part), -1)

    def _number(self, tree: Tree, found: set[int]) -> int:
        key: tuple[Any, ...]
        if isinstance(tree, dict):
            key = ("{", *((name, self._number(part, found)) for name, part in sorted(tree.items())))
        elif isinstance(tree, list):
            key = ("[", *(self._number(part, found) for part in tree))
        else:
            key = (repr(tree),)
        number = self._numbers.setdefault(key, len(self._numbers))
        if isinstance(tree, dict):
            self._of[id(tree)] = number
            self.times[number] += 1
            found.add(number)
        return number


def _common(
    tree: Tree, numbers: _Numbers, elsewhere: Collection[int], texts: Collection[str]
) -> Iterator[Tree]:
    """The largest parts that take long and are computed elsewhere, too."""
    if numbers.of(tree) in elsewhere and _takes_long(tree, texts):
        yield tree
        return
    for part in _always_computed(tree):
        yield from _common(part, numbers, elsewhere, texts)


def _always_computed(tree: Tree) -> list[Tree]:
    """The parts that Polars computes of every row, whatever others say: only these may fail for a row before as now."""
    [(kind, node)] = tree.items()
    if kind == "BinaryExpr":
        sides = [node["left"], node["right"]]
        # Beside a constant truth value Polars may leave the other side out.
        return [] if node["op"] in _LOGIC and any("Literal" in side for side in sides) else sides
    if kind == "Function":
        return list(node["input"])
    if kind == "Cast":
        return [node["expr"]]
    if kind == "Alias":
        return [node[0]]
    return [node["predicate"]] if kind == "Ternary" else []


def _takes_long(tree: Tree, texts: Collection[str]) -> bool:
    """Whether to compute it again takes longer than to keep it as a column."""
    [(kind, node)] = tree.items()
    if kind in ("Column", "Literal"):
        return False
    if kind == "BinaryExpr":
        return any(_takes_long(node[side], texts) for side in ("left", "right"))
    if kind == "Alias":
        return _takes_long(node[0], texts)
    if kind == "Cast":
        return _takes_long(node["expr"], texts) or any(name in texts for name in _columns(node["expr"]))
    if (
        kind == "Function"
        and isinstance(node["function"], dict)
        and node["function"].get("Boolean") in _QUICK
    ):
        return any(_takes_long(part, texts) for part in node["input"])
    return True


def _columns(tree: Tree) -> Iterator[str]:
    if isinstance(tree, dict):
        if isinstance(tree.get("Column"), str):
            yield tree["Column"]
        for part in tree.values():
            yield from _columns(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from _columns(part)


def _names(
    parts: Mapping[int, Tree], trees: Sequence[Tree | None], numbers: _Numbers, taken: Collection[str]
) -> dict[int, str]:
    """The name of each part: that which another expression gives it, so that this need not copy it, or a new one."""
    found: dict[int, str] = {}
    for tree in trees:
        part, name = tree["Alias"] if tree is not None and "Alias" in tree else (None, "")
        number = numbers.of(part)
        if number in parts and name not in taken and name not in found.values():
            found.setdefault(number, name)
    free = (name for name in map("_shared_{}".format, count(1)) if name not in taken)
    return {number: found.get(number) or next(free) for number in parts}


def _told(tree: Tree, expression: pl.Expr, names: Mapping[int, str], numbers: _Numbers) -> str | pl.Expr:
    """An expression over the columns of parts; the name of one, if it is this column under its name."""
    if "Alias" in tree and names.get(numbers.of(tree["Alias"][0])) == tree["Alias"][1]:
        return str(tree["Alias"][1])
    over = _over(tree, names, numbers)
    return expression if over is tree else expression_of(over)


def _over(tree: Tree, names: Mapping[int, str], numbers: _Numbers) -> Tree:
    """The tree with columns in place of parts; itself, if it has none of them."""
    if isinstance(tree, dict):
        name = names.get(numbers.of(tree))
        if name is not None:
            return {"Column": name}
        changed = {each: _over(part, names, numbers) for each, part in tree.items()}
        return tree if all(changed[each] is tree[each] for each in tree) else changed
    if isinstance(tree, list):
        listed = [_over(part, names, numbers) for part in tree]
        return tree if all(new is old for new, old in zip(listed, tree, strict=True)) else listed
    return tree
