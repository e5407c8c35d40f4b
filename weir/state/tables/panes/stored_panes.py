"""What the store has of a window table's entries, as far as that is known without a look: bounds by key group."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from weir.state import layout
from weir.state.api import StateBackend, prefix_end
from weir.state.tables.cells.slot_table import SlotTable
from weir.state.tables.cells.stored_cells import StoredCells
from weir.state.tables.panes import window_kernels as kernels
from weir.state.tables.panes.packed_panes import PackedPanes
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, end_and_user_keys
from weir.state.tables.table import IsOver, never
from weir.state.tables.timers.time_first import time_bytes, times_of

#: Panes that have a filter at a time, those whose entries are evicted first.
_FILTERS_MAX = 4
#: Of a filter, for each slot of the cache. A pane may have several times more entries in the store than the cache has
#: slots: with two times more a look is in vain in about one case of fifty, with three times in one of fifteen.
_SLOT_BITS = 16
_WORD_BITS = 64


class PaneFilters:
    """Which entries of a pane the store may have that are not cached: a Bloom filter for each of the latest panes.

    Most keys that come into a pane of sessions are new there, and of a session that may be over the next pane mostly
    has nothing. The store would say so in 1 to 2 µs, after a look into one filter for each of its runs; this is one
    look, in 20 ns. Nothing is ever taken out: a filter goes with its pane.
    """

    def __init__(self) -> None:
        #: None: a pane of which entries were evicted when no further filter was to be had.
        self._filters: dict[int, np.ndarray | None] = {}
        #: Bytes in memory.
        self.nbytes = 0

    def add(self, ends_ms: np.ndarray, hashes: np.ndarray, slots: int) -> None:
        """Note entries that leave a cache of so many slots: their ends (int64) and hashes (uint64)."""
        first_ms = int(ends_ms[0])
        for end_ms in (first_ms,) if (ends_ms == first_ms).all() else np.unique(ends_ms).tolist():
            if end_ms not in self._filters:
                self._filters[end_ms] = self._new(slots)
            words = self._filters[end_ms]
            if words is not None:
                kernels.add_to_filter(np.ascontiguousarray(hashes[ends_ms == end_ms]), words)

    def _new(self, slots: int) -> np.ndarray | None:
        if sum(words is not None for words in self._filters.values()) >= _FILTERS_MAX:
            return None
        # A power of two.
        words = np.zeros(1 << (slots * _SLOT_BITS // _WORD_BITS).bit_length(), dtype=np.uint64)
        self.nbytes += words.nbytes
        return words

    def may_have(self, ends_ms: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Which of these entries may have been noted; bool. All those of panes without a filter but with entries."""
        found = np.zeros(len(ends_ms), dtype=np.bool_)
        if not len(ends_ms):
            return found
        first_ms = int(ends_ms[0])
        for end_ms in (first_ms,) if (ends_ms == first_ms).all() else np.unique(ends_ms).tolist():
            if end_ms not in self._filters:
                continue
            rows = np.flatnonzero(ends_ms == end_ms)
            words = self._filters[end_ms]
            if words is None:
                found[rows] = True
            else:
                of_rows = np.empty(len(rows), dtype=np.bool_)
                kernels.are_in_filter(hashes[rows], words, of_rows)
                found[rows] = of_rows
        return found

    def drop(self, until_ms: int) -> None:
        """Forget panes up to this end: none of their entries is asked for any more."""
        for end_ms in [end_ms for end_ms in self._filters if end_ms <= until_ms]:
            words = self._filters.pop(end_ms)
            self.nbytes -= 0 if words is None else words.nbytes


class StoredPanes(StoredCells):
    """Knows the first and the last end of each key group in the store: later entries are new.

    All arrays are int64, by key group. Called by ``weir.state.tables.panes.window_table``.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        cell_count: int,
    ) -> None:
        """As for :class:`StoredCells`."""
        super().__init__(backend, state_id, slots, max_parallelism, cell_count, 0)
        #: No entry that is in the store alone has an earlier end.
        self.first_ms = np.full(max_parallelism, NEVER_MS, dtype=np.int64)
        #: No entry that is in the store alone has a later end.
        self.last_ms = np.full(max_parallelism, NEVER_MS, dtype=np.int64)
        #: Which later entries than those that a group came with were evicted since.
        self.filters = PaneFilters()
        #: The last end of each group in the store when it came; ``NEVER_MS``: nobody has looked.
        self._came_ms = np.full(max_parallelism, NEVER_MS, dtype=np.int64)
        #: The panes whose entries are not entries of the store.
        self.packed = PackedPanes(backend, state_id, cell_count, max_parallelism)
        #: The largest end of which the store may have entries; ``NOTHING_MS``: it has none.
        self.written_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)
        #: Entries up to here are to be deleted from the store; ``NOTHING_MS``: none.
        self.gone_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)

    def may_have(self, ends_ms: np.ndarray, hashes: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Of which of these entries, which are not cached, the store may have something; bool.

        Args:
            ends_ms: int64.
            hashes: of the entries, uint64.
            groups: their key groups.
        """
        self.check_groups(groups)
        found: np.ndarray = super().may_be_stored(hashes, groups) & (ends_ms <= self.last_ms[groups])
        rows = np.flatnonzero(found & (ends_ms > self._came_ms[groups]))
        if len(rows):
            found[rows] = self.filters.may_have(ends_ms[rows], hashes[rows])
        return found

    @override
    def may_be_stored(self, slots: np.ndarray, groups: np.ndarray) -> np.ndarray:
        return self.may_have(self._slots.times_of(slots), self._slots.hashes[slots], groups)

    def forget_ends(self, groups: np.ndarray) -> None:
        """Of these groups (numbers, or a mask) the store may have anything, until somebody looks."""
        self.first_ms[groups] = self.last_ms[groups] = self._came_ms[groups] = NEVER_MS

    def load(self, new_slots: np.ndarray, groups: np.ndarray) -> int:
        """See :class:`StoredCells`; what is packed counts where there is no entry."""
        found = 0
        rows = np.flatnonzero(self.packed.are_among(self._slots.times_of(new_slots)))
        if len(rows):
            slots = new_slots[rows]
            ends_ms, keys = end_and_user_keys(*self._slots.keys_of(slots))
            at, cells, presence = self.packed.find(ends_ms, groups[rows], keys)
            self._slots.cells[slots[at]], self._slots.presence[slots[at]] = cells, presence
            found = len(at)
        return min(len(new_slots), found + super().load(new_slots, groups))

    def seek(self, group: int) -> None:
        """Note the first and the last end of a group that the store has, and its packed panes."""
        self.first_ms[group], self.last_ms[group] = NEVER_MS, NOTHING_MS
        self._came_ms[group] = NOTHING_MS
        if not self.holds(group):
            return
        self.packed.load(group)
        start, stop = self.range_of(group, NOTHING_MS, NEVER_MS)
        first = next(iter(self._backend.scan(start, stop)), None)
        if first is None:
            return
        last = next(iter(self._backend.scan(start, stop, reverse=True)))
        ends = times_of([first[0], last[0]]).tolist()
        self.first_ms[group], self.last_ms[group] = ends
        self._came_ms[group] = ends[1]
        self.written_ms[group] = ends[1]

    def note_evicted(self, slots: np.ndarray, groups: np.ndarray) -> None:
        """The entries of these slots are from now on in the store alone."""
        ends_ms = self._slots.times_of(slots)
        np.maximum.at(self.last_ms, groups, ends_ms)
        panes = np.flatnonzero(ends_ms != NOTHING_MS)
        if len(panes):
            ends_ms, slots = ends_ms[panes], slots[panes]
            np.minimum.at(self.first_ms, groups[panes], ends_ms)
            self.filters.add(ends_ms, self._slots.hashes[slots], self._slots.capacity)

    def note_written(self, slots: np.ndarray, groups: np.ndarray) -> None:
        """The entries of these slots are in the store."""
        np.maximum.at(self.written_ms, groups, self._slots.times_of(slots))

    def drop(self, owned: np.ndarray, until_ms: int) -> None:
        """Entries of these groups (bool) up to this end are to be deleted."""
        self.filters.drop(until_ms)
        gone = owned & (self.written_ms != NOTHING_MS)
        # Not beyond what was written: later entries may come even when the input has ended.
        self.gone_ms[gone] = np.maximum(self.gone_ms[gone], np.minimum(until_ms, self.written_ms[gone]))
        for group in np.flatnonzero(owned & (self.first_ms <= until_ms)).tolist():
            self.first_ms[group] = NEVER_MS
            if until_ms < self.last_ms[group]:
                start, stop = self.range_of(group, until_ms, NEVER_MS)
                for key, _ in self._backend.scan(start, stop):
                    self.first_ms[group] = times_of([key])[0]
                    break

    def delete_ranges(self, count_max: int | None, is_over: IsOver = never) -> bool:
        """Delete from the store what has fired, of so many groups at most; whether all of it is gone."""
        wanted = np.flatnonzero(self.gone_ms != NOTHING_MS)
        for group in wanted[:count_max].tolist():
            until_ms = int(self.gone_ms[group])
            self._backend.delete_range(*self.range_of(group, NOTHING_MS, until_ms))
            self.gone_ms[group] = NOTHING_MS
            if self.written_ms[group] <= until_ms:
                self.written_ms[group] = NOTHING_MS
            if is_over():
                break
        return not (self.gone_ms != NOTHING_MS).any()

    def delete_pane(self, groups: np.ndarray, end_ms: int) -> None:
        """Delete the entries of a pane that is packed now in these key groups, as far as the store has any."""
        for group in groups[self.written_ms[groups] >= end_ms].tolist():
            self._backend.delete_range(*self.range_of(group, end_ms - 1, end_ms))

    def range_of(self, group: int, after_ms: int, until_ms: int) -> tuple[bytes, bytes]:
        """Bounds of the entries of a group with ``after_ms < end <= until_ms``, in the store."""
        prefix = layout.key_prefix(group, self._state_id)
        stop = prefix_end(prefix) if until_ms >= NEVER_MS else prefix + time_bytes(until_ms + 1)
        assert stop is not None, "a prefix ends with the length of an empty namespace, 0"
        return prefix + time_bytes(after_ms + 1), stop
