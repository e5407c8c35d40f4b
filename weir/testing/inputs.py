"""Rows that a test gives instead of a source's: their forms, and the reader that stands in for the source."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from weir.author.operator import DeadLetters, Json, OperatorContext, Poll, RepeatableDeadLetters, SourceReader
from weir.author.watermarks import DEFAULT_STRATEGY, WatermarkGenerator
from weir.clock import SystemClock
from weir.errors import GraphError
from weir.operators.event_times import EventTimes, generated
from weir.plan.graph import Node
from weir.rows import row_watermarks
from weir.rows.python_values import row_json
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    Watermark,
    int64_column,
    with_system_columns,
)
from weir.rows.schemas import schema_difference, small_type

#: Dicts, frames, tables and batches, or several of these; a Watermark stands behind the rows before it.
GivenRows: TypeAlias = (
    pa.RecordBatch
    | pa.Table
    | pl.DataFrame
    | Iterable[Mapping[str, Any] | pa.RecordBatch | pa.Table | pl.DataFrame | Watermark]
)

#: What a subtask of a source reads.
Element: TypeAlias = "pa.RecordBatch | Watermark | BadRow"

#: Wall clock at which a source without rows is to be polled again: not at all.
_NEVER_US = 2**62
_numbers = itertools.count(1)
_ANY_TIME = replace(DEFAULT_STRATEGY, future_ms_max=None)


@dataclass(frozen=True)
class PerSubtask:
    """Rows for each subtask of a source, in the order of their indices; without it rows are dealt out in turn."""

    rows: tuple[GivenRows, ...]

    def __init__(self, *rows: GivenRows) -> None:
        object.__setattr__(self, "rows", rows)


@dataclass(frozen=True)
class BadRow:
    """A row whose event time is bad, which its source puts aside."""

    reason: str
    #: As JSON.
    raw: bytes


@dataclass
class PushedInput:
    """What a test has given to one subtask of a source; it survives restarts, like a file."""

    #: Rows, each batch with its time columns, watermarks, and rows to be put aside, in order.
    elements: list[Element] = field(default_factory=list)
    #: Watermarks follow the rows, as those of a real source; else they are given.
    follows_rows: bool = False
    ended: bool = False
    number: int = field(default_factory=lambda: next(_numbers))


class PushedReader(SourceReader):
    """Reads a :class:`PushedInput`, one element with each poll; its position is a place in there."""

    def __init__(self, given: PushedInput, generator: WatermarkGenerator | None = None) -> None:
        """``generator``: of a source with watermarks of its own, where these follow the rows."""
        self._given = given
        self._generator = generator if given.follows_rows else None
        self._watermark_ms: int | None = None
        self._index = 0
        #: Rows of the element at the index that were given out.
        self._offset = 0
        self._event_time_ms_max = WATERMARK_MIN_MS
        self._name = ""
        self._letters: DeadLetters | None = None

    def open(self, context: OperatorContext) -> None:
        """Go on where a checkpoint of this very test is; rows that another job read are not here."""
        self._name, self._letters = context.operator_name, context.dead_letters
        self._bound_ms, self._wanted = context.grace_period_ms, context.row_watermarks
        known_bytes = 0
        position = context.restored.get(context.subtask_index)
        if isinstance(position, dict) and position.get("input") == self._given.number:
            self._index, self._offset = position["index"], position["offset"]
            self._event_time_ms_max = position["time_ms"]
            self._watermark_ms = position["watermark_ms"]
            known_bytes = position["dead_letter_bytes"]
        if isinstance(self._letters, RepeatableDeadLetters):
            self._letters.skip_known({context.subtask_index: known_bytes})

    def poll(self, rows_max: int) -> Poll:
        """The next rows or watermark."""
        while self._index < len(self._given.elements) and self._is_old(self._given.elements[self._index]):
            self._index += 1
        if self._index == len(self._given.elements):
            return Poll(finished=True) if self._given.ended else Poll(next_poll_us=_NEVER_US)
        element = self._given.elements[self._index]
        if isinstance(element, BadRow):
            self._index += 1
            if self._letters is not None:
                self._letters.reject(self._name, -1, element.reason, element.raw)
            return Poll()
        if isinstance(element, Watermark):
            self._index += 1
            self._event_time_ms_max = element.time_ms
            return Poll(event_time_ms_max=element.time_ms)
        batch = element.slice(self._offset, rows_max)
        self._offset += batch.num_rows
        if self._offset == element.num_rows:
            self._index, self._offset = self._index + 1, 0
        if self._generator is not None:
            before_ms = WATERMARK_MIN_MS if self._watermark_ms is None else self._watermark_ms
            self._watermark_ms = generated(self._generator, batch, self._watermark_ms)
            batch = self._in_time(batch, np.full(batch.num_rows, before_ms), 0)
            return Poll(batch=batch, watermark_ms=self._watermark_ms)
        highest_ms = np.full(batch.num_rows, self._event_time_ms_max)
        if self._given.follows_rows:
            times_ms = int64_column(batch, EVENT_TIME_COLUMN)
            highest_ms = np.maximum(np.maximum.accumulate(times_ms), self._event_time_ms_max)
            self._event_time_ms_max = int(highest_ms[-1])
        batch = self._in_time(batch, highest_ms, self._bound_ms)
        return Poll(batch=batch, event_time_ms_max=self._event_time_ms_max)

    def _in_time(self, batch: pa.RecordBatch, highest_ms: np.ndarray, bound_ms: int) -> pa.RecordBatch:
        """Return the batch with the watermark as of each row, where the job needs it."""
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        column = row_watermarks.of_split(times_ms, highest_ms, bound_ms, WATERMARK_MAX_MS, self._wanted)
        return batch if column is None else row_watermarks.with_column(batch, column)

    def _is_old(self, element: pa.RecordBatch | Watermark) -> bool:
        return isinstance(element, Watermark) and element.time_ms <= self._event_time_ms_max

    def snapshot(self) -> Json:
        """The place in the input."""
        letters = self._letters
        return {
            "kind": "testing_source",
            "input": self._given.number,
            "index": self._index,
            "offset": self._offset,
            "time_ms": self._event_time_ms_max,
            "watermark_ms": self._watermark_ms,
            "dead_letter_bytes": letters.position_bytes()
            if isinstance(letters, RepeatableDeadLetters)
            else 0,
        }


def deal(node: Node, rows: GivenRows | PerSubtask, subtask: int | None, now_us: int) -> list[list[Element]]:
    """What each subtask of a source gets of the rows.

    Args:
        node: the source.
        rows: as the test gives them.
        subtask: all for this one; None: in turn, row by row; watermarks go to all.
        now_us: the time at which they are read.

    Raises:
        GraphError: rows do not have the source's columns, or there is no such subtask.
    """
    if isinstance(rows, PerSubtask):
        if len(rows.rows) != node.parallelism or subtask is not None:
            raise GraphError(
                f"source {node.name!r}: rows for {len(rows.rows)} subtasks, but it has {node.parallelism}"
            )
        return [list(_elements(node, share, now_us)) for share in rows.rows]
    shares: list[list[Element]] = [[] for _ in range(node.parallelism)]
    if subtask is not None and not 0 <= subtask < node.parallelism:
        raise GraphError(f"source {node.name!r}: there is no subtask {subtask}, it has {node.parallelism}")
    turn = 0
    for element in _elements(node, rows, now_us):
        if subtask is not None:
            shares[subtask].append(element)
        elif isinstance(element, Watermark):
            for share in shares:
                share.append(element)
        elif isinstance(element, BadRow):
            shares[turn].append(element)
        else:
            for index, share in enumerate(shares):
                first = (index - turn) % node.parallelism
                picked = element.take(pa.array(range(first, element.num_rows, node.parallelism), pa.int64()))
                if picked.num_rows:
                    share.append(picked)
            turn = (turn + element.num_rows) % node.parallelism
    return shares


def _elements(node: Node, rows: GivenRows, now_us: int) -> Iterator[Element]:
    """Batches with time columns, and watermarks, in order; dicts that follow each other are one batch."""
    dicts: list[Mapping[str, Any]] = []
    items = [rows] if isinstance(rows, pa.RecordBatch | pa.Table | pl.DataFrame) else rows
    for item in items:
        if isinstance(item, Mapping):
            dicts.append(item)
            continue
        if dicts:
            yield from _from_dicts(node, dicts, now_us)
            dicts = []
        if isinstance(item, Watermark):
            yield item
        else:
            yield from _from_columns(node, item, now_us)
    if dicts:
        yield from _from_dicts(node, dicts, now_us)


def _from_dicts(node: Node, rows: list[Mapping[str, Any]], now_us: int) -> Iterator[Element]:
    schema = node.schema
    for number, row in enumerate(rows):
        unknown = row.keys() - {*schema.names, EVENT_TIME_COLUMN}
        missing = [f.name for f in schema if not f.nullable and row.get(f.name) is None]
        if unknown or missing:
            raise GraphError(
                f"source {node.name!r}: row {number} {dict(row)!r} "
                + (
                    f"has columns that the source has not: {sorted(unknown)}"
                    if unknown
                    else f"lacks {missing}, or has null there; a column that may be null is a weir.Nullable(...) of "
                    "the source's schema"
                )
            )
    try:
        batch = pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise GraphError(f"source {node.name!r}: rows are not of its types: {reason}") from error
    times = [row.get(EVENT_TIME_COLUMN) for row in rows]
    given = None if None in times else pa.array(times, pa.int64())
    return _with_times(node, batch, given, now_us)


def _from_columns(node: Node, item: object, now_us: int) -> Iterator[pa.RecordBatch]:
    if isinstance(item, pl.DataFrame):
        table = item.to_arrow()
    elif isinstance(item, pa.RecordBatch):
        table = pa.Table.from_batches([item])
    elif isinstance(item, pa.Table):
        table = item
    else:
        raise GraphError(
            f"source {node.name!r}: rows are given as dicts, Polars frames, Arrow tables or batches, "
            f"not as {type(item).__name__}"
        )
    difference = schema_difference(
        node.schema, pa.schema([(f.name, small_type(f.type)) for f in table.schema])
    )
    if difference:
        raise GraphError(f"source {node.name!r}: rows with other columns than its own: {difference}")
    user = table.select(node.schema.names).cast(node.schema).combine_chunks()
    times = (
        table.column(EVENT_TIME_COLUMN).combine_chunks() if EVENT_TIME_COLUMN in table.schema.names else None
    )
    for batch in user.to_batches():
        if batch.num_rows:
            yield from _with_times(node, batch, times, now_us)


def _with_times(node: Node, batch: pa.RecordBatch, given: pa.Array | None, now_us: int) -> Iterator[Element]:
    """The event time is that of the source's column, else of a column ``_event_time_ms`` of the rows, else now.

    As in the source, rows without a time are put aside. What is far in the future is not: the clock of a test stands
    where the test has put it.
    """
    assert node.source is not None
    column, expression = node.source.event_time_column, node.source.event_time_expression
    if column is None and expression is None:
        times = now_us // 1000 if given is None else given.cast(pa.int64()).to_numpy(zero_copy_only=False)
        yield with_system_columns(batch, times, now_us)
        return
    found = EventTimes(column, expression, _ANY_TIME, SystemClock()).of(batch)
    bad = np.zeros(batch.num_rows, dtype=bool) if found.bad is None else found.bad
    if not bad.all():
        good = batch.filter(pa.array(~bad)) if bad.any() else batch
        yield with_system_columns(good, found.times_ms[~bad], now_us)
    for row in np.flatnonzero(bad).tolist():
        raw = row_json(batch.slice(row, 1))
        yield BadRow(found.what_is_wrong(row), raw)
