"""LAG, and aggregates with OVER: values over the rows before a row, in the order of event time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl
from sqlglot import exp

from weir.dataflow.streams import Stream
from weir.specs.over import PRECEDING_ROWS_MAX, OverColumn, OverFunction, OverSpec
from weir.specs.row_order import OrderColumn
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at, name_of
from weir.sql.intervals import interval_ms
from weir.sql.relations import Relation, Scope, polars_types, solid
from weir.sql.scalars import condition, scalar
from weir.sql.types import Typed, as_type, check_key, column, common_type, computed, constant, has_whole_ms

_FUNCTIONS: dict[type[exp.Expr], OverFunction] = {
    exp.Lag: "lag",
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "mean",
    exp.Min: "min",
    exp.Max: "max",
}
#: Of a time in a unit: how many of them a millisecond has.
_PARTS_OF_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_ALL = "_all"


@dataclass(frozen=True)
class _Frame:
    """Which rows before a row count; see :class:`OverColumn`."""

    kind: Literal["rows", "range"]
    #: Rows, or ms.
    preceding: int | None


def overs_in(roots: Sequence[exp.Expr]) -> list[exp.Window]:
    """The different window functions of some expressions, without places and those of queries within them."""
    found: dict[str, exp.Window] = {}
    for root in roots:
        for node in root.walk(prune=lambda each: isinstance(each, (exp.Query, exp.Window))):
            if isinstance(node, exp.Window) and type(_function_of(node)) in _FUNCTIONS:
                found.setdefault(node.sql(), node)
    return list(found.values())


def _function_of(node: exp.Window) -> exp.Expr:
    function: exp.Expr = node.this
    while isinstance(function, (exp.Filter, exp.IgnoreNulls, exp.RespectNulls)):
        function = function.this
    return function


def with_overs(
    relation: Relation, scope: Scope, windows: Sequence[exp.Window], context: Context
) -> tuple[Relation, Scope]:
    """The rows with the values of window functions.

    Args:
        relation: the rows.
        scope: their columns.
        windows: of :func:`overs_in`.
        context: of the query.

    Returns: the rows, and the scope in which SELECT sees them.

    Raises:
        Unplaced: one cannot be computed.
    """
    known = dict(scope.known)
    before = [(each.name, each) for each in known.values() if each.name is not None]
    for together in _together(windows):
        here = Scope(relation.columns, scope.sources, known)
        relation, made, added = _over(relation, here, together, before, context)
        before += added
        known |= made
    return relation, Scope(relation.columns, scope.sources, known)


def _together(windows: Sequence[exp.Window]) -> Iterator[list[exp.Window]]:
    """Yield functions that have the rows of a key, and their order, in common."""
    found: dict[tuple[str, ...], list[exp.Window]] = {}
    for each in windows:
        order = each.args.get("order")
        parts = tuple(part.sql() for part in each.args.get("partition_by") or ())
        found.setdefault((*parts, "" if order is None else order.sql()), []).append(each)
    yield from found.values()


def _over(
    relation: Relation,
    scope: Scope,
    windows: list[exp.Window],
    before: list[tuple[str, Typed]],
    context: Context,
) -> tuple[Relation, dict[str, Typed], list[tuple[str, Typed]]]:
    """Window functions over the rows of a key in one order.

    Args:
        relation: the rows.
        scope: their columns.
        windows: which functions.
        before: columns of the stream that others made, which the query does not see.
        context: of the query.

    Returns:
        The rows, values by the text of their functions, and the columns that were added to the stream.
    """
    first = windows[0]
    if relation.is_changelog:
        raise Unplaced(
            f"{_name(first)}() OVER goes by rows that are never taken back, and these are results of groups without a "
            "window, or of joins that take rows back; group by a window before it",
            first,
        )
    time, order, nodes = _order_of(first, scope)
    by = first.args.get("partition_by") or ()
    parts = [scalar(each, scope) for each in by]
    for part, place in zip(parts, by, strict=True):
        check_key(part, "PARTITION BY", place)
    keys = [(each.name or f"_part_{number}", each) for number, each in enumerate(parts)]
    keys = keys or [(_ALL, constant(0, pl.Int64()))]
    extra = [*before, *keys, *((name.name, value) for name, value in zip(order, nodes, strict=True))]
    listed, made = list[OverColumn](), dict[str, Typed]()
    taken = {*relation.stream.schema.names, *(name for name, _ in extra)}
    taken |= {each.name for each in relation.columns}
    finer = not has_whole_ms(time)
    for window in windows:
        for each, value in _columns(window, scope, time, taken, has_more=len(order) > finer):
            listed.append(each)
            if value is not None:
                extra.append((str(each.column), value))
    rows = solid(relation, context.steps.step("columns"), list(dict(extra).items()))
    keyed = rows.stream.key_by(*dict.fromkeys(name for name, _ in keys))
    spec = OverSpec(keyed.key_columns, tuple(listed), order, order[0].name if finer else None)
    with at(first):
        stream: Stream = keyed.keyed_step(context.steps.step("over"), spec, None)
    types, outputs = polars_types(stream.schema), iter(listed)
    for window in windows:
        made[window.sql()] = _value(window, scope, outputs, types)
    added = [(each.output, column(each.output, types[each.output])) for each in listed]
    return replace(rows, stream=stream), made, added


def _order_of(node: exp.Window, scope: Scope) -> tuple[Typed, tuple[OrderColumn, ...], list[Typed]]:
    """The event time, and what rows of one time go by, with its values."""
    order = node.args.get("order")
    listed = order.expressions if order is not None else []
    first = scalar(listed[0].this, scope) if listed else None
    if first is None or first.role != "time" or listed[0].args.get("desc"):
        times = [each.name for each in scope.columns if each.value is not None and each.value.role == "time"]
        wanted = f"ORDER BY {times[0]}" if times else "ORDER BY the event time, see WATERMARK FOR"
        raise Unplaced(
            f"{_name(node)}() OVER goes by event time, so that a row is told once, when all before it have come: write "
            f"{wanted}, ascending, first",
            listed[0] if listed else node,
        )
    columns, values = list[OrderColumn](), list[Typed]()
    if not has_whole_ms(first):
        # Event times are whole milliseconds.
        columns.append(OrderColumn(first.name or "_time", ascending=True))
        values.append(first.without_role())
    for number, each in enumerate(listed[1:]):
        value = scalar(each.this, scope)
        name = value.name or f"_order_{number}"
        columns.append(OrderColumn(name, not each.args.get("desc"), bool(each.args.get("nulls_first"))))
        values.append(value)
    return first, tuple(columns), values


def _columns(
    node: exp.Window, scope: Scope, time: Typed, taken: set[str], *, has_more: bool
) -> Iterator[tuple[OverColumn, Typed | None]]:
    """What the step computes for a window function, and the value that it goes over, which gets a column."""
    inner = _function_of(node)
    function = _FUNCTIONS[type(inner)]
    value = _argument(node, inner, scope)
    name = None if value is None else value.name or _free("of_over", taken)
    if function == "lag":
        offset = _offset(inner)
        if node.args.get("spec") is not None:
            raise Unplaced("LAG takes no ROWS or RANGE", node)
        yield OverColumn(_free("over", taken), "lag", name, "rows", offset), value
        if inner.args.get("default") is not None:
            yield OverColumn(_free("over", taken), "count", None, "rows", offset), None
        return
    frame = _frame(node, has_more=has_more)
    preceding = frame.preceding
    if frame.kind == "range" and preceding is not None and isinstance(time.dtype, pl.Datetime):
        preceding *= _PARTS_OF_MS[time.dtype.time_unit]
    yield OverColumn(_free("over", taken), function, name, frame.kind, preceding), value


def _free(wanted: str, taken: set[str]) -> str:
    name = next(each for number in range(1, 10_000) if (each := f"{wanted}_{number}") not in taken)
    taken.add(name)
    return name


def _value(
    node: exp.Window, scope: Scope, outputs: Iterator[OverColumn], types: dict[str, pl.DataType]
) -> Typed:
    """The value of a window function over the columns of the step."""
    inner = _function_of(node)
    output = next(outputs).output
    value = column(output, types[output])
    default = inner.args.get("default") if isinstance(inner, exp.Lag) else None
    if default is None:
        return value
    other = scalar(default, scope)
    if other.literal is None:
        raise Unplaced("the third value of LAG is a constant", default)
    dtype = common_type((value, other), node)
    rows = next(outputs)
    is_there = pl.col(rows.output) > rows.preceding
    return computed(
        pl.when(is_there).then(as_type(value, dtype).expr).otherwise(as_type(other, dtype).expr), dtype
    )


def _argument(node: exp.Window, inner: exp.Expr, scope: Scope) -> Typed | None:
    """What a function goes over; None: rows."""
    wrapped = node.this
    if isinstance(wrapped, exp.IgnoreNulls):
        raise Unplaced(f"{_name(node)}() IGNORE NULLS is not there; leave the rows out in a view", node)
    argument = inner.this
    if isinstance(argument, exp.Distinct):
        raise Unplaced(
            f"{_name(node)}(DISTINCT ...) OVER is not there; use COUNT(DISTINCT ...) of a window", node
        )
    if isinstance(inner, (exp.Min, exp.Max, exp.Count)) and inner.args.get("expressions"):
        raise Unplaced(f"{_name(node)} takes one value", node)
    value = None
    if not isinstance(argument, exp.Star) and argument is not None:
        value = scalar(argument, scope)
        if value.is_null:
            raise Unplaced("NULL has no type here; CAST it", argument)
    elif not isinstance(inner, exp.Count):
        raise Unplaced(f"{_name(node)} takes a value", node)
    if isinstance(wrapped, exp.Filter):
        if isinstance(inner, exp.Lag):
            raise Unplaced("LAG takes no FILTER", node)
        counts = condition(wrapped.expression.this, scope, "FILTER")
        of = constant(1, pl.Int64()) if value is None else value
        return computed(pl.when(counts.expr).then(of.expr), of.dtype)
    if value is not None and value.literal is not None:
        return computed(value.expr, value.dtype)
    return value


def _offset(node: exp.Expr) -> int:
    offset = node.args.get("offset")
    if offset is None:
        return 1
    text = str(offset.this) if isinstance(offset, exp.Literal) and not offset.is_string else ""
    if not text.isdigit() or not 0 <= int(text) <= PRECEDING_ROWS_MAX:
        raise Unplaced(f"LAG reaches back a constant number of rows, at most {PRECEDING_ROWS_MAX:,}", offset)
    return int(text)


def _frame(node: exp.Window, *, has_more: bool) -> _Frame:
    """The rows that count: up to the present one, from all, so many rows or so much time before it on."""
    spec = node.args.get("spec")
    if spec is None:
        return _Frame("range", None)
    kind = str(spec.args.get("kind") or "").upper()
    if kind not in ("ROWS", "RANGE"):
        raise Unplaced(f"{kind} is not there; write ROWS or RANGE", node)
    if spec.args.get("exclude"):
        raise Unplaced("EXCLUDE is not there", node)
    start, end = spec.args.get("start"), spec.args.get("end")
    if end not in (None, "CURRENT ROW") or str(spec.args.get("start_side") or "").upper() == "FOLLOWING":
        raise Unplaced(
            "rows that follow are not known when a row is told; a frame ends with CURRENT ROW, such as ROWS BETWEEN 2 "
            "PRECEDING AND CURRENT ROW",
            node,
        )
    if start == "UNBOUNDED":
        return _Frame("rows" if kind == "ROWS" else "range", None)
    if start == "CURRENT ROW":
        return _Frame("rows" if kind == "ROWS" else "range", 0)
    if kind == "ROWS":
        text = str(start.this) if isinstance(start, exp.Literal) and not start.is_string else ""
        if not text.isdigit() or int(text) > PRECEDING_ROWS_MAX:
            raise Unplaced(f"ROWS takes a constant number, at most {PRECEDING_ROWS_MAX:,}", node)
        return _Frame("rows", int(text))
    if has_more:
        raise Unplaced("RANGE with an interval goes by one column of ORDER BY; write ROWS", node)
    length_ms = interval_ms(start if isinstance(start, exp.Expr) else None, node, "what RANGE reaches back")
    if length_ms < 0:
        raise Unplaced("what RANGE reaches back is at least 0", node)
    return _Frame("range", length_ms)


def _name(node: exp.Window) -> str:
    return name_of(_function_of(node))
