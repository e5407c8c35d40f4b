"""Conditions of joins: which are equalities of both sides, which bound times, and which are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl
from sqlglot import exp

from weir.specs.windows import WINDOW_BOUNDS
from weir.sql.errors import Unplaced
from weir.sql.intervals import interval_ms
from weir.sql.relations import Scope
from weir.sql.scalars import comparable, scalar
from weir.sql.types import Typed, has_whole_ms

_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.GTE: exp.LTE,
    exp.GT: exp.LT,
    exp.LTE: exp.GTE,
    exp.LT: exp.GT,
    exp.EQ: exp.EQ,
}


@dataclass
class Match:
    """What of both sides belongs together.

    Attributes:
        pairs: equal values, of the left and of the right side.
        windows: bounds of windows that are equal on both sides.
        lower_ms: least time of the right row minus that of the left one; None: any.
        upper_ms: the most.
        between: columns of one side between which the time of the other is: the side that has them (0 or 1), both.
        left_only: conditions on the left side alone, and so on.
        right_only: on the right side.
        rest: other conditions.
        goes_by_ms: times that may have finer digits count as whole ms, which is to be checked.
    """

    pairs: list[tuple[Typed, Typed]] = field(default_factory=list)
    windows: set[str] = field(default_factory=set)
    lower_ms: int | None = None
    upper_ms: int | None = None
    between: tuple[int, Typed, Typed] | None = None
    left_only: list[exp.Expr] = field(default_factory=list)
    right_only: list[exp.Expr] = field(default_factory=list)
    rest: list[exp.Expr] = field(default_factory=list)
    goes_by_ms: bool = False


def conjuncts(node: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND joins; BETWEEN is two."""
    if node is None:
        return []
    if isinstance(node, exp.Paren):
        inner = conjuncts(node.this)
        return inner if len(inner) > 1 or isinstance(inner[0], (exp.Exists, exp.In)) else [node]
    if isinstance(node, exp.And):
        return [*conjuncts(node.this), *conjuncts(node.expression)]
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        return [
            exp.GTE(this=node.this.copy(), expression=node.args["low"].copy()),
            exp.LTE(this=node.this.copy(), expression=node.args["high"].copy()),
        ]
    return [node]


def sides(node: exp.Expr, left: Scope, right: Scope) -> set[int]:
    """Return the sides on which the columns of an expression are: 0 the left one, 1 the right one.

    Raises:
        Unplaced: a column is on none, or may be on both.
    """
    found = set()
    for each in node.find_all(exp.Column):
        on_left, on_right = left.has(each), right.has(each)
        if on_left and on_right:
            raise Unplaced(
                f"column {each.name!r} is on both sides; say which, as in {_first(left)}.{each.name}", each
            )
        if not on_left and not on_right:
            Scope([*left.columns, *right.columns], [*left.sources, *right.sources]).find(each)
        found.add(0 if on_left else 1)
    return found


def match_of(nodes: Iterable[exp.Expr], left: Scope, right: Scope, *, keeps_rest: bool = True) -> Match:
    """Sort the conditions of a join.

    Args:
        nodes: the conditions.
        left: columns of the first side.
        right: of the second one.
        keeps_rest: the join takes other conditions, too. False: bounds of times count in whole ms, without them.

    Raises:
        Unplaced: a column is not there.
    """
    match = Match()
    bounds: list[tuple[exp.Expr, type[exp.Expr], exp.Column, exp.Column, int]] = []
    for node in nodes:
        where = sides(node, left, right)
        if where == {0}:
            match.left_only.append(node)
        elif where == {1}:
            match.right_only.append(node)
        elif isinstance(node, exp.EQ) and _is_pair(node, left, right):
            one, other = _pair(node, left, right)
            if one.role in WINDOW_BOUNDS and one.role == other.role:
                match.windows.add(one.role)
            else:
                match.pairs.append((one, other))
        elif (found := _time_bound(node, left, right)) is not None:
            bounds.append((node, *found))
        else:
            match.rest.append(node)
    _take_bounds(match, bounds, left, right, keeps_rest=keeps_rest)
    return match


def _first(scope: Scope) -> str:
    return scope.sources[0] if scope.sources else "x"


def _is_pair(node: exp.EQ, left: Scope, right: Scope) -> bool:
    found = (sides(node.this, left, right), sides(node.expression, left, right))
    return found in (({0}, {1}), ({1}, {0}))


def _pair(node: exp.EQ, left: Scope, right: Scope) -> tuple[Typed, Typed]:
    one, other = node.this, node.expression
    if sides(one, left, right) == {1}:
        one, other = other, one
    return comparable(scalar(one, left), scalar(other, right), node)


_Bound = tuple[type[exp.Expr], exp.Column, exp.Column, int]


def _time_bound(node: exp.Expr, left: Scope, right: Scope) -> _Bound | None:
    """``right column OP left column + ms``, if a condition is such; columns of times or integers."""
    if type(node) not in _FLIPPED or isinstance(node, exp.EQ):
        return None
    one, other = _shifted(node.this), _shifted(node.expression)
    if one is None or other is None:
        return None
    for part in (node.this, node.expression):
        if part.find(exp.Interval) is None:
            # A number is added to numbers only.
            scalar(part, left if sides(part, left, right) == {0} else right)
    kind = type(node)
    added = other[1] - one[1]
    if sides(one[0], left, right) == {0}:
        # l OP r + added is r FLIPPED l - added.
        return _FLIPPED[kind], other[0], one[0], -added
    return kind, one[0], other[0], added


def _shifted(node: exp.Expr) -> tuple[exp.Column, int] | None:
    if isinstance(node, exp.Paren):
        return _shifted(node.this)
    if isinstance(node, exp.Column):
        return node, 0
    if isinstance(node, (exp.Add, exp.Sub)) and isinstance(node.this, exp.Column):
        sign = -1 if isinstance(node, exp.Sub) else 1
        if isinstance(node.expression, exp.Interval):
            return node.this, sign * interval_ms(node.expression, node, "the bound of a join")
        if isinstance(node.expression, exp.Literal) and str(node.expression.this).isdigit():
            return node.this, sign * int(node.expression.this)
    return None


def _take_bounds(
    match: Match,
    bounds: list[tuple[exp.Expr, type[exp.Expr], exp.Column, exp.Column, int]],
    left: Scope,
    right: Scope,
    *,
    keeps_rest: bool,
) -> None:
    """Bounds of both times; what is about other columns is left."""
    ends: dict[str, tuple[exp.Expr, Typed, Typed]] = {}
    for node, kind, of_right, of_left, added in bounds:
        one, other = right.value(of_right), left.value(of_left)
        is_lower = kind in (exp.GTE, exp.GT)
        if one.role == other.role == "time":
            is_finer = not (has_whole_ms(one) and has_whole_ms(other))
            match.goes_by_ms |= is_finer and not keeps_rest
            if is_finer and keeps_rest:
                # In whole ms it leaves what the condition itself still has to look at.
                match.rest.append(node)
            elif kind in (exp.GT, exp.LT):
                added += 1 if is_lower else -1
            if is_lower:
                match.lower_ms = added if match.lower_ms is None else max(match.lower_ms, added)
            else:
                match.upper_ms = added if match.upper_ms is None else min(match.upper_ms, added)
        elif not added and kind in (exp.GTE, exp.LTE) and "time" in (one.role, other.role):
            ends["lower" if (one.role == "time") == is_lower else "upper"] = (node, one, other)
        else:
            match.rest.append(node)
    _take_between(match, ends)
    if match.between is not None:
        finer = [n for n, one, other in ends.values() if not (has_whole_ms(one) and has_whole_ms(other))]
        match.goes_by_ms |= bool(finer) and not keeps_rest
        match.rest += finer if keeps_rest else []


def _take_between(match: Match, ends: dict[str, tuple[exp.Expr, Typed, Typed]]) -> None:
    """``b.at BETWEEN a.at AND a.expires``: one end is a column of the row whose time is the other end."""
    upper = ends.get("upper")
    if upper is not None and "lower" not in ends:
        _, one, other = upper
        if one.role == "time" and match.lower_ms == 0 and match.upper_ms is None:
            match.between, match.lower_ms = (0, Typed(pl.lit(0), pl.Int64(), role="time"), other), None
            return
        if other.role == "time" and match.upper_ms == 0 and match.lower_ms is None:
            match.between, match.upper_ms = (1, Typed(pl.lit(0), pl.Int64(), role="time"), one), None
            return
    match.rest += [node for node, _, _ in ends.values()]
