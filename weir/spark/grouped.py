"""Aggregates of a data frame by key and window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.groups import Group, window_bounds
from weir.spark.task_steps import ORDER_COLUMN
from weir.spark.types import quoted
from weir.spark.watermarks import with_spark_times
from weir.specs.window_kinds import Window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WINDOW = ("window_start", "window_end")
_TIME, _ORDER = quoted(EVENT_TIME_COLUMN), quoted(ORDER_COLUMN)
#: A window's bounds until its results are made: rows may have columns of the usual names.
_BOUNDS = ("_window_start", "_window_end")


def grouped(frame: DataFrame, group: Group, schema: pa.Schema) -> DataFrame:
    """Return one row for each group, with the columns of the schema, the event time and the place."""
    if group.window is None:
        return _by_key(frame, group, schema)
    if group.window.kind == "session":
        return _sessions(frame, group, schema)
    if group.parts:
        return _by_steps(frame, group, group.window, schema)
    bounds = window_bounds(group.window)
    if bounds.listed:
        frame = frame.selectExpr("*", f"explode({bounds.listed}) AS _at")
    frame = frame.selectExpr("*", f"{bounds.start} AS _window_start", f"{bounds.end} AS _window_end")
    return _finished(_aggregated(frame, group, [*group.keys, *_BOUNDS]), schema, "_window_end - 1")


def _by_steps(frame: DataFrame, group: Group, window: Window, schema: pa.Schema) -> DataFrame:
    """Sliding windows, of the aggregates of their steps."""
    from pyspark.sql.functions import expr

    size, step = window.size_ms, window.step_ms
    keys = [quoted(key) for key in group.keys]
    begun = f"({_TIME} - pmod({_TIME} - {window.offset_ms}L, {step}L))"
    parts = [expr(text).alias(name) for name, text in group.parts]
    steps = frame.groupBy(*map(expr, keys), expr(begun).alias("_step")).agg(*parts)
    starts = f"explode(sequence(_step - {size - step}L, _step, {step}L)) AS _window_start"
    merged = [expr(text).alias(name) for name, text in group.merged]
    found = steps.selectExpr("*", starts).groupBy(*keys, "_window_start").agg(*merged)
    found = found.selectExpr("*", f"_window_start + {size}L AS _window_end")
    return _finished(found, schema, "_window_end - 1")


def _sessions(frame: DataFrame, group: Group, schema: pa.Schema) -> DataFrame:
    """A session ends where the next row of its key is more than the gap away."""
    assert group.window is not None
    gap = group.window.size_ms
    keys = ", ".join(map(quoted, group.keys))
    over = f"OVER (PARTITION BY {keys} ORDER BY {_TIME})"
    frame = frame.selectExpr("*", f"lag({_TIME}) {over} AS _before")
    begins = f"CASE WHEN {_TIME} - _before > {gap}L THEN 1 ELSE 0 END"
    frame = frame.selectExpr("*", f"sum({begins}) {over} AS _session").drop("_before")
    bounds = {"_window_start": f"min({_TIME})", "_window_end": f"max({_TIME}) + {gap}L"}
    # A row at the very end of a session would be of it: so it is told a moment later than other windows.
    return _finished(_aggregated(frame, group, [*group.keys, "_session"], bounds), schema, "_window_end")


def _aggregated(
    frame: DataFrame, group: Group, by: list[str], others: dict[str, str] | None = None
) -> DataFrame:
    from pyspark.sql.functions import expr

    texts = {**(others or {}), **dict(group.aggregates)}
    made = [expr(text).alias(name) for name, text in texts.items()]
    return frame.groupBy(*map(quoted, by)).agg(*made)


def _finished(frame: DataFrame, schema: pa.Schema, time: str) -> DataFrame:
    """Results of windows, with this event time."""
    names = [f"_{name} AS {name}" if name in _WINDOW else quoted(name) for name in schema.names]
    return frame.selectExpr(*names, f"{time} AS {_TIME}", f"0L AS {_ORDER}")


def _by_key(frame: DataFrame, group: Group, schema: pa.Schema) -> DataFrame:
    """The last row of each key, and what all of its rows come to."""
    last = {EVENT_TIME_COLUMN: f"max({_TIME})", ORDER_COLUMN: f"max({_ORDER})"}
    if group.last:
        # Columns of one row, all of the same.
        inner = ", ".join(f"'{number}', {quoted(name)}" for number, name in enumerate(group.last))
        last["_last"] = f"max_by(named_struct({inner}), struct({_TIME}, {_ORDER}))"
    made = _aggregated(frame, group, list(group.keys), last)
    texts = {name: f"_last.`{number}`" for number, name in enumerate(group.last)}
    return made.selectExpr(
        *(f"{texts.get(name, quoted(name))} AS {quoted(name)}" for name in schema.names), _TIME, _ORDER
    )


def stream_grouped(frame: DataFrame, group: Group, schema: pa.Schema, bound_ms: int) -> DataFrame:
    """Return one row for each group of a stream, when its window is over; of keys without windows in each trigger."""
    if group.window is None:
        return _by_key(frame, group, schema)
    window = group.window
    size = f"{window.size_ms} milliseconds"
    if window.kind == "session":
        text, time = f"session_window(_time, '{size}')", "_window_end"
    else:
        text = f"window(_time, '{size}', '{window.step_ms} milliseconds', '{window.offset_ms} milliseconds')"
        time = "_window_end - 1"
    from pyspark.sql.functions import expr

    made = [expr(told).alias(name) for name, told in group.aggregates]
    by = [*(expr(quoted(key)) for key in group.keys), expr(text).alias("_window")]
    found = with_spark_times(frame, bound_ms).groupBy(*by).agg(*made)
    bounds = (f"unix_millis(_window.{end}) AS _window_{end}" for end in ("start", "end"))
    return _finished(found.selectExpr("*", *bounds), schema, time)
