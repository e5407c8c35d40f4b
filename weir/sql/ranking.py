"""ROW_NUMBER and RANK with a bound: the first rows of each group, with a window and without."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
from sqlglot import exp

from weir.author.aggregator import WindowBounds
from weir.dataflow.streams import Stream, WindowResults
from weir.operators.windows.rows.exact_places import exact_places
from weir.rows.records import UNNAMED_COLUMN
from weir.specs.row_order import FirstRows, OrderColumn
from weir.specs.windows import WINDOW_BOUNDS
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at, name_of
from weir.sql.relations import Column, Rank, Relation, Scope, solid, without_places
from weir.sql.scalars import scalar
from weir.sql.syntax import meant
from weir.sql.types import Typed, check_key, column, constant, has_whole_ms

_ALL = "_all"
#: Of ordered rows: the place, from 0 on.
_PLACE = "\1place"
_KEY_BOUNDS = ("of_window_start", "of_window_end")


def rank_of(node: exp.Window, scope: Scope) -> Rank:
    """What a window function asks for.

    Raises:
        Unplaced: it is another one than ROW_NUMBER and RANK, or has no order.
    """
    function = node.this
    name = name_of(function)
    if not isinstance(function, exp.RowNumber) and name != "RANK":
        near = meant(name, ("ROW_NUMBER", "RANK", "LAG", "COUNT", "SUM", "AVG", "MIN", "MAX")) or (
            "; there are ROW_NUMBER and RANK with a bound (WHERE place <= 3), LAG, and COUNT, SUM, AVG, MIN and MAX "
            "over rows before"
        )
        raise Unplaced(f"{name}() OVER is not there{near}", node)
    order = node.args.get("order")
    if order is None:
        raise Unplaced(f"{name}() OVER needs ORDER BY: which row is the first?", node)
    by = node.args.get("partition_by") or ()
    partition = tuple(scalar(each, scope) for each in by)
    for value, each in zip(partition, by, strict=True):
        check_key(value, "PARTITION BY", each)
    return Rank(
        "ROW_NUMBER" if isinstance(function, exp.RowNumber) else "RANK",
        partition,
        tuple(
            (scalar(each.this, scope), bool(each.args.get("desc")), bool(each.args.get("nulls_first")))
            for each in order.expressions
        ),
        node,
    )


def rank_bound(node: exp.Expr, scope: Scope) -> tuple[Column, int] | None:
    """The place and its bound, if a condition is one: ``r <= 3``, ``r < 4``, ``r = 1``, ``3 >= r``."""
    if isinstance(node, exp.Paren):
        return rank_bound(node.this, scope)
    flipped: dict[type[exp.Expr], type[exp.Expr]] = {
        exp.GTE: exp.LTE,
        exp.GT: exp.LT,
        exp.EQ: exp.EQ,
        exp.LTE: exp.GTE,
        exp.LT: exp.GT,
    }
    kind: type[exp.Expr] = type(node)
    one, other = node.args.get("this"), node.args.get("expression")
    if kind not in flipped:
        return None
    if isinstance(one, exp.Literal):
        kind, one, other = flipped[kind], other, one
    if not (isinstance(one, exp.Column) and isinstance(other, exp.Literal) and str(other.this).isdigit()):
        return None
    if not scope.has(one):
        return None
    found, bound = scope.find(one), int(other.this)
    if found.rank is None:
        return None
    if found.rank.is_late:
        raise Unplaced(
            f"the bound of {found.name!r} comes after other conditions or joins, which leave other places; put it "
            f"right after {found.rank.function}(), in a query of its own",
            node,
        )
    if kind is exp.LT:
        bound -= 1
    if kind not in (exp.LT, exp.LTE) and not (kind is exp.EQ and bound == 1):
        raise Unplaced(f"{found.name!r} takes an upper bound, such as {found.name} <= 10", node)
    if not 1 <= bound <= 10_000:
        raise Unplaced(f"the bound of {found.name!r} is from 1 to 10,000", node)
    return found, bound


def ranked(relation: Relation, place: Column, bound: int, context: Context, *, is_read: bool) -> Relation:
    """The first rows of each group.

    Args:
        relation: with the column ``place``.
        place: the rank.
        bound: how many rows.
        context: of the query.
        is_read: whether the place itself is asked for.

    Raises:
        Unplaced: this order cannot be kept.
    """
    rank = place.rank
    assert rank is not None
    others = replace(relation, columns=without_places(each for each in relation.columns if each is not place))
    windowed = relation.windowed
    in_windows = any(each.role in WINDOW_BOUNDS for each in rank.partition)
    if (
        in_windows
        and windowed is not None
        and windowed.bounds is not None
        and windowed.window.time == "event"
    ):
        made = _in_windows(others, rank, bound, place.name, context, is_read=is_read)
    else:
        if windowed is not None:
            windowed.check_left()
        made = _running(others, rank, bound, place.name, context, is_read=is_read)
    if bound > 1 and not is_read:
        return made
    value = constant(1, pl.Int64()) if bound == 1 else column(place.name, pl.Int64())
    columns = list(made.columns)
    number = next(number for number, each in enumerate(relation.columns) if each is place)
    columns.insert(number, replace(place, value=value, rank=None))
    return replace(made, columns=tuple(columns))


def _in_windows(
    relation: Relation, rank: Rank, bound: int, name: str, context: Context, *, is_read: bool
) -> Relation:
    """Choose from each window when it is complete: the result is final."""
    assert relation.windowed is not None
    relation.windowed.check_named({each.role for each in rank.partition}, rank.node)
    partition = [each for each in rank.partition if each.role not in WINDOW_BOUNDS]
    order = _columns_of_order(rank)
    extra = [(to, each) for to, each, _, _ in order]
    extra += [(each.name or f"_part_{number}", each) for number, each in enumerate(partition)]
    made = solid(relation, context.steps.step("columns"), extra)
    parts = tuple(each.name or f"_part_{number}" for number, each in enumerate(partition))
    stream: Stream = made.stream
    has_ties = rank.function == "RANK"
    with at(rank.node):
        if relation.windowed.is_result:
            results = WindowResults(stream.flow, stream.node)
            told: Stream = results.window_top(
                context.steps.step("top"),
                by=[to for to, *_ in order],
                rows=bound,
                ties=has_ties,
                key=parts,
                ascending=[not descends for *_, descends, _ in order],
                nulls_first=[each for *_, each in order],
                rank=name if is_read and bound > 1 else None,
            )
            return replace(made, stream=told)
        # Rows of windows that come late are left out by the window.
        ordering = Ordering(tuple((to, down, nulls) for to, _, down, nulls in order), bound, name, has_ties)
        step = context.steps.step("places")
        bounds = [pl.col(each).alias(to) for each, to in zip(WINDOW_BOUNDS, _KEY_BOUNDS, strict=True)]
        kept = [each for each in stream.schema.names if each not in WINDOW_BOUNDS]
        keyed = stream.select(f"{step}.input", *kept, *bounds).key_by(*_KEY_BOUNDS, *parts)
        rest = [each for each in kept if each not in parts]
        schema = pa.schema(
            [*(stream.schema.field(each) for each in rest), pa.field(name, pa.int64(), nullable=False)]
        )
        placed = keyed.window(relation.windowed.window).process(step, ordering, schema)
        back = [pl.col(each).alias(to) for each, to in zip(_KEY_BOUNDS, WINDOW_BOUNDS, strict=True)]
        told = placed.select(f"{step}.bounds", *parts, *rest, name, *back)
    return replace(made, stream=told)


@dataclass(frozen=True)
class Ordering:
    """Called with all rows of a window and group when it is complete: sorts them, and gives places.

    Attributes:
        order: columns, whether they descend, whether null comes first.
        bound: how many places.
        name: column of the place.
        has_ties: equal rows have one place.
    """

    order: tuple[tuple[str, bool, bool], ...]
    bound: int
    name: str
    has_ties: bool

    @property
    def first_rows(self) -> FirstRows:
        """What it needs of all rows; the planner leaves others out before they are sent."""
        columns = (OrderColumn(name, not descends, nulls) for name, descends, nulls in self.order)
        return FirstRows(tuple(columns), self.bound)

    def __call__(self, key: dict[str, object], window: WindowBounds, rows: pl.DataFrame) -> pl.DataFrame:
        """The first rows in their order."""
        order = self.first_rows.order
        # A call for each window, which has few rows mostly: Polars' expressions take longer than all else by far.
        values = pa.RecordBatch.from_pydict(
            {each.name: rows.get_column(each.name).to_arrow() for each in order}
        )
        one = np.zeros(len(rows), dtype=np.int64)
        placed = exact_places(values, one, order, self.bound, ties=self.has_ties)
        numbers, places = self._sorted(rows) if placed is None else placed
        found = rows[[each for each in rows.columns if each not in key]][numbers]
        return found.hstack([pl.Series(self.name, places + 1)])

    def _sorted(self, rows: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the first rows in their order, and their places from 0 on; int64."""
        names = [each for each, _, _ in self.order]
        ordered = self._near(rows.select(names).with_row_index(UNNAMED_COLUMN)).sort(
            names,
            descending=[each for _, each, _ in self.order],
            nulls_last=[not each for _, _, each in self.order],
            maintain_order=True,
        )
        placed = ordered.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_PLACE))
        if self.has_ties:
            placed = placed.with_columns(pl.col(_PLACE).min().over(names))
        placed = placed.filter(pl.col(_PLACE) < self.bound)
        return placed[UNNAMED_COLUMN].cast(pl.Int64).to_numpy(), placed[_PLACE].to_numpy()

    def _near(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows that may be among the first, which are soon found where the first column has an exact order.

        Before all others there are as many as are wanted that are better in that column alone.
        """
        name, descends, nulls_first = self.order[0]
        values = rows.get_column(name)
        if nulls_first or not (values.dtype.is_integer() or values.dtype.is_temporal()):
            return rows
        numbers = values.to_physical()
        there = numbers.drop_nulls()
        if len(there) <= self.bound:
            return rows
        if descends:
            return rows.filter(numbers >= there.top_k(self.bound).min())
        return rows.filter(numbers <= there.bottom_k(self.bound).max())


def _running(
    relation: Relation, rank: Rank, bound: int, name: str, context: Context, *, is_read: bool
) -> Relation:
    """Choose from all rows so far: the result is a changelog."""
    if rank.function == "RANK":
        raise Unplaced(
            "RANK() is of windows only (PARTITION BY window_start, window_end); use ROW_NUMBER()", rank.node
        )
    order = _columns_of_order(rank)
    extra = [(to, each) for to, each, _, _ in order]
    extra += [(each.name or f"_part_{number}", each) for number, each in enumerate(rank.partition)]
    if not rank.partition:
        extra.append((_ALL, constant(0, pl.Int64())))
    made = solid(relation, context.steps.step("columns"), extra)
    keys = [each.name or f"_part_{number}" for number, each in enumerate(rank.partition)] or [_ALL]
    step = context.steps.step("top")
    with at(rank.node):
        keyed = made.stream.key_by(*dict.fromkeys(keys))
        to, value, descends, nulls_first = order[0]
        place = name if is_read and bound > 1 else None
        if len(order) > 1 or nulls_first or not _is_exact(value):
            stream: Stream = keyed.top(
                step,
                by=[each for each, *_ in order],
                rows=bound,
                ascending=[not each for *_, each, _ in order],
                nulls_first=[each for *_, each in order],
                rank=place,
            )
        elif (
            bound == 1
            and descends
            and value.role == "time"
            and has_whole_ms(value)
            and not relation.is_changelog
        ):
            stream = keyed.deduplicate(step, keep="last")
        else:
            stream = keyed.top(step, by=to, rows=bound, ascending=not descends, rank=place)
    columns = tuple(_plain(each) for each in made.columns)
    return Relation(stream, columns)


def _columns_of_order(rank: Rank) -> list[tuple[str, Typed, bool, bool]]:
    """Columns by which rows go, with their values, whether they descend, and whether NULL comes first; each once."""
    found: dict[str, tuple[str, Typed, bool, bool]] = {}
    for number, (value, descends, nulls_first) in enumerate(rank.order):
        name = value.name or f"_order_{number}"
        # What is equal in a column is equal in it again.
        found.setdefault(name, (name, value, descends, nulls_first))
    return list(found.values())


def _is_exact(value: Typed) -> bool:
    """Whether values are in the order of integers, in which NULL alone comes last; NaN is above all numbers."""
    return value.dtype.is_integer() or value.dtype.is_temporal() or isinstance(value.dtype, pl.Boolean)


def _plain(each: Column) -> Column:
    """A row of a changelog has the time of what changed it: none of its columns is that."""
    value: Typed | None = None if each.value is None else each.value.without_role()
    return replace(each, value=value)
