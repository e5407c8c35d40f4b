"""What flows: Arrow record batches with system columns, control elements, and blocks of rows before they are sent.

A batch is a plain ``pyarrow.RecordBatch``. Its system columns come last and, but for the last one, are never null:

=====================  =======  ====================================================================
``_event_time_ms``     int64    event time, ms since the epoch
``_ingest_time_us``    int64    scheduled (paced) or read time of the event, µs since the epoch
``_key_hash``          uint64   only after a HASH exchange: the stable hash of the key columns
``_watermark_ms``      int64    the watermark as of the row, where it matters (``weir.rows.row_watermarks``)
``_key_part``          binary   only in batches with a hot key, between an exchange and the step after it: null, or what
                                the row stands for (``weir.operators.keyed.hot_rows``)
=====================  =======  ====================================================================

Functions, operators and sinks of job authors see the time columns, but never the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.rows.late_column import LateColumn

EVENT_TIME_COLUMN = "_event_time_ms"
INGEST_TIME_COLUMN = "_ingest_time_us"
KEY_HASH_COLUMN = "_key_hash"
WATERMARK_COLUMN = "_watermark_ms"
KEY_PART_COLUMN = "_key_part"
SYSTEM_COLUMNS = (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN, KEY_HASH_COLUMN, WATERMARK_COLUMN, KEY_PART_COLUMN)
_HIDDEN_COLUMNS = (KEY_HASH_COLUMN, WATERMARK_COLUMN, KEY_PART_COLUMN)
#: No column of a job has this name: it is of columns that are added for a moment.
UNNAMED_COLUMN = ""

#: Smaller than every event time; the watermark before the first one.
WATERMARK_MIN_MS = -(2**63)
#: The watermark of an input that has ended.
WATERMARK_MAX_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Watermark:
    """No event with an event time below ``time_ms`` follows on this channel."""

    time_ms: int
    #: Subtasks of the producer's stage that read nothing: no event follows on their channels either, whose own word
    #: may come after rows of this one. Known at a start from nothing, with the first watermark.
    without: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Idle:
    """This channel has no data for now and does not hold back the watermark until its next element."""


@dataclass(frozen=True, slots=True)
class RouteMarker:
    """Rows after it on this channel were routed by the routing table of this version."""

    routing_version: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Rows before it on this channel belong to the checkpoint of this number, rows after it do not."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfStream:
    """The last element of a channel."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows with the input of the stage that they came from."""

    #: Position among the inputs of the stage's first step (``weir.plan.graph.Edge.index``).
    input_index: int
    batch: pa.RecordBatch
    #: The watermarks as of the rows are of all inputs of the subtask, and not of the one that they came from.
    in_time: bool = False
    #: Of rows that wait for a step within the stage: its name, the watermark that it knew, and the subtask.
    step: str = ""
    known_ms: int = WATERMARK_MIN_MS
    subtask_index: int = 0


ControlElement = Watermark | Idle | RouteMarker | Barrier | EndOfStream
Element = pa.RecordBatch | ControlElement


def with_system_columns(
    batch: pa.RecordBatch, event_time_ms: np.ndarray | int, ingest_time_us: np.ndarray | int
) -> pa.RecordBatch:
    """Returns the batch with both time columns appended; called by source readers and by authors of operators.

    Args:
        batch: user columns alone, without time columns.
        event_time_ms: ms since the epoch; int64, shape (rows,), or one value for all rows.
        ingest_time_us: µs since the epoch, likewise: when the row was scheduled or read, from which latency counts.
    """
    rows = batch.num_rows
    arrays = list(batch.columns)
    for value in (event_time_ms, ingest_time_us):
        column = value if isinstance(value, np.ndarray) else np.full(rows, value, dtype=np.int64)
        arrays.append(pa.array(column, type=pa.int64()))
    return pa.RecordBatch.from_arrays(arrays, schema=system_schema(batch.schema))


#: What jobs call it, as ``weir.with_times``.
with_times = with_system_columns


def system_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of user columns followed by both time columns."""
    for name in (EVENT_TIME_COLUMN, INGEST_TIME_COLUMN):
        schema = schema.append(pa.field(name, pa.int64(), nullable=False))
    return schema


def as_authors_see(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as job authors see it: its columns and both time columns; the very batch if nothing is hidden."""
    hidden = [name for name in _HIDDEN_COLUMNS if batch.schema.get_field_index(name) >= 0]
    return batch.drop_columns(hidden) if hidden else batch


def user_columns(schema: pa.Schema) -> list[str]:
    """Names of the columns that are not system columns, in order."""
    return [name for name in schema.names if name not in SYSTEM_COLUMNS]


def int64_column(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A view, shape (rows,), dtype int64, of a column without nulls."""
    column: np.ndarray = batch.column(name).to_numpy(zero_copy_only=True)
    return column


def watermarks_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """Return the watermark as of each row, int64, shape (rows,); None: the batch does not say."""
    index = batch.schema.get_field_index(WATERMARK_COLUMN)
    return None if index < 0 else batch.column(index).to_numpy(zero_copy_only=True)


_PLAIN_TYPES = {
    np.dtype(np.int64): pa.int64(),
    np.dtype(np.uint64): pa.uint64(),
    np.dtype(np.float64): pa.float64(),
    np.dtype(np.uint32): pa.uint32(),
}


def plain_array(values: np.ndarray) -> pa.Array:
    """An array without nulls that shares memory with contiguous numbers of one dimension.

    ``pa.array`` does the same by way of much more code: on a machine that does other things between, that takes 40 µs
    and this 5.
    """
    dtype = _PLAIN_TYPES.get(values.dtype)
    if dtype is None or not values.flags.c_contiguous:
        return pa.array(values)
    return pa.Array.from_buffers(dtype, len(values), [None, pa.py_buffer(values)])


def taken(batch: pa.RecordBatch, rows: np.ndarray) -> pa.RecordBatch:
    """Return these rows of a batch, in this order; the numbers, contiguous, must be right: nothing looks at them.

    To look at them takes a fifth of the whole time.
    """
    return pc.take(batch, plain_array(rows), boundscheck=False)


#: About how many bytes a source or a function makes at a time, and gives out at most in one batch; a single row may
#: have more.
BATCH_BYTES_MAX = 8 << 20
#: Batches of fewer bytes are joined with others that go the same way; to join larger ones costs more than it saves.
JOINED_BYTES = 1 << 20
#: What ``rough_bytes`` does not count exactly.
_ROUGH_BYTES_MAX = 64 << 10


def rough_bytes(batch: pa.RecordBatch) -> tuple[int, bool]:
    """At most how many bytes the rows of this batch occupy, and whether that is :func:`batch_bytes`.

    Of small batches the bytes of the buffers in which they lie, which takes 0.2 µs and not 10.
    """
    size_bytes = int(batch.get_total_buffer_size())
    return (size_bytes, False) if size_bytes <= _ROUGH_BYTES_MAX else (batch_bytes(batch), True)


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that the rows of this batch occupy (a slice counts only its own rows)."""
    return int(batch.get_total_buffer_size() if batch.num_rows == 0 else batch.nbytes)


class Block:
    """Rows of which not all is made yet, from a source or a filter to the exchange; used by one subtask's thread.

    A *block* has columns, one of which may come late, and a *selection*: the rows that count. Its rows leave all at
    once, or in *windows*, as they become due. A paced source decodes thousands of rows at a time and gives a few of
    them out every few ms. What a few rows cost at a filter and at an exchange is nothing but calls, so the filters that
    need not see rows at their time, and the exchange, do their work once for the whole block.

    Args:
        columns: all rows, without the column that comes late.
        selection: numbers of the rows that count; int64, ascending, shape (rows that count,). None: all.
        late: a column that the rows lack. All rows of such a block leave at once.
        kept: for each filter that the rows have passed, in order, the numbers of the rows that pass it, as
            ``selection``, which is the last one.
    """

    __slots__ = ("_kept", "_numbers", "_selected", "columns", "late", "selection")

    def __init__(
        self,
        columns: pa.RecordBatch,
        selection: np.ndarray | None = None,
        late: LateColumn | None = None,
        kept: Sequence[np.ndarray] = (),
    ) -> None:
        self.columns, self.selection, self.late = columns, selection, late
        self._kept = kept
        # Few rows are found sooner in lists; of rows that leave all at once none is looked for.
        self._numbers: list[list[int]] = [] if late is not None else [numbers.tolist() for numbers in kept]
        is_plain = selection is None and late is None
        self._selected: pa.RecordBatch | None = columns if is_plain else None

    @property
    def filters(self) -> int:
        """How many filters the rows have passed."""
        return len(self._kept)

    def passed(self, start: int, stop: int) -> tuple[list[int], int]:
        """Count the rows of a window at the filters.

        Args:
            start: number of the first row that is due.
            stop: number of the first one after it that is not.

        Returns:
            How many rows enter each filter, and how many pass all of them.
        """
        entered, rows = [], stop - start
        if rows == self.columns.num_rows:
            counts = [rows, *map(len, self._kept)]
            return counts[:-1], counts[-1]
        for numbers in self._numbers:
            entered.append(rows)
            first = bisect_left(numbers, start)
            rows = bisect_left(numbers, stop, first) - first
        return entered, rows

    def joined(self) -> Block:
        """The block with the column that comes late; without the rows that its values made bad.

        Raises:
            InputError: it cannot be read, or a row is bad that must not be.
        """
        if self.late is None:
            return self
        whole, kept, selection = self.late.joined(self.columns), self.late.kept, self.selection
        if kept is not None and selection is not None:
            selection = (np.cumsum(kept) - 1)[selection[kept[selection]]]
        return Block(whole, selection)

    def rows(self) -> pa.RecordBatch:
        """The rows that count, with all columns; made once. Raises what :meth:`joined` raises."""
        if self._selected is None:
            whole = self.joined()
            self._selected = whole.columns
            if whole.selection is not None:
                self._selected = taken(whole.columns, whole.selection)
        return self._selected

    def window(self, start: int, stop: int) -> pa.RecordBatch:
        """Return those of :meth:`rows` from number ``start`` on and before ``stop``."""
        if stop - start == self.columns.num_rows:
            return self.rows()
        if self.selection is not None:
            numbers = self._numbers[-1]
            start = bisect_left(numbers, start)
            stop = bisect_left(numbers, stop, start)
        return self.rows().slice(start, stop - start)


class Due(NamedTuple):
    """The window of a block that one poll returns."""

    block: Block
    #: Numbers of rows.
    start: int
    stop: int
