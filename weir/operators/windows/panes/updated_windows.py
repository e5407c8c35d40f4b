"""The operator of windows that tell their results early, or again when late rows have come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.keys.division import row_hashes
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.early_times import EarlyTimes
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.told import ToldCells, interleaved
from weir.operators.windows.panes.told_windows import ToldWindows, joined_windows
from weir.operators.windows.panes.window_aggregates import WindowAggregateOperator
from weir.rows import fired_rows
from weir.rows.changes import INSERT, UPDATE_AFTER, UPDATE_BEFORE
from weir.rows.records import WATERMARK_MAX_MS
from weir.rows.row_watermarks import TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs.windows import WindowAggregateSpec
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries, entry_keys

_MIX = np.uint64(0x9E3779B97F4A7C15)


class UpdatedWindowOperator(WindowAggregateOperator):
    """Windows with several results. Late rows within the allowed lateness are told one by one.

    What has been told is part of each entry's state (``told``), so a job that starts again goes on from there. Of
    windows of several panes each has such a state; which windows have it, follows.
    """

    def __init__(self, spec: WindowAggregateSpec) -> None:
        super().__init__(spec)
        self._updates = spec.updates
        early = spec.updates.early
        self._rows_max = None if early is None else early.rows
        #: Windows are told after certain rows of theirs.
        self._goes_by_rows = early is not None and early.interval_ms is None
        #: Numbers of the rows that are being processed, and of those of them that are taken.
        self._numbers = self._taken_numbers = np.empty(0, dtype=np.int64)
        #: What is told after rows of the batch, each with the number of its row; None: it leaves at once.
        self._collected: list[tuple[np.ndarray, ToldWindows]] | None = None
        self._times_told = EarlyTimes(early)
        #: Of the rows that are being taken, which belong to windows that have fired; bool.
        self._is_closed = np.empty(0, dtype=np.bool_)
        #: Entries that late rows have changed, as :func:`_identities`.
        self._changed: list[np.ndarray] = []
        self._changed_groups: list[np.ndarray] = []
        #: Entries that were told, to be written when all have been.
        self._rewritten: list[WindowEntries] = []

    #: What a late row changes is told again, after windows that were due before it.
    _cuts_when_late = TimeCuts.LATE | TimeCuts.EACH_LATE

    def due_ms(self) -> int:
        """Return when windows are due, and when to tell what is not complete."""
        return min(super().due_ms(), self._times_told.due_ms(self._watermark_ms))

    def _make_folds(self) -> Folds:
        self._told = ToldCells(self._spec)
        return self._told.folds

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # What was restored may not have been told.
        self._times_told.plan(self._clock.now_us())

    # --- rows come in ---

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Process a batch; also tell what late rows change, and what triggers say."""
        if self._goes_by_rows:
            yield from self._in_rounds(batch)
        else:
            yield from super().process(batch)
        if self._changed:
            yield from self._late_windows()
        self._times_told.plan(self._clock.now_us())

    def _in_rounds(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Tell each window as of the row that makes it told, in the order of these rows."""
        collected = self._collected = []
        for rows in self._rounds(batch):
            self._numbers = np.arange(batch.num_rows) if rows is None else rows
            yield from super().process(batch if rows is None else batch.take(pa.array(rows)))
        self._collected = None
        if collected:
            order = np.argsort(np.concatenate([numbers for numbers, _ in collected]), kind="stable")
            yield from self._made(joined_windows([windows for _, windows in collected]).part(order))

    def _rounds(self, batch: pa.RecordBatch) -> Iterator[np.ndarray | None]:
        """Numbers of the rows of a batch, in parts in each of which no window is told twice; None: all of them."""
        table = self.table
        table.look()
        hits = None
        if self._rows_max is None:
            hits = self._told.hits_of(batch)
            if not hits.any():
                yield None
                return
        keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        hashes, ends_ms = row_hashes(batch, keys), np.empty(batch.num_rows, dtype=np.int64)
        self._find_ends(self._times(batch), hashes, ends_ms)
        live = np.flatnonzero(ends_ms != NOTHING_MS)
        mixed, data, offsets = entry_keys(ends_ms[live], hashes[live], weir_keys.select_keys(keys, live))
        entries = weir_keys.KeyColumn(data, offsets)
        firsts, _, position = weir_keys.distinct_keys(mixed, entries)
        order = np.argsort(position, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(position, minlength=len(firsts)))])[:-1]
        rounds = np.zeros(batch.num_rows, dtype=np.int64)
        if hits is None:
            distinct = weir_keys.select_keys(entries, firsts)
            cells, _ = table.read(mixed[firsts], distinct.data, distinct.offsets)
            pending = cells[:, self._told.rows] - cells[:, self._told.told]
            occurrence = np.empty(len(live), dtype=np.int64)
            occurrence[order] = np.arange(len(live)) - starts[position[order]]
            rounds[live] = (pending[position] + occurrence) // self._rows_max
        elif len(live):
            # How many rows before each one make its window told.
            is_hit = hits[live][order].astype(np.int64)
            before = np.cumsum(is_hit) - is_hit
            rounds[live[order]] = before - before[starts][position[order]]
        if not rounds.any():
            yield None
            return
        by_round = np.argsort(rounds, kind="stable")
        yield from np.split(by_round, np.flatnonzero(np.diff(rounds[by_round])) + 1)

    def _find_ends(self, times_ms: np.ndarray, hashes: np.ndarray, ends_ms: np.ndarray) -> int:
        table = self.table
        places_ms = table.places_ms
        if not self._lateness_ms:
            late = super()._find_ends(times_ms, hashes, ends_ms)
        else:
            late = self._ends(times_ms, hashes, self._closed_until(places_ms), ends_ms)
        taken = ends_ms != NOTHING_MS
        groups = weir_keys.key_groups(hashes[taken], len(places_ms))
        self._is_closed = ends_ms[taken] <= places_ms[groups]
        if self._collected is not None and len(self._numbers) == len(taken):
            self._taken_numbers = self._numbers[taken]
        return late

    def _closed_until(self, places_ms: np.ndarray) -> np.ndarray:
        """Windows that end up to here take no more rows."""
        return np.where(places_ms == NOTHING_MS, NOTHING_MS, places_ms - self._lateness_ms)

    def _dead_until(self, fired_ms: int) -> int:
        if fired_ms == NOTHING_MS:
            return NOTHING_MS
        return super()._dead_until(fired_ms - self._lateness_ms)

    def _taken(self, start: int, stop: int, slots: np.ndarray) -> Iterable[pa.RecordBatch]:
        is_closed = self._is_closed[start:stop]
        if self._lateness_ms and is_closed.any():
            late = np.unique(slots[is_closed])
            if self._panes.is_single:
                yield from self._tell_slots(late, self._lasts(start, stop, slots, late))
            else:
                self._note_late(self.table.entries_at(late))
        if self._goes_by_rows:
            rows, slots = slots, np.unique(slots[~is_closed])
            cells, told = self.table.cells, self._told
            if self._rows_max is not None:
                is_due = cells[slots, told.rows] - cells[slots, told.told] >= self._rows_max
            else:
                is_due = cells[slots, told.hits] > 0
            due = slots[is_due]
            yield from self._tell_slots(due, self._lasts(start, stop, rows, due))

    def _lasts(self, start: int, stop: int, slots: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """The number of the last row at each of some slots, which are ascending."""
        if self._collected is None:
            return wanted
        found, lasts = np.unique(slots[::-1], return_index=True)
        numbers: np.ndarray = self._taken_numbers[start:stop][::-1][lasts[np.searchsorted(found, wanted)]]
        return numbers

    def _note_late(self, entries: WindowEntries) -> None:
        """Late rows have changed these: their windows are told when the batch has been taken in."""
        self._changed.append(_identities(entries))
        self._changed_groups.append(entries.groups)

    def _tell_slots(self, slots: np.ndarray, numbers: np.ndarray) -> Iterator[pa.RecordBatch]:
        if not len(slots):
            return
        table = self.table
        entries = table.entries_at(slots)
        yield from self._tell(entries, numbers)
        if self._told.is_kept:
            cells = Cells(entries.cells, entries.presence)
            self._told.note_told(cells)
            table.cells[slots], table.presence[slots] = cells

    def _late_windows(self) -> Iterator[pa.RecordBatch]:
        """Windows of several panes that have fired, and have changed since."""
        table, changed = self.table, np.concatenate(self._changed)
        self._changed.clear()
        places_ms = table.places_ms
        closed_ms = self._closed_until(places_ms)
        after_ms = self._dead_until(table.fired_ms())
        groups = np.unique(np.concatenate(self._changed_groups))
        self._changed_groups.clear()
        for entries in table.entries(after_ms, int(places_ms.max()), groups):
            is_changed = np.isin(_identities(entries), changed)
            if is_changed.any():
                bounds_ms = closed_ms[entries.groups], places_ms[entries.groups]
                yield from self._windows_of(entries, is_changed, *bounds_ms)

    # --- results ---

    def _leave_with(self, windows: ToldWindows, numbers: np.ndarray | None) -> Iterator[pa.RecordBatch]:
        """Results; ``numbers``: of the rows after which they are told, None: of none."""
        if self._collected is None or numbers is None:
            yield from self._made(windows)
        elif len(numbers):
            # Entries are changed when they have been told.
            cells, presence = windows.cells.copy(), windows.presence.copy()
            self._collected.append((numbers, windows._replace(cells=cells, presence=presence)))

    def _tell(self, entries: WindowEntries, numbers: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
        """Results of entries each of which is a window."""
        cells = Cells(entries.cells, entries.presence)
        if not self._parts.single_is_whole:
            cells = Cells(entries.cells.copy(), entries.presence.copy())
            self._parts.fill(self._parts.load(entries), np.arange(len(entries), dtype=np.int64), cells)
        if self._told.is_global:
            starts_ms = cells.integers[:, self._told.first].copy()
            ends_ms = cells.integers[:, self._told.last] + 1
        else:
            starts_ms, ends_ms = entries.ends_ms - self._panes.size_ms, entries.ends_ms
        keys = weir_keys.decode_keys(entries.keys, self._key_types)
        if self._updates.results != "changelog":
            yield from self._leave_with(ToldWindows(keys, starts_ms, ends_ms, *cells), numbers)
            return
        told_before = cells.integers[:, self._told.told] > 0
        changed = np.flatnonzero(self._told.has_more(cells.integers))
        before = np.flatnonzero(told_before[changed])
        order = interleaved(before, len(changed))
        rows = np.concatenate([changed[before], changed])[order]
        is_before = order < len(before)
        old = self._told.before(cells)
        chosen = Cells(
            np.where(is_before[:, None], old.integers[rows], cells.integers[rows]),
            np.where(is_before[:, None], old.presence[rows], cells.presence[rows]),
        )
        if self._told.is_global:
            starts_ms, ends_ms = (
                chosen.integers[:, self._told.first].copy(),
                chosen.integers[:, self._told.last] + 1,
            )
        else:
            starts_ms, ends_ms = starts_ms[rows], ends_ms[rows]
        kinds = np.where(is_before, 1, np.where(told_before[rows], 2, 0)).astype(np.int8)
        changes = pa.array([INSERT, UPDATE_BEFORE, UPDATE_AFTER], pa.string()).take(pa.array(kinds))
        taken = [key.take(pa.array(rows)) for key in keys]
        told = ToldWindows(taken, starts_ms, ends_ms, *chosen, changes=changes)
        yield from self._leave_with(told, None if numbers is None else numbers[rows])

    def _single(self, entries: WindowEntries, places_ms: np.ndarray) -> Iterator[pa.RecordBatch]:
        if not self._told.is_kept:
            yield from super()._single(entries, places_ms)
            return
        cells, told = entries.cells, self._told
        is_new = entries.ends_ms > places_ms
        accumulates = self._updates.results == "accumulating"
        is_new &= cells[:, told.rows] > 0 if accumulates else told.has_more(cells)
        rows = np.flatnonzero(is_new)
        part = entries.part(rows[np.argsort(entries.ends_ms[rows], kind="stable")])
        yield from self._tell(part)
        if self._lateness_ms:
            self._note_told(part)

    def _note_told(self, entries: WindowEntries) -> None:
        self._told.note_told(Cells(entries.cells, entries.presence))
        self._rewritten.append(entries)

    def _rewrite(self, after_ms: int) -> None:
        """Write what was told of entries, unless they are gone."""
        for entries in self._rewritten:
            rows = np.flatnonzero(entries.ends_ms > after_ms)
            kept = entries if len(rows) == len(entries) else entries.part(rows)
            self.table.put(kept.ends_ms, kept.keys, kept.cells, kept.presence)
        self._rewritten.clear()

    # --- windows fire ---

    def _fire(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        yield from super()._fire(until_ms)
        if until_ms == WATERMARK_MAX_MS:
            self._rewritten.clear()
            if self._lateness_ms and self.table.fired_ms() not in (NOTHING_MS, NEVER_MS):
                # Their rows are gone.
                until_ms = int(self.table.places_ms.max()) + self._lateness_ms
                self.table.advance(until_ms)
                self._parts.advance(until_ms)
        else:
            self._rewrite(self._dead_until(until_ms))

    def _tell_early(self, groups: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
        """What windows of these key groups (None: of all) have that are not complete, if it is more than was told."""
        table = self.table
        places_ms, fired_ms = table.places_ms, table.fired_ms()
        after_ms = fired_ms
        if not self._panes.is_single and fired_ms != NOTHING_MS:
            after_ms = super()._dead_until(fired_ms)
        for entries in table.entries(after_ms, NEVER_MS, groups):
            more = self._told.has_more(entries.cells)
            if self._panes.is_single:
                rows = np.flatnonzero(more & (entries.ends_ms > places_ms[entries.groups]))
                # Windows of a key leave in order, wherever its entries lie.
                part = entries.part(rows[np.argsort(entries.ends_ms[rows], kind="stable")])
                if len(part):
                    yield from self._tell(part)
            else:
                forever = np.full(len(entries), NEVER_MS - 1, dtype=np.int64)
                if more.any():
                    yield from self._windows_of(entries, more, places_ms[entries.groups], forever)
                part = entries.part(np.flatnonzero(more))
            self._note_told(part)
        self._rewrite(NOTHING_MS)

    # --- early results by time ---

    @override
    def due_us(self) -> int:
        return self._times_told.due_us(super().due_us())

    def on_time(self) -> Iterator[pa.RecordBatch]:
        """Fire what is due, then tell what is not complete."""
        has_new = self.table.has_new_groups
        yield from super().on_time()
        if self._times_told.is_due(self._clock.now_us()):
            yield from self._tell_early()
        if has_new:
            self._times_told.plan(self._clock.now_us())

    def _passed(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Fire, and tell what is not complete where the watermark comes to the next multiple of the interval."""
        self.table.look()
        # A key group that comes from a checkpoint or from another subtask knows how far it was told: its place.
        before_ms = np.maximum(self.table.places_ms, self._watermark_ms)
        for moment_ms, groups in self._times_told.moments(before_ms, max(time_ms, self._watermark_ms)):
            yield from super()._passed(moment_ms)
            for made in self._tell_early(groups):
                yield fired_rows.fired(made, moment_ms - 1) if self._cuts & TimeCuts.DUE else made
        yield from super()._passed(time_ms)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The input has ended: windows are complete; of those that never end, what is left is told."""
        if self._told.is_global:
            yield from self._tell_early()
        else:
            yield from super().finish()


def _identities(entries: WindowEntries) -> np.ndarray:
    """A number for each entry; that of another one is hardly ever the same, and would only tell it once more."""
    ends: np.ndarray = entries.ends_ms.view(np.uint64)
    return weir_keys.hash_keys(entries.keys) ^ (ends * _MIX)
