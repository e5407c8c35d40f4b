"""The operator of joins by key, with and without bounds in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.author.keyed_rows import declared_tables, keys_of
from weir.author.operator import InTimeOperator, Json, OperatorContext
from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.operators.joins import join_kernels as kernels
from weir.operators.joins.held_rows import HeldRows
from weir.operators.joins.join_times import row_bounds, shared_windows
from weir.operators.joins.joined_rows import JoinedRows
from weir.operators.joins.kept_block import NEVER_MS, Block
from weir.operators.joins.kept_rows import KeptRows, layout_of
from weir.operators.joins.new_rows import NewRows, no_rows, stored_rows
from weir.operators.joins.partners import BothPartners, KeptPartners, Pairs, Partners, RecentPartners, merged
from weir.operators.joins.recent_rows import RecentRows
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
from weir.specs.joins import RECENT_STATE, WINDOW_COLUMNS
from weir.state.handles.block import Keys
from weir.state.tables.opened import OperatorTables
from weir.state.tables.timers.time_first import user_key_of
from weir.state.tables.timers.timer_table import Due

#: Keys that are looked at together when their timers come due.
_BLOCK_KEYS_MAX = 8_192
#: Sides of which it is told that a row has not matched, as bits: 1 left, 2 right.
_TOLD = {"inner": 0, "left": 1, "right": 2, "full": 3, "semi": 0, "anti": 1}
#: What a subtask holds in memory at most: a new owner of its key groups reads that before it goes on.
_HELD_BYTES_MAX = 48 << 20
#: After rows were moved from memory to the store: this many times as long as it took is for others.
_MOVE_OUT_REST = 9
#: Of rows whose columns are not asked for.
_NO_COLUMNS = (np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64))


class JoinOperator(InTimeOperator):
    """Keeps the rows of both sides by key as long as they may match, and yields a pair when its later row comes.

    Input: rows of either side by HASH over its key columns. Output: the columns of ``JoinSpec.output_schema``, then
    both time columns. The event time of a pair is the later one; of a row without a partner the last one at which one
    could have come. A row whose event time is below the watermark is late: it is counted and goes to a side output,
    unless the join has no bounds.
    """

    tells_inputs_apart = True

    def __init__(self, spec: JoinSpec) -> None:
        self._spec = spec
        self._told = _TOLD[spec.how]
        # Of one within bounds nothing is made of late rows.
        self.knows_rows_by_time = not spec.is_bounded
        #: A left row leaves with its first match.
        self._is_once = spec.how in ("semi", "anti")
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
        tables = declared_tables(context)
        #: Of a join that holds rows in memory.
        self._recent: RecentRows | None = None
        #: Monotonic second at which more of its rows may be moved to the store.
        self._move_out_s = 0.0
        if RECENT_STATE in self._spec.state_names:
            # Memory and the cache of entries share a bound.
            held_bytes = min(tables.cache_bytes // 2, _HELD_BYTES_MAX)
            self._recent = RecentRows(tables.held(RECENT_STATE, held_bytes), context.max_parallelism)
            tables = replace(tables, cache_bytes=tables.cache_bytes - held_bytes)
        self._kept = self._open_rows(tables)

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

    def _join(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._keys(side, batch)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        bounds = row_bounds(self._spec.bounds, side, batch, times_ms)
        came = HeldRows(keys.hashes, keys.column, times_ms, *bounds, *_NO_COLUMNS)
        if self._recent is None:
            yield from self._join_kept(side, batch, came)
        else:
            yield from self._join_recent(self._recent, side, batch, came)

    def _join_recent(
        self, recent: RecentRows, side: int, batch: pa.RecordBatch, came: HeldRows
    ) -> Iterator[pa.RecordBatch]:
        """Match rows with those in memory, and hold them; with those in the store, where there are some."""
        self._take_new(recent)
        stays = np.flatnonzero(self._stays(side, came.lower, came.until))
        is_held = recent.holds(side)
        if is_held and len(stays):
            is_all = len(stays) == len(came)
            data, offsets = self._joined.encode(side, batch if is_all else batch.take(pa.array(stays)))
            recent.hold(side, came.only(stays, data, offsets))
        if self._kept.may_have_rows():
            yield from self._join_kept(side, batch, came, is_held=is_held)
            return
        found = self._recent_partners(recent, side)
        if found is not None:
            for new_rows, rows in self._recent_pairs(recent, side, came):
                yield from self._matched(side, batch, found, new_rows, rows)
        if not is_held and len(stays):
            self._store_held(side, came.only(stays, *self._joined.encode(side, batch.take(pa.array(stays)))))

    def _take_new(self, recent: RecentRows) -> None:
        """Take the rows of key groups that have come."""
        for side, too_many in recent.take_new():
            self._store_held(side, too_many)

    def _recent_partners(self, recent: RecentRows, side: int) -> RecentPartners | None:
        """What is held of the other side; None: nothing."""
        held = recent.rows(1 - side)
        return None if held is None else RecentPartners(held, self._joined.codecs[1 - side])

    def _recent_pairs(self, recent: RecentRows, side: int, came: HeldRows) -> Iterator[Pairs]:
        pairs_max = self._context.batch_size
        return recent.match(side, came, is_point=self._has_intervals(side), pairs_max=pairs_max)

    def _store_held(self, side: int, rows: HeldRows) -> None:
        """Put rows into the store for which there is no room in memory."""
        keys = Keys(rows.hashes, rows.keys, self._context.max_parallelism)
        block = self._kept.load(keys.distinct, 1 << (1 - side))
        new = NewRows(side, keys.inverse, rows.times, rows.lower, rows.until)
        self._store(new, block, np.zeros(len(rows), dtype=bool), rows.data, rows.offsets)

    def _has_intervals(self, side: int) -> bool:
        return self._spec.bounds is not None and self._spec.bounds.side == side

    def _stays(self, side: int, lower: np.ndarray, until: np.ndarray) -> np.ndarray:
        """Which new rows of a side may match others that come, bool."""
        # What has been told of the other side's input alone may be ahead of the watermark.
        stays: np.ndarray = until >= max(self._watermark_ms, self._input_watermarks_ms[1 - side])
        if self._has_intervals(side):
            stays &= lower <= until
        return stays

    def _join_kept(
        self, side: int, batch: pa.RecordBatch, came: HeldRows, *, is_held: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Match rows with those in the store and in memory, and keep them in the store, unless they are held."""
        keys = Keys(came.hashes, came.keys, self._context.max_parallelism)
        new = NewRows(side, keys.inverse, came.times, came.lower, came.until)
        # Without bounds every row is kept.
        block = self._kept.load(keys.distinct, 1 << (1 - side), will_write=self._spec.bounds is None)
        flag = 0
        if self._is_once and side == 1:
            flag = kernels.GONE
        elif self._told >> (1 - side) & 1:
            flag = kernels.MATCHED
        counts, pairs = block.match(
            new,
            is_point=self._has_intervals(side),
            flag=flag,
            pairs_max=self._context.batch_size,
        )
        kept = self._partners(block, 1 - side)
        partners: Partners = kept
        held = None if self._recent is None else self._recent_partners(self._recent, side)
        if self._recent is not None and held is not None:
            partners = BothPartners(kept, held)
            pairs = merged(pairs, self._recent_pairs(self._recent, side, came))
        last = -1
        for new_rows, kept_rows in pairs:
            found = new_rows, kept_rows
            if self._spec.how == "semi" and side == 0:
                # The first partner of each left row.
                first = np.flatnonzero(np.diff(new_rows, prepend=last))
                found, last = (new_rows[first], kept_rows[first]), int(new_rows[-1])
            if self._spec.how != "anti" and len(found[0]):
                yield from self._matched(side, batch, partners, *found)
        if not is_held:
            yield from self._keep(batch, new, block, counts > 0)

    def _matched(
        self,
        side: int,
        batch: pa.RecordBatch,
        partners: Partners,
        new_rows: np.ndarray,
        kept_rows: np.ndarray,
    ) -> Iterator[pa.RecordBatch]:
        """What leaves of pairs."""
        new_ms, kept_ms = int64_column(batch, EVENT_TIME_COLUMN)[new_rows], partners.times(kept_rows)
        bounds = self._spec.bounds
        if bounds is None or bounds.slide_ms is None or bounds.window_ms is None:
            yield self._pairs(side, batch, partners, new_rows, kept_rows, np.maximum(new_ms, kept_ms), {})
            return
        # A pair for each window that both rows are in.
        pairs, firsts_ms = shared_windows(bounds, new_ms, kept_ms)
        for start in range(0, len(pairs), self._context.batch_size):
            part = pairs[start : start + self._context.batch_size]
            first_ms = firsts_ms[start : start + self._context.batch_size]
            ends = (pa.array(first_ms), pa.array(first_ms + bounds.window_ms))
            times_ms = np.maximum(new_ms, kept_ms)[part]
            windows = dict(zip(WINDOW_COLUMNS, ends, strict=True))
            yield self._pairs(side, batch, partners, new_rows[part], kept_rows[part], times_ms, windows)

    def _pairs(
        self,
        side: int,
        batch: pa.RecordBatch,
        partners: Partners,
        new_rows: np.ndarray,
        kept_rows: np.ndarray,
        times_ms: np.ndarray,
        more: dict[str, pa.Array],
    ) -> pa.RecordBatch:
        new = batch.take(pa.array(new_rows))
        made = self._joined.pairs(side, new, partners.columns(kept_rows), times_ms, more)
        return row_watermarks.made_of(batch, new_rows, made)

    def _keep(
        self, batch: pa.RecordBatch, new: NewRows, block: Block, matched: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Keep the new rows that may match others that come; tell of those that cannot, and have not."""
        side = new.side
        is_kept = self._stays(side, new.lower, new.until)
        if self._is_once and side == 0:
            is_kept &= ~matched
        if self._told >> side & 1:
            is_alone = ~is_kept & ~matched
            if is_alone.any():
                alone = batch.filter(pa.array(is_alone))
                yield from self._alone(side, alone, np.maximum(new.times, new.until)[is_alone])
        if is_kept.all():
            rows, taken, told = new, batch, matched
        else:
            index = np.flatnonzero(is_kept)
            rows = NewRows(side, new.keys[index], new.times[index], new.lower[index], new.until[index])
            taken, told = batch.take(pa.array(index)), matched[index]
        if taken.num_rows or block.changed.any():
            self._write(taken, rows, block, told)

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
        if self._recent is not None:
            self._take_new(self._recent)
            self._recent.drop(self._watermark_ms)
            self._move_out(self._recent)

    def _move_out(self, recent: RecentRows) -> None:
        """Make room in memory, a key group at a time: rows that come are not to wait for it."""
        began_s = self._context.clock.monotonic_s()
        if not self._kept.may_have_rows():
            recent.hold_all()
        if began_s >= self._move_out_s:
            found = recent.move_out()
            if found is not None:
                self._store_held(*found)
            took_s = self._context.clock.monotonic_s() - began_s
            self._move_out_s = began_s + (1 + _MOVE_OUT_REST) * took_s

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
        """Kept rows that have not matched, and can no more.

        What is told is known when this returns. Its batches, of which there may be many, are made when they are taken.
        """
        if not self._told:
            return iter(())
        return self._unmatched(block, *block.unmatched(watermark_ms))

    def _unmatched(self, block: Block, starts: np.ndarray, key_rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        sides = block.sides(starts)
        for side in range(2):
            chosen = np.flatnonzero(sides == side)
            for first in range(0, len(chosen), self._context.batch_size):
                part = chosen[first : first + self._context.batch_size]
                yield self._kept_alone(side, block, starts[part], key_rows[part])

    def _partners(self, block: Block, side: int) -> KeptPartners:
        return KeptPartners(block, self._joined.codecs[side], self._kept.columns_at(side))

    def _kept_alone(
        self, side: int, block: Block, starts: np.ndarray, key_rows: np.ndarray
    ) -> pa.RecordBatch:
        keys = self._decoded_keys(block, key_rows)
        kept = self._partners(block, side).columns(starts)
        times_ms = np.maximum(block.times(starts), block.until(side, starts))
        # Rows of a key group that came from elsewhere may have been complete here before.
        times_ms = np.maximum(times_ms, self._watermark_ms)
        return self._joined.of_kept(keys, {side: kept}, times_ms, self._context.clock.now_us())

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
