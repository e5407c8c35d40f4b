"""The operator of joins by key that yields pairs of rows, with and without bounds in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from weir.operators.joins import join_kernels as kernels
from weir.operators.joins.held_rows import HeldRows
from weir.operators.joins.join_operator import JoinOperator
from weir.operators.joins.join_times import row_bounds, shared_windows
from weir.operators.joins.kept_block import Block
from weir.operators.joins.kept_rows import KeptRows
from weir.operators.joins.new_rows import NewRows
from weir.operators.joins.partners import BothPartners, Pairs, Partners, RecentPartners, merged
from weir.operators.joins.recent_rows import RecentRows
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, int64_column
from weir.specs import JoinSpec
from weir.specs.joins import RECENT_STATE, WINDOW_COLUMNS
from weir.state.handles.block import Keys
from weir.state.tables.opened import OperatorTables

#: What a subtask holds in memory at most: a new owner of its key groups reads that before it goes on.
_HELD_BYTES_MAX = 48 << 20
#: After rows were moved from memory to the store: this many times as long as it took is for others.
_MOVE_OUT_REST = 9
#: Of rows whose columns are not asked for.
_NO_COLUMNS = (np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64))


class PairJoinOperator(JoinOperator):
    """Keeps the rows of both sides by key as long as they may match, and yields a pair when its later row comes.

    The event time of a pair is the later one; of a row without a partner the last one at which one could have come.
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec)
        #: A left row leaves with its first match.
        self._is_once = spec.how in ("semi", "anti")
        #: Of a join that holds rows in memory.
        self._recent: RecentRows | None = None
        #: Monotonic second at which more of its rows may be moved to the store.
        self._move_out_s = 0.0

    def _open_rows(self, tables: OperatorTables) -> KeptRows:
        if RECENT_STATE in self._spec.state_names:
            # Memory and the cache of entries share a bound.
            held_bytes = min(tables.cache_bytes // 2, _HELD_BYTES_MAX)
            held = tables.held(RECENT_STATE, held_bytes)
            self._recent = RecentRows(held, self._context.max_parallelism)
            tables = replace(tables, cache_bytes=tables.cache_bytes - held_bytes)
        return super()._open_rows(tables)

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

    def on_watermark(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Drop what can match no more, also in memory; tell of what has not matched."""
        yield from super().on_watermark(time_ms)
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

    def _complete(self, block: Block, watermark_ms: int) -> Iterator[pa.RecordBatch]:
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

    def _kept_alone(
        self, side: int, block: Block, starts: np.ndarray, key_rows: np.ndarray
    ) -> pa.RecordBatch:
        keys = self._decoded_keys(block, key_rows)
        kept = self._partners(block, side).columns(starts)
        times_ms = np.maximum(block.times(starts), block.until(side, starts))
        # Rows of a key group that came from elsewhere may have been complete here before.
        times_ms = np.maximum(times_ms, self._watermark_ms)
        return self._joined.of_kept(keys, {side: kept}, times_ms, self._context.clock.now_us())
