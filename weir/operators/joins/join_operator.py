"""What operators of joins by key have in common: rows that are kept, lateness, and timers of what is complete."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import InTimeOperator, Json, OperatorContext
from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.operators.joins.joined_rows import JoinedRows
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import KeptRows, layout_of
from weir.operators.joins.new_rows import NewRows, no_rows, stored_rows
from weir.operators.joins.partners import KeptPartners
from weir.operators.joins.row_codec import ROW_VERSION, check_join_codec, check_other_keys
from weir.operators.joins.row_slices import RowSlices
from weir.operators.keyed.state_codec import counted_before, kept_snapshots, keyed_snapshot
from weir.rows import fired_rows, row_watermarks
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    as_authors_see,
    int64_column,
    watermarks_of,
)
from weir.rows.row_watermarks import RowWatermarks, TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs import JoinSpec
from weir.state.handles.block import Keys
from weir.state.tables.opened import OperatorTables
from weir.state.tables.timers.time_first import user_key_of
from weir.state.tables.timers.timer_table import Due

#: Keys that are looked at together when their timers come due.
_BLOCK_KEYS_MAX = 8_192
#: Sides of which it is told that a row has not matched, as bits: 1 left, 2 right.
_TOLD = {"inner": 0, "left": 1, "right": 2, "full": 3, "semi": 0, "anti": 1}


class JoinOperator(InTimeOperator):
    """Keeps rows of all sides by key until the watermark has passed what may go with them.

    How they match is said by a subclass for each kind of join.

    Input: rows of any side by HASH over its key columns. Output: the columns of ``JoinSpec.output_schema``, then both
    time columns. A row whose event time is below the watermark is late: it is counted and goes to a side output, unless
    the join has no bounds.
    """

    tells_inputs_apart = True

    def __init__(self, spec: JoinSpec) -> None:
        self._spec = spec
        self._told = _TOLD[spec.how]
        # Of one within bounds nothing is made of late rows.
        self.knows_rows_by_time = not spec.is_bounded
        self._watermark_ms = WATERMARK_MIN_MS
        self._input_watermarks_ms = [WATERMARK_MIN_MS] * spec.inputs_count
        #: Rows that came too late, also before the checkpoint that the job started from; other threads read it.
        self.late_rows = 0

    def check_restored(self, context: OperatorContext) -> None:
        """Check the restored keys and rows against the step's schema, as :class:`Operator` asks."""
        if context.schema is None:
            raise StateError(f"join {context.operator_name!r} was not told its schema")
        self._context = context
        self._joined = JoinedRows(self._spec, context.schema)
        self._check_codecs(context)

    def _check_codecs(self, context: OperatorContext) -> None:
        for snapshot in kept_snapshots(context, self._spec.kind).values():
            self._check_codec(snapshot["codec"])
            # Checkpoints of earlier versions do not tell them.
            stored = snapshot.get("other_keys")
            if stored is not None:
                check_other_keys(context.operator_name, stored, self._other_keys)

    def open(self, context: OperatorContext) -> None:
        """Open the states.

        Raises:
            StateError: the stage has no store.
            StateMismatchError: a checkpoint's rows cannot be read with this spec.
        """
        if context.schema is None:
            raise StateError(f"join {context.operator_name!r} was not told its schema")
        self._context = context
        self._slices = RowSlices(context.clock)
        self._joined = JoinedRows(self._spec, context.schema)
        kept = kept_snapshots(context, self._spec.kind)
        self._check_codecs(context)
        self.late_rows = counted_before(context, kept, "late_rows")
        self._kept = self._open_rows(declared_tables(context))

    def _open_rows(self, tables: OperatorTables) -> KeptRows:
        timers = tables.timers("_expiry") if self._spec.is_bounded else None
        return KeptRows(tables.values("rows"), timers, layout_of(self._spec), self._told)

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of a join are of one of its inputs: :meth:`process_input`."""
        raise NotImplementedError

    def process_input(self, input_index: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Match rows of one side with what is kept of the other, and keep them.

        Raises:
            StateError: the store cannot be read or written.
        """
        # Key groups that have just come may have rows that were complete here before.
        for out in self._fire(self._watermark_ms):
            yield self._told_before(batch, out)
        given = batch
        if self._can_be_late(input_index):
            in_time = self._in_time(batch)
            if not in_time.all():
                late = batch.filter(pa.array(~in_time))
                self.late_rows += late.num_rows
                shown = row_watermarks.carried(late, as_authors_see(late))
                yield SideRows(self._spec.late_outputs[input_index], shown)
                batch = batch.filter(pa.array(in_time))
        made = self._in_time_joined(input_index, batch)
        tells_later = self._told and self._kept.timers is not None
        column = watermarks_of(given) if tells_later else None
        if column is None:
            yield from made
        elif self._context.row_watermarks >= RowWatermarks.ALL:
            # Rows without a partner leave before pairs as of which none can come any more.
            until_ms = max(int(row_watermarks.as_of(given, column)[1][-1]), self._watermark_ms)
            fire = partial(self.on_watermark, until_ms)
            yield from fired_rows.woven(made, self._watermark_ms, fire, until_ms)
        else:
            # They leave with the next watermark, which no pair tells of before.
            yield from (self._told_before(batch, out) for out in made)

    def _told_before(self, batch: pa.RecordBatch, made: pa.RecordBatch) -> pa.RecordBatch:
        """What is in time and as of the watermark that was told, with the column if the batch has it."""
        if watermarks_of(batch) is None:
            return made
        times_ms = int64_column(made, EVENT_TIME_COLUMN)
        return row_watermarks.with_column(made, np.minimum(times_ms, self._watermark_ms))

    def _in_time_joined(self, input_index: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        has_key = _has_key(batch, self._spec.keys_of_input(input_index))
        if has_key is not None:
            if self._told >> input_index & 1:
                without = batch.filter(pc.invert(has_key))
                yield from self._alone(input_index, without, int64_column(without, EVENT_TIME_COLUMN))
            batch = batch.filter(has_key)
        for part in self._slices.of(batch):
            yield from self._join(input_index, part)

    def _can_be_late(self, side: int) -> bool:
        return self._spec.is_bounded

    def _in_time(self, batch: pa.RecordBatch) -> np.ndarray:
        """Which rows are not late, bool: by the watermark of their own split, and by what has been told here."""
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        in_time: np.ndarray = times_ms >= self._watermark_ms
        late_ms = row_watermarks.late_ms(batch, times_ms)
        if late_ms is not None:
            in_time &= late_ms == WATERMARK_MIN_MS
        return in_time

    @property
    def time_cuts(self) -> TimeCuts:
        """Return how rows are cut by time: what late rows find is what was there before them."""
        return TimeCuts.LATE

    def due_ms(self) -> int:
        """Return when rows are due: any watermark may complete some."""
        return WATERMARK_MIN_MS

    def _keys(self, side: int, batch: pa.RecordBatch) -> Keys:
        return keys_of(batch, self._spec.keys_of_input(side), self._context.max_parallelism)

    @abstractmethod
    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keep rows of one side that are in time and have a key; yield what leaves because of them."""

    def _write(self, batch: pa.RecordBatch, rows: NewRows, block: Block, matched: np.ndarray) -> None:
        """Add rows to a block, and write it."""
        data, offsets = self._joined.encode(rows.side, batch)
        self._store(rows, block, matched, data, offsets)

    def _store(
        self, rows: NewRows, block: Block, matched: np.ndarray, data: np.ndarray, offsets: np.ndarray
    ) -> None:
        stored = stored_rows(rows, len(block.keys), matched.view(np.uint8), data, offsets)
        changes = self._kept.write(block, stored, self._watermark_ms, has_fired=False)
        if changes and self._kept.timers is not None:
            self._kept.timers.change(changes)

    def _alone(self, side: int, batch: pa.RecordBatch, times_ms: np.ndarray) -> Iterator[pa.RecordBatch]:
        if batch.num_rows:
            made = self._joined.alone(side, batch, times_ms)
            yield row_watermarks.made_of(batch, np.arange(batch.num_rows), made)

    def on_input_watermark(self, input_index: int, time_ms: int) -> None:
        """Take the watermark of an input: rows of the other side that match only earlier rows need not be kept."""
        self._input_watermarks_ms[input_index] = time_ms

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Drop what can match no more; tell of what has not matched."""
        yield from self._fire(time_ms)
        self._watermark_ms = max(time_ms, self._watermark_ms)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Complete all rows."""
        yield from self.on_watermark(WATERMARK_MAX_MS)

    def _fire(self, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        timers = self._kept.timers
        until_ms = min(watermark_ms, NEVER_MS - 1)
        while timers is not None and watermark_ms != WATERMARK_MIN_MS and timers.next_ms() <= until_ms:
            due = timers.take(until_ms, _BLOCK_KEYS_MAX)
            if not due.keys:
                return
            try:
                block = self._due_block(due, watermark_ms)
                told = self._complete(block, watermark_ms)
                block.changed[:] = 1
                changes = self._kept.write(block, no_rows(len(block.keys)), watermark_ms, has_fired=True)
            except BaseException:
                timers.give_back(due)
                raise
            timers.fired(due, dict.fromkeys(due.keys, False) | changes)
            yield from told

    def _due_block(self, due: Due, watermark_ms: int) -> Block:
        # A key may have two timers: the time of its rows changed.
        user_keys = list(dict.fromkeys(user_key_of(key) for key in due.keys))
        column = weir_keys.KeyColumn.from_list(user_keys)
        hashes = weir_keys.hash_keys(column)
        keys = Keys(hashes, column, self._context.max_parallelism, is_distinct=True)
        return self._kept.load(keys, due_ms=self._due_ms(watermark_ms))

    def _due_ms(self, watermark_ms: int) -> int | None:
        """Return when loaded rows are due, for :meth:`KeptRows.load`: at the watermark."""
        return watermark_ms

    def _complete(self, block: Block, watermark_ms: int) -> Iterator[pa.RecordBatch]:
        """Kept rows that leave because nothing more can come for them.

        What is told is known when this returns. Its batches, of which there may be many, are made when they are taken.
        """
        return iter(())

    def _partners(self, block: Block, side: int) -> KeptPartners:
        return KeptPartners(block, self._joined.codecs[side], self._kept.columns_at(side))

    def _decoded_keys(self, block: Block, key_rows: np.ndarray) -> list[pa.Array]:
        own = weir_keys.select_keys(block.keys.column, key_rows)
        return weir_keys.decode_keys(own, self._joined.key_types)

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes of the rows mean."""
        other_keys: Json = [list(map(str, names)) for names in self._other_keys]
        return keyed_snapshot(self._spec.kind, self._codec(), late_rows=self.late_rows, other_keys=other_keys)

    @property
    def _other_keys(self) -> list[tuple[str, ...]]:
        """The key columns of each input but the first, whose are those of the result and in the codec."""
        return [self._spec.keys_of_input(index) for index in range(1, self._spec.inputs_count)]

    def _codec(self) -> dict[str, Any]:
        return {"values": ROW_VERSION, **self._joined.describe()}

    def _check_codec(self, stored: dict[str, Any]) -> None:
        check_join_codec(self._context.operator_name, stored, self._codec())


def _has_key(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.Array | None:
    """Which rows have no null among these columns; None: all."""
    found = None
    for name in columns:
        column = batch.column(name)
        if column.null_count:
            found = column.is_valid() if found is None else pc.and_(found, column.is_valid())
    return found
