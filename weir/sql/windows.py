"""TUMBLE, HOP, CUMULATE and SESSION in FROM."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
from sqlglot import exp

from weir.dataflow.windows import cumulative, session, sliding, tumbling
from weir.rows.records import EVENT_TIME_COLUMN
from weir.specs.window_kinds import Window, WindowTime
from weir.sql.calendars import CALENDAR_BOUNDS, in_calendar
from weir.sql.context import Context
from weir.sql.errors import Unplaced, at
from weir.sql.intervals import interval_ms
from weir.sql.relations import Column, Relation, Scope, Windowed
from weir.sql.types import Role, Typed, column, computed, type_words

_FORMS = {
    "TUMBLE": ("table", "time column", "size"),
    "HOP": ("table", "time column", "slide", "size"),
    "CUMULATE": ("table", "time column", "step", "size"),
    "SESSION": ("table", "time column", "gap"),
}


def windowed_relation(node: exp.Anonymous, relation: Relation, context: Context) -> Relation:
    """The rows of a table with ``window_start`` and ``window_end``.

    Args:
        node: the call, such as ``HOP(bids, at, INTERVAL '2' SECOND, INTERVAL '10' SECOND)``.
        relation: its first argument.
        context: of the query.

    Raises:
        Unplaced: arguments are wrong, or the column is not the event time of the rows.
    """
    name = str(node.this).upper()
    form = _FORMS[name]
    if name == "TUMBLE" and len(node.expressions) == len(form) + 1:
        return _by_calendar(node, relation, context)
    if len(node.expressions) != len(form):
        raise Unplaced(f"{name} takes {', '.join(form)}", node)
    kind, dtype = _time_of(node.expressions[1], relation, name)
    lengths = [
        interval_ms(each, node, f"the {what} of {name}")
        for each, what in zip(node.expressions[2:], form[2:], strict=True)
    ]
    with at(node):
        window = _window(name, lengths, kind)
    bounds = _bounds(window)
    values: tuple[Typed | None, Typed | None] = (None, None)
    if bounds is not None:
        values = (_shown(bounds[0], dtype, "window_start"), _shown(bounds[1], dtype, "window_end"))
    added: tuple[Column, ...] = (Column("window_start", values[0]), Column("window_end", values[1]))
    if bounds is None:
        # A name that has a place in GROUP BY only.
        added = tuple(Column(each.name, None) for each in added)
    columns = (*relation.columns, *added)
    return Relation(relation.stream, columns, Windowed(window, False, bounds, dtype, node))


def _by_calendar(node: exp.Anonymous, relation: Relation, context: Context) -> Relation:
    """``TUMBLE(t, at, INTERVAL '1' DAY, 'Europe/Berlin')``: windows of a day there, whose lengths differ."""
    _, time, length, zone = node.expressions
    kind, dtype = _time_of(time, relation, "TUMBLE")
    if kind != "event":
        raise Unplaced("windows in a time zone go by event time", time)
    if relation.is_changelog:
        raise Unplaced("windows in a time zone take rows that are never taken back", node)
    made, calendar = in_calendar(relation, length, zone, node, context)
    bounds = (column(CALENDAR_BOUNDS[0], pl.Int64()), column(CALENDAR_BOUNDS[1], pl.Int64()))
    added = (
        Column("window_start", _shown(bounds[0], dtype, "window_start")),
        Column("window_end", _shown(bounds[1], dtype, "window_end")),
    )
    # Rows have the last moment of their window as event time.
    columns = tuple(
        each if each.value is None else replace(each, value=each.value.without_role())
        for each in made.columns
    )
    windowed = Windowed(tumbling(1), False, bounds, dtype, node, calendar)
    return Relation(made.stream, (*columns, *added), windowed)


def _window(name: str, lengths: list[int], kind: WindowTime) -> Window:
    if name == "TUMBLE":
        return tumbling(lengths[0], time=kind)
    if name == "HOP":
        return sliding(lengths[1], lengths[0], time=kind)
    if name == "CUMULATE":
        return cumulative(lengths[1], lengths[0], time=kind)
    return session(lengths[0], time=kind)


def _time_of(node: exp.Expr, relation: Relation, name: str) -> tuple[WindowTime, pl.DataType]:
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == "PROCTIME":
        return "processing", pl.Int64()
    if not isinstance(node, exp.Column):
        raise Unplaced(f"the second argument of {name} is the time column of the table, or PROCTIME()", node)
    times = [each.name for each in relation.columns if each.value is not None and each.value.role == "time"]
    found = Scope(relation.columns).find(node)
    if found.value is not None and found.value.role == "time":
        return "event", found.value.dtype
    if times:
        raise Unplaced(
            f"{name} goes by the event time of the table, which is {times[0]!r}, not {found.name!r}", node
        )
    kind = type_words(found.value.dtype) if found.value is not None else "no value"
    raise Unplaced(
        f"{name} goes by the event time of its table, and {found.name!r} ({kind}) is none here; declare it with "
        f"WATERMARK FOR {found.name} AS {found.name} - INTERVAL '2' SECOND in CREATE SOURCE, and hand it on as it is",
        node,
    )


def _bounds(window: Window) -> tuple[Typed, Typed] | None:
    if window.kind != "tumbling" or window.time != "event":
        return None
    start = pl.col(EVENT_TIME_COLUMN) // window.size_ms * window.size_ms
    return computed(start, pl.Int64()), computed(start + window.size_ms, pl.Int64())


def _shown(bound: Typed, time: pl.DataType, role: Role) -> Typed:
    """A bound in the type of the time column."""
    if not isinstance(time, pl.Datetime):
        return Typed(bound.expr, pl.Int64(), None, role)
    moment = pl.from_epoch(bound.expr, "ms").dt.cast_time_unit(time.time_unit)
    shown = moment if time.time_zone is None else moment.dt.replace_time_zone(time.time_zone)
    return Typed(shown, time, None, role)
