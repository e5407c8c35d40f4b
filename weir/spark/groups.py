"""Aggregates of keys and of windows in Spark SQL: those whose result depends on no order of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Group:
    """A row for each group.

    Attributes:
        keys: key columns.
        window: rows belong to its windows; None: there are none.
        aggregates: name of the column, and its text.
        last: columns that are those of the last row of a group by event time.
        parts: of sliding windows, aggregates of the rows of one step, from which those of windows are made; (): they
            are made of rows.
        merged: the aggregates over ``parts``.
    """

    keys: tuple[str, ...]
    window: Window | None
    aggregates: tuple[tuple[str, str], ...]
    last: tuple[str, ...] = ()
    parts: tuple[tuple[str, str], ...] = ()
    merged: tuple[tuple[str, str], ...] = ()


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
        spec.updates.lateness_ms or any(each.function == "count_distinct" for each in spec.results)
    ):
        # Spark tells a window once, and has no counts of different values there.
        return None
    texts = _texts(spec.results, given)
    if texts is None or not _are_keys(spec.key_columns, given):
        return None
    group = Group(spec.key_columns, spec.window, texts)
    size, step = spec.window.size_ms, spec.window.step_ms
    if mode == "batch" and spec.window.kind == "sliding" and size > step and size % step == 0:
        return _in_steps(group, spec.results)
    return group


def final_group(spec: KeyedAggregateSpec, given: pa.Schema, mode: Mode) -> Group | None:
    """The last row of each key, with all that came until then: what one batch of all rows gives; None: no equal."""
    if type(spec) is not KeyedAggregateSpec or (mode == "batch" and not spec.tells_batches):
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


def _in_steps(group: Group, aggregates: Iterable[AnyAggregate]) -> Group:
    """The windows made of their steps, so that a row counts once and not for each window; or as they are."""
    parts: list[tuple[str, str]] = []
    merged: list[tuple[str, str]] = []
    for (output, text), aggregate in zip(group.aggregates, aggregates, strict=True):
        part = f"_part_{len(parts)}"
        if aggregate.function in ("count", "sum"):
            parts.append((part, text))
            merged.append((output, f"sum({part})"))
        elif aggregate.function in ("min", "max"):
            parts.append((part, text))
            merged.append((output, f"{aggregate.function}({part})"))
        elif aggregate.function == "mean":
            rows = f"_part_{len(parts) + 1}"
            parts += [(part, text.replace("avg(", "sum(", 1)), (rows, text.replace("avg(", "count(", 1))]
            merged.append((output, f"sum({part}) / sum({rows})"))
        else:
            return group
    return replace(group, parts=tuple(parts), merged=tuple(merged))


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


@dataclass(frozen=True)
class Bounds:
    """The windows of a row, but sessions, whose bounds depend on other rows.

    Attributes:
        listed: a list of whole numbers, one for each window, as column ``_at``; empty: a row is in one window.
        start: of a window, over ``_at`` and the row.
        end: of a window, over ``_at`` and the row.
    """

    listed: str
    start: str
    end: str


def window_bounds(window: Window) -> Bounds:
    """Return the windows of a row in Spark SQL, without functions of elements, which Spark does not compile."""
    size, step, offset = window.size_ms, window.step_ms, window.offset_ms
    begun = f"pmod({_TIME} - {offset}L, {size}L)"
    if window.kind == "tumbling":
        return Bounds("", f"({_TIME} - {begun})", f"({_TIME} - {begun} + {size}L)")
    if window.kind == "sliding":
        behind = f"pmod({_TIME} - {offset}L, {step}L)"
        last = f"({_TIME} - {behind})"
        # The first window is still open at the row's time.
        first = f"({last} - (({size}L - 1L - {behind}) div {step}L) * {step}L)"
        return Bounds(f"sequence({first}, {last}, {step}L)", "_at", f"(_at + {size}L)")
    start = f"({_TIME} - {begun})"
    first = f"({start} + ({begun} div {step}L + 1L) * {step}L)"
    return Bounds(f"sequence({first}, {start} + {size}L, {step}L)", start, "_at")
