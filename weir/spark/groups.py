"""Aggregates of keys and of windows in Spark SQL: those whose result depends on no order of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from weir.rows.records import EVENT_TIME_COLUMN
from weir.spark.expressions import translated
from weir.spark.modes import Mode
from weir.spark.types import quoted, wire_type
from weir.specs import KeyedAggregateSpec, WindowAggregateSpec
from weir.specs.aggregate_functions import AnyAggregate
from weir.specs.window_kinds import Window
from weir.specs.window_updates import WindowUpdates

_TIME = quoted(EVENT_TIME_COLUMN)
_START, _END = quoted("window_start"), quoted("window_end")


@dataclass(frozen=True)
class Group:
    """A row for each group.

    Attributes:
        keys: key columns.
        window: rows belong to its windows; None: there are none.
        aggregates: name of the column, and its text.
        last: columns that are those of the last row of a group by event time.
    """

    keys: tuple[str, ...]
    window: Window | None
    aggregates: tuple[tuple[str, str], ...]
    last: tuple[str, ...] = ()


def window_group(spec: WindowAggregateSpec, given: pa.Schema, mode: Mode) -> Group | None:
    """Windows of event time that are told once, at their ends; None: Spark has no equal."""
    is_plain = type(spec) is WindowAggregateSpec and not spec.takes_parts and not spec.is_keyless
    kinds = (
        ("tumbling", "sliding", "cumulative", "session")
        if mode == "batch"
        else ("tumbling", "sliding", "session")
    )
    if not is_plain or spec.window.kind not in kinds or spec.window.time != "event":
        return None
    if spec.updates.early is not None or spec.updates.results != WindowUpdates().results:
        return None
    if mode == "streaming" and (
        spec.updates.lateness_ms or (spec.window.kind == "session" and spec.window.offset_ms)
    ):
        return None
    texts = _texts(spec.results, given)
    if texts is None or not _are_keys(spec.key_columns, given):
        return None
    return Group(spec.key_columns, spec.window, texts)


def final_group(spec: KeyedAggregateSpec, given: pa.Schema, mode: Mode) -> Group | None:
    """The last row of each key, with all that came until then: what one batch of all rows gives; None: no equal."""
    if type(spec) is not KeyedAggregateSpec or (mode == "batch" and spec.emit != "per_batch"):
        return None
    texts = _texts(spec.results, given)
    if texts is None or not _are_keys(spec.key_columns, given):
        return None
    last = tuple(name for name in given.names if name not in spec.key_columns)
    return Group(spec.key_columns, None, texts, last)


def _are_keys(keys: Sequence[str], given: pa.Schema) -> bool:
    """Whether values of these columns are the same key here and there: zeros of either sign are one in Spark."""
    return not any(
        pat.is_floating(given.field(key).type) or pat.is_nested(given.field(key).type) for key in keys
    )


def _texts(aggregates: Iterable[AnyAggregate], given: pa.Schema) -> tuple[tuple[str, str], ...] | None:
    found = []
    for aggregate in aggregates:
        text = _text(aggregate, given)
        if text is not None and aggregate.condition is not None:
            condition = translated(aggregate.condition, given)
            text = None if condition is None else f"{text} FILTER (WHERE {condition})"
        if text is None:
            return None
        found.append((aggregate.output, text))
    return tuple(found)


def _text(aggregate: AnyAggregate, given: pa.Schema) -> str | None:
    """An aggregate in Spark SQL; None: it has no equal, or only one for some values."""
    function, column = aggregate.function, aggregate.column
    if function == "count":
        return "count(1)" if column is None else f"count({quoted(column)})"
    dtype = given.field(str(column)).type
    if wire_type(dtype) != dtype:
        return None
    name = quoted(str(column))
    if function == "count_distinct" and (pat.is_integer(dtype) or pat.is_string(dtype)):
        return f"count(DISTINCT {name})"
    # NaN is the largest number in Spark, and sums of floats depend on the order of additions in both.
    if function in ("min", "max") and pat.is_integer(dtype):
        return f"CAST({function}({name}) AS BIGINT)"
    if function == "sum" and pat.is_integer(dtype):
        return f"sum(CAST({name} AS BIGINT))"
    if function == "sum" and pat.is_floating(dtype):
        return f"sum(CAST({name} AS DOUBLE))"
    if function == "mean" and (pat.is_integer(dtype) or pat.is_floating(dtype)):
        return f"avg(CAST({name} AS DOUBLE))"
    return None


def window_bounds(window: Window) -> tuple[tuple[str, str], ...] | str:
    """Start and end of the windows of a row, as columns; or, where a row is in several, a list of both to explode.

    Not of sessions, whose bounds depend on other rows.
    """
    size, step, offset = window.size_ms, window.step_ms, window.offset_ms
    if window.kind == "tumbling":
        start = f"({_TIME} - pmod({_TIME} - {offset}L, {size}L))"
        return (("window_start", start), ("window_end", f"({start} + {size}L)"))
    if window.kind == "sliding":
        last = f"({_TIME} - pmod({_TIME} - {offset}L, {step}L))"
        # The first window that is still open at the row's time.
        count = f"CAST(({size}L - 1 - pmod({_TIME} - {offset}L, {step}L)) div {step}L AS INT)"
        starts = f"transform(sequence(0, {count}), i -> {last} - i * {step}L)"
        return f"transform({starts}, s -> named_struct('window_start', s, 'window_end', s + {size}L))"
    start = f"({_TIME} - pmod({_TIME} - {offset}L, {size}L))"
    first = f"(pmod({_TIME} - {offset}L, {size}L) div {step}L + 1)"
    ends = f"transform(sequence(CAST({first} AS INT), {size // step}), i -> {start} + i * {step}L)"
    return f"transform({ends}, e -> named_struct('window_start', {start}, 'window_end', e))"


WINDOW_COLUMNS = (_START, _END)
