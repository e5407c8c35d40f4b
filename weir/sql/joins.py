"""Joins of two relations: regular, interval, window and as-of; semi and anti for EXISTS and IN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl
from sqlglot import exp

from weir.dataflow.streams import KeyedStream
from weir.sql.conditions import Match
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.relations import Column, Relation, Scope, polars_types, solid, without_places
from weir.sql.scalars import condition
from weir.sql.types import Typed, as_type, column

How = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True)
class Side:
    """Side of a join, all of whose columns are those of its stream.

    Attributes:
        relation: it.
        keys: columns of the stream.
        values: by the number of a column of the relation: the stream's column; None: it has no value.
    """

    relation: Relation
    keys: tuple[str, ...]

    @property
    def stream(self) -> KeyedStream:
        """Return the rows by their keys."""
        return self.relation.stream.key_by(*self.keys)


def joined(
    left: Relation,
    right: Relation,
    match: Match,
    how: How,
    context: Context,
    node: exp.Expr,
    *,
    as_of: bool = False,
) -> Relation:
    """Rows of both sides that belong together.

    Args:
        left: the first side.
        right: the second one.
        match: what belongs together; ``left_only`` and ``right_only`` are applied already.
        how: as of ``stream.join``.
        context: of the query.
        node: place of messages.
        as_of: with the version of the right side at the time of the left row.

    Raises:
        Unplaced: the two cannot be joined so.
    """
    arguments = {} if as_of else _times(left, right, match, node)
    pairs = [_of_one_width(*pair) for pair in match.pairs]
    if not pairs:
        raise Unplaced(
            "a join needs an equality of both sides, such as ON a.id = b.id; for all pairs give both sides a column 1",
            node,
        )
    if match.rest and how != "inner":
        raise Unplaced(
            f"a {how} join takes equalities, bounds of event times and conditions on one side; this is another one",
            match.rest[0],
        )
    one = side_of(left, [each for each, _ in pairs], keeps_keys=how in ("right", "full"), context=context)
    keeps_keys = how in ("left", "full") or as_of
    two = side_of(right, [each for _, each in pairs], keeps_keys=keeps_keys, context=context)
    if match.between is not None:
        arguments["between"] = _between(match.between, (left, right), (one, two), node)
    suffix = _suffix(one.relation, two.relation)
    with at(node):
        step = context.steps.step("as_of" if as_of else "join")
        if as_of:
            kind: Any = "left" if how == "left" else "inner"
            stream = one.stream.join_as_of(step, two.stream, how=kind, suffix=suffix)
        else:
            stream = one.stream.join(step, two.stream, how=how, suffix=suffix, **arguments)
    spec: Any = stream.node.spec
    names = dict(spec.right_columns) | ({} if how == "full" else dict(zip(two.keys, one.keys, strict=True)))
    types = polars_types(stream.schema)
    keeps_time = as_of or how in ("semi", "anti")
    columns = [_moved(each, {}, types, keeps_time=keeps_time) for each in one.relation.columns]
    if how not in ("semi", "anti"):
        columns += [_moved(each, names, types, keeps_time=False) for each in two.relation.columns]
    windowed = one.relation.windowed if match.windows or keeps_time else None
    for side in (
        None if keeps_time else left.windowed,
        None if how in ("semi", "anti") else right.windowed,
    ):
        if side is not None and not match.windows:
            side.check_left()
    made = Relation(stream, without_places(columns), windowed)
    scope = Scope(made.columns, list(dict.fromkeys(each.source for each in made.columns)))
    for rest in match.rest:
        made = made.filtered(context.steps.step("filter"), condition(rest, scope, "ON"))
    return made


def merged(made: Relation, node: exp.Join, how: How, right: Sequence[str]) -> Relation:
    """The columns of a join in which those of USING are one each, and those of both sides have their tables' names.

    Args:
        made: what the join brings.
        node: the join.
        how: as of ``stream.join``.
        right: aliases of the second side.
    """
    columns = list(made.columns)
    for name in (each.name.lower() for each in node.args.get("using") or ()):
        places = [n for n, each in enumerate(columns) if each.name.lower() == name and not each.is_merged]
        if how in ("semi", "anti") or len(places) != 2:
            continue
        one, other = places if columns[places[1]].source in right else places[::-1]
        left, second = columns[one].value, columns[other].value
        for place in {"right": [one], "full": [one, other]}.get(how, [other]):
            columns[place] = replace(columns[place], is_merged=True)
        if how == "full" and left is not None and second is not None:
            first = pl.coalesce(left.expr, second.expr)
            columns.insert(one, Column(columns[one].name, Typed(first, left.dtype)))
    return replace(made, columns=tuple(columns))


def _of_one_width(one: Typed, other: Typed) -> tuple[Typed, Typed]:
    """Whole numbers of two widths as BIGINT: keys of a join are of one type."""
    if one.dtype == other.dtype or not (one.dtype.is_integer() and other.dtype.is_integer()):
        return one, other
    return as_type(one, pl.Int64()), as_type(other, pl.Int64())


def _times(left: Relation, right: Relation, match: Match, node: exp.Expr) -> dict[str, Any]:
    """The bounds of the join, as ``stream.join`` takes them."""
    if match.windows:
        one, two = left.windowed, right.windowed
        if (
            one is None
            or two is None
            or (one.window, one.calendar, one.is_result) != (two.window, two.calendar, two.is_result)
        ):
            raise Unplaced(
                "both sides of a join of windows have equal windows, results of them or rows", node
            )
        one.check_named(match.windows, node)
        if one.window.kind == "tumbling":
            return {"window": one.window}
        if one.is_result and one.window.kind != "session":
            # Results of a window have its last ms as their time.
            return {"within": (0, 0)}
        raise Unplaced(
            f"rows of {one.window.kind} windows cannot be joined here; GROUP BY on both sides first", node
        )
    lower, upper = match.lower_ms, match.upper_ms
    if lower is None and upper is None:
        return {}
    if lower is None or upper is None:
        raise Unplaced(
            "the times of both sides are bounded on one side only; give both bounds, such as b.at BETWEEN a.at AND "
            "a.at + INTERVAL '1' HOUR",
            node,
        )
    if lower > upper:
        raise Unplaced("no two times are within these bounds", node)
    return {"within": (lower, upper)}


def side_of(relation: Relation, keys: Sequence[Typed], *, keeps_keys: bool, context: Context) -> Side:
    """The side with its keys as columns of the stream.

    ``keeps_keys``: rows of the other side leave alone, where the key has the other side's value; the side's own one,
    which is null then, is a copy.
    """
    extra: list[tuple[str, Typed]] = []
    names: list[str] = []
    present = set(relation.stream.schema.names)
    for number, key in enumerate(keys):
        name = key.name
        if name is None or name in names or keeps_keys:
            name = f"_key_{number + 1}"
            while name in present:
                name = f"{name}_"
            extra.append((name, key))
        names.append(name)
    made = solid(relation, context.steps.step("columns"), extra)
    return Side(made, tuple(names))


def _between(
    between: tuple[int, Typed, Typed],
    before: tuple[Relation, Relation],
    after: tuple[Side, Side],
    node: exp.Expr,
) -> tuple[str, str]:
    """The stream's columns of the interval."""
    side, _, upper = between
    lower = next(
        each for each in after[side].relation.columns if each.value is not None and each.value.role == "time"
    )
    place = next(number for number, each in enumerate(before[side].columns) if each.value is upper)
    found = after[side].relation.columns[place].value
    if lower.value is None or lower.value.name is None or found is None or found.name is None:
        raise Unplaced("the interval of a join is of columns", node)
    return lower.value.name, found.name


def _suffix(left: Relation, right: Relation) -> str:
    """What right columns get whose names are taken, so that no two are equal."""
    names = set(left.stream.schema.names)
    suffix, number = "_right", 1
    while any(f"{each}{suffix}" in names for each in right.stream.schema.names):
        number += 1
        suffix = f"_right{number}"
    return suffix


def _moved(each: Column, names: dict[str, str], types: dict[str, pl.DataType], *, keeps_time: bool) -> Column:
    """A column of a side as one of the result."""
    value = each.value
    if value is None:
        return each
    if value.name is None:
        # A bound of a window in the type of its time column.
        return each
    name = names.get(value.name, value.name)
    role = value.role if keeps_time or value.role != "time" else ""
    return replace(each, value=column(name, types[name], role))
