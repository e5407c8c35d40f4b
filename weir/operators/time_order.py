"""Rows of several channels, in the order of time: each waits until all inputs have come as far as its own had then.

A row carries the watermark of its own split as of it. It leaves when the watermark of all inputs has come there, and
rows that leave together do so in the order of these watermarks: so what was due before a row is done before it,
whatever came first. Where the times of rows count (``sorts_times``), a row that is not late leaves when the watermark
of all inputs is above its time, and rows do so in the order of these times. See docs/design/0016.

Rows that wait are in memory, beyond ``_MEMORY_BYTES`` in files that are mapped, and in a state where a checkpoint or a
move of key groups needs them (:mod:`weir.operators.time_order_blocks`). Credit for them goes back at once: rows that
others wait for may come from the same sender.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from weir.author.keyed_rows import declared_tables
from weir.author.operator import OperatorContext
from weir.errors import StateError, StateMismatchError
from weir.operators.time_order_blocks import NUMBER_COLUMN, OrderBlocks
from weir.rows import mapped, row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS, batch_bytes, int64_column
from weir.rows.row_watermarks import AS_OF_COLUMN
from weir.rows.schemas import is_widened_by
from weir.specs.base import IN_ORDER_STATE

#: Of rows that wait: what is more goes to files.
_MEMORY_BYTES = 64 << 20
#: Of rows that leave at once.
_RELEASED_ROWS = 65_536
#: So many parts of rows that wait are looked through at most, before small ones are joined.
_PARTS = 64
_SMALL_ROWS = 16_384


class _Part:
    """Rows that wait, in the order of time, from ``first`` on."""

    __slots__ = ("as_of_ms", "batch", "first", "is_mapped")

    def __init__(self, batch: pa.RecordBatch, *, is_mapped: bool = False) -> None:
        self.batch = batch
        self.as_of_ms = batch.column(AS_OF_COLUMN).to_numpy(zero_copy_only=True)
        self.first = 0
        self.is_mapped = is_mapped

    @property
    def lowest_ms(self) -> int:
        return int(self.as_of_ms[self.first])

    @property
    def rest(self) -> pa.RecordBatch:
        return self.batch.slice(self.first)

    def stop(self, until_ms: int) -> int:
        """Where rows begin that are as of a later time."""
        return int(np.searchsorted(self.as_of_ms, until_ms, side="right"))


class TimeOrder:
    """Rows of one subtask that wait; its methods raise ``StateError`` where the store cannot be read or written."""

    def __init__(self, context: OperatorContext, state: str = IN_ORDER_STATE) -> None:
        """``state``: the name of the state that has the rows where a checkpoint needs them."""
        self._step = context.operator_name
        self._state = state
        self._context = context
        #: Rows leave in the order of their event times.
        self.sorts_times = context.sorts_times and state == IN_ORDER_STATE
        self._parts: list[_Part] = []
        self._lowest_ms = WATERMARK_MIN_MS
        #: In memory alone.
        self._memory_bytes = 0
        self._schema: pa.Schema | None = None
        self._blocks: OrderBlocks | None = None

    def open(self) -> None:
        """Open the state; its rows of a checkpoint are read when they are first asked for."""
        table = declared_tables(self._context).held(self._state, _MEMORY_BYTES)
        self._blocks = OrderBlocks(table, self._context.max_parallelism, self._waiting, self._keep)

    @property
    def blocks(self) -> OrderBlocks:
        """What the state has of them."""
        assert self._blocks is not None
        return self._blocks

    def __bool__(self) -> bool:
        """Return whether rows wait."""
        self._take_new()
        return bool(self._parts)

    @property
    def rows(self) -> int:
        """How many rows wait."""
        return sum(part.batch.num_rows - part.first for part in self._parts)

    def put(self, batch: pa.RecordBatch) -> None:
        """Let rows wait; they have the hashes of their keys, and ``AS_OF_COLUMN`` (``row_watermarks.of_channel``)."""
        # Those that came with their key groups are earlier.
        self._take_new()
        numbers = self.blocks.numbers(batch.num_rows)
        self._add(self._sorted(self._alike(batch.append_column(NUMBER_COLUMN, pa.array(numbers)))))
        if len(self._parts) > _PARTS:
            self._join([part for part in self._parts if part.batch.num_rows - part.first < _SMALL_ROWS])
        if self._memory_bytes > _MEMORY_BYTES:
            self._spill()

    def take(self, until_ms: int, known_ms: int) -> pa.RecordBatch | None:
        """The next rows that need not wait any more, in order, not more than about ``_RELEASED_ROWS``; None: all wait.

        Args:
            until_ms: the watermark of all inputs.
            known_ms: that of which the step was told.

        Returns:
            The rows, as of whose watermark all inputs are.
        """
        self._take_new()
        if not self._parts or self._lowest_ms > until_ms:
            return None
        until_ms = self._next_stop(until_ms)
        chosen: list[pa.RecordBatch] = []
        for part in self._parts:
            stop = part.stop(until_ms)
            if stop > part.first:
                chosen.append(part.batch.slice(part.first, stop - part.first))
                if not part.is_mapped:
                    self._memory_bytes -= batch_bytes(chosen[-1])
                part.first = stop
        self._parts = [part for part in self._parts if part.first < part.batch.num_rows]
        self._note_lowest()
        self.blocks.released(until_ms)
        if not self._parts:
            self._memory_bytes = 0
        rows = (self._sorted(_joined(chosen)) if len(chosen) > 1 else chosen[0]).drop_columns([NUMBER_COLUMN])
        return row_watermarks.released(rows, known_ms, sorts_times=self.sorts_times)

    def _next_stop(self, until_ms: int) -> int:
        """The watermark up to which rows leave at once: all that wait, or a part of them where these are many."""
        stops = [(part, part.stop(until_ms)) for part in self._parts]
        if sum(stop - part.first for part, stop in stops) <= _RELEASED_ROWS:
            return until_ms
        times_ms = np.concatenate([part.as_of_ms[part.first : stop] for part, stop in stops])
        nth_ms = int(np.partition(times_ms, _RELEASED_ROWS - 1)[_RELEASED_ROWS - 1])
        # What came too late for what has left before leaves with the next.
        return max(nth_ms, min(until_ms, self.blocks.released_ms))

    def _take_new(self) -> None:
        if self._blocks is not None:
            for batch in self._blocks.take_new():
                self._add(self._sorted(self._alike(batch)))

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._parts.append(_Part(batch))
            self._memory_bytes += batch_bytes(batch)
            self._note_lowest()

    def _note_lowest(self) -> None:
        self._lowest_ms = min((part.lowest_ms for part in self._parts), default=WATERMARK_MIN_MS)

    def _join(self, parts: list[_Part], *, maps: bool = False) -> None:
        if not parts:
            return
        joined = self._sorted(_joined([part.rest for part in parts]))
        kept = set(map(id, parts))
        self._parts = [part for part in self._parts if id(part) not in kept]
        self._parts.append(_Part(mapped.mapped(joined) if maps else joined, is_mapped=maps))

    def _spill(self) -> None:
        """Rows in memory go to a file."""
        try:
            self._join([part for part in self._parts if not part.is_mapped], maps=True)
        except OSError as error:
            raise StateError(
                f"step {self._step!r}: rows that wait for their time cannot be written to {tempfile.gettempdir()}: "
                f"{error.strerror or error}; make room there, or let TMPDIR name another folder"
            ) from error
        self._memory_bytes = 0

    def _alike(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the columns of the others in their order.

        Raises:
            StateMismatchError: rows of the checkpoint lack one.
        """
        if self._schema is None or batch.schema.equals(self._schema):
            self._schema = batch.schema
            return batch
        batch = self._of_one_type(batch)
        if set(self._schema.names) - set(batch.schema.names):
            # Rows that waited have columns that nothing reads any more.
            missing = set(batch.schema.names) - set(self._schema.names)
            if missing:
                raise self._lacks(missing)
            self._schema = batch.schema
            for part in self._parts:
                part.batch = part.batch.select(batch.schema.names)
            return batch
        if set(batch.schema.names) - set(self._schema.names) and self._parts:
            raise self._lacks(set(batch.schema.names) - set(self._schema.names))
        if set(batch.schema.names) != set(self._schema.names):
            self._schema = batch.schema
            return batch
        return batch.select(self._schema.names)

    def _of_one_type(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with columns of the types of the others, of which the wider one counts: a changed job may have it.

        Raises:
            StateMismatchError: neither holds the values of the other.
        """
        schema = self._schema
        assert schema is not None
        wider = {}
        for field in batch.schema:
            then = schema.field(field.name).type if field.name in schema.names else field.type
            if then == field.type:
                continue
            if is_widened_by(then, field.type):
                wider[field.name] = field.type
            elif is_widened_by(field.type, then):
                batch = _cast(batch, {field.name: then})
            else:
                raise StateMismatchError(
                    f"step {self._step!r}: of rows that waited for their time column {field.name!r} is {then}, and "
                    f"{field.type} of others; start the job as it was"
                )
        if wider:
            for part in self._parts:
                part.batch = _cast(part.batch, wider)
            self._schema = pa.schema([field.with_type(wider.get(field.name, field.type)) for field in schema])
        return batch

    def _lacks(self, names: Iterable[str]) -> StateMismatchError:
        return StateMismatchError(
            f"step {self._step!r}: rows that waited for their time have no column {min(names)!r}, which nothing read "
            "when the checkpoint was made; start the job as it was"
        )

    def _sorted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the order of time, of one time as they came; late ones by their own times, where these count."""
        as_of_ms = batch.column(AS_OF_COLUMN).to_numpy(zero_copy_only=True)
        numbers = batch.column(NUMBER_COLUMN).to_numpy(zero_copy_only=True)
        falls = as_of_ms[1:] < as_of_ms[:-1]
        same = as_of_ms[1:] == as_of_ms[:-1]
        columns = [numbers, as_of_ms]
        if self.sorts_times:
            times_ms = int64_column(batch, EVENT_TIME_COLUMN)
            falls |= same & (times_ms[1:] < times_ms[:-1])
            same &= times_ms[1:] == times_ms[:-1]
            columns.insert(1, times_ms)
        if not (falls | (same & (numbers[1:] < numbers[:-1]))).any():
            return batch
        return batch.take(pa.array(np.lexsort(columns)))

    # --- called by the blocks ---

    def _waiting(self) -> list[pa.RecordBatch]:
        return [part.rest for part in self._parts]

    def _keep(self, rows: list[pa.RecordBatch]) -> None:
        """Keep only these of :meth:`_waiting`: key groups have left."""
        self._parts, self._memory_bytes = [], 0
        for batch in rows:
            self._add(batch)


def _cast(batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    """The rows with some columns of wider types."""
    fields = [field.with_type(types.get(field.name, field.type)) for field in batch.schema]
    return batch.cast(pa.schema(fields))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def time_order_of(context: OperatorContext) -> TimeOrder | None:
    """What brings rows into the order of time before the first operator of a stage; None: that does not need it."""
    tables = context.tables
    return None if tables is None or IN_ORDER_STATE not in tables.state_ids else TimeOrder(context)
