"""The table of windows: panes that are dropped, packed, flushed, and whose key groups come and go.

``weir.state.tables.panes.pane_table`` has their entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from typing_extensions import override

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.tables.cached_entries import CachedPart
from weir.state.tables.capture import Capture
from weir.state.tables.cells import accumulators
from weir.state.tables.panes.pane_table import MARKED, PaneTable
from weir.state.tables.panes.window_entries import (
    NEVER_MS,
    NOTHING_MS,
    end_and_user_keys,
    entry_keys,
    place_keys,
)
from weir.state.tables.table import IsOver, never
from weir.state.tables.timers.time_first import times_bytes
from weir.types import StoreStats

#: Panes of fewer entries are not packed: their rows would be mostly headers.
PACKED_ENTRIES_MIN = 4_096
#: Ranges that are deleted in one call of :meth:`WindowTable.flush_part`, at most.
_RANGES_MAX = 256


class WindowTable(PaneTable):
    """Accumulators of panes. Not thread-safe: the subtask's thread calls it."""

    # --- questions from outside ---

    def fired_and_gone(self) -> tuple[np.ndarray, np.ndarray]:
        """By key group: up to where windows have fired, and up to which end panes are to be deleted; copies."""
        self._look_quietly()
        return self.places_ms.copy(), self._panes.gone_ms.copy()

    def _look_quietly(self) -> None:
        """As :meth:`look`; the operator is to find out by itself that groups are new here, and what is due of them."""
        if self._has_unknown:
            self.look()
            self._has_unknown = True

    def bounds_of(self, group: int) -> tuple[int, int, int] | None:
        """First and last end of the panes that a key group may have, and up to where its windows have fired.

        None: it has no pane.
        """
        self._look_quietly()
        first_ms = max(self._first_ms, int(self._panes.gone_ms[group]) + 1)
        last_ms = max(self._last_ms, int(self._panes.written_ms[group]), self._packed.last_ms())
        return None if first_ms > last_ms else (first_ms, last_ms, int(self.places_ms[group]))

    def entries_of(
        self, group: int, key: bytes, ends_ms: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one key, in the panes with these ends (int64): ends, cells and presence of those that are there; copies.

        Nothing is cached for it; what is not cached is read from the store, if that may have it.
        """
        count = len(ends_ms)
        offsets = np.arange(count + 1, dtype=np.int64) * len(key)
        column = weir_keys.KeyColumn(np.frombuffer(key * count, dtype=np.uint8), offsets)
        hashes = np.full(count, weir_keys.hash_key(key), dtype=np.uint64)
        slots, missing = self._table.probe(*entry_keys(ends_ms, hashes, column), changes=False)
        self._latest_read = None
        cells, presence = self._table.cells[slots], self._table.presence[slots]
        there = slots >= 0
        if missing:
            groups = np.full(count, group, dtype=np.uint16)
            absent = np.flatnonzero(~there)
            rows, *found = self._packed.find(
                ends_ms[absent], groups[absent], weir_keys.select_keys(column, absent)
            )
            rows = absent[rows]
            cells[rows], presence[rows] = found
            there[rows] = True
            self._panes.check_groups(groups[:1])
            known_ms = int(self._panes.last_ms[group]) if self._panes.holds(group) else NOTHING_MS
            absent = np.flatnonzero(~there & (ends_ms <= known_ms))
            if len(absent):
                prefix = layout.key_prefix(group, self.state_id)
                stored = self._backend.get_many([prefix + end + key for end in times_bytes(ends_ms[absent])])
                rows = absent[[data is not None for data in stored]]
                values = [data for data in stored if data is not None]
                cells[rows], presence[rows] = accumulators.decode_values(values, self._cell_count)
                there[rows] = True
        there &= ends_ms > self._panes.gone_ms[group]
        return ends_ms[there], cells[there], presence[there]

    def drop(self, until_ms: int) -> None:
        """Forget all entries up to this end; the store loses them when it is flushed."""
        if until_ms < self.first_ms():
            return
        slots, cached_ms = self._table.slots_between(NOTHING_MS, until_ms, NEVER_MS)
        if len(slots):
            self._latest_read = None
            self._table.remove(slots)
        self._panes.drop(self._owned, until_ms)
        self._packed.drop(until_ms, self._owned)
        stored_ms = int(self._panes.first_ms[self._owned].min(initial=NEVER_MS))
        self._first_ms = min(cached_ms, stored_ms, self._packed.first_ms())

    def pack(self, until_ms: int) -> None:
        """Pack panes up to this end, which hardly get any more rows, and write them: a millisecond a pane and more.

        Not while a write would have to wait, or somebody may have a copy of what is cached (see :attr:`has_to_pack`);
        and not the entries of groups that have some of the pane in the store alone.

        Raises:
            StateError: the store cannot be read or written.
        """
        self.has_to_pack = self._writes.has_to_wait() or bool((self._copied >= 0).any())
        if self.has_to_pack or until_ms <= self._packed_to_ms:
            return
        self._writes.settle()
        slots, _ = self._table.slots_between(self._packed_to_ms, until_ms, NEVER_MS)
        groups = self._groups(slots)
        kept = self._owned[groups]
        slots, groups = slots[kept], groups[kept]
        ends_ms = self._table.times_of(slots)
        found_ms, counts = np.unique(ends_ms, return_counts=True)
        for end_ms in found_ms[counts >= PACKED_ENTRIES_MIN].tolist():
            is_whole = ~((self._panes.first_ms <= end_ms) & (end_ms <= self._panes.last_ms))
            rows = np.flatnonzero((ends_ms == end_ms) & is_whole[groups])
            if len(rows) >= PACKED_ENTRIES_MIN and end_ms not in self._packed:
                self._pack(end_ms, slots[rows], groups[rows])
        self._packed_to_ms = until_ms
        self._limit_packed()

    def _pack(self, end_ms: int, slots: np.ndarray, groups: np.ndarray) -> None:
        """Pack all entries of a pane in some key groups."""
        _, keys = end_and_user_keys(*self._table.keys_of(slots))
        arrays = groups, self._table.cells[slots], self._table.presence[slots]
        self._packed.pack(end_ms, keys, *arrays)
        groups = np.unique(groups)
        # An entry counts instead of what is packed, so none may stay behind.
        self._panes.delete_pane(groups, end_ms)
        self._panes.note_stored(groups)
        self._latest_read = None
        with self._table.change():
            self._table.remove(slots)

    @override
    def stats(self) -> StoreStats:
        stats = super().stats()
        return replace(
            stats, memory_bytes=stats.memory_bytes + self._packed.bytes + self._panes.filters.nbytes
        )

    def advance(self, until_ms: int) -> None:
        """The windows of all groups have fired up to this time; of a group that is further nothing changes.

        Places that had no mark get one.
        """
        self.look()
        if self.unmarked.any():
            self._noted_places_ms[self.unmarked] = NEVER_MS
            self.unmarked[:] = False
        np.maximum(self.places_ms, until_ms, out=self.places_ms, where=self._owned)

    # --- life cycle ---

    @override
    def flush(self) -> None:
        self._note_places(self._owned)
        super().flush()
        self._delete_ranges(None)
        self._packed.delete_gone()

    @override
    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        if self._writes.may_begin_part():
            self._note_places(self._owned)
        if not super().flush_part(share, is_over):
            return False
        return self._delete_ranges(_RANGES_MAX, is_over) and self._packed.delete_gone(is_over)

    def _delete_ranges(self, count_max: int | None, is_over: IsOver = never) -> bool:
        if (self._panes.gone_ms != NOTHING_MS).any():
            self.rearranged += 1
        return self._panes.delete_ranges(count_max, is_over)

    def capture(self) -> Capture | None:
        """See :class:`StateTable`. Ranges that are to be deleted stay: nobody looks before a group's place."""
        self._note_places(self._owned)
        return super().capture()

    @override
    def flush_groups(self, groups: Iterable[int]) -> None:
        listed = list(groups)
        self._note_places(self._wanted(listed))
        super().flush_groups(listed)

    @override
    def release_groups(self, groups: Iterable[int]) -> None:
        wanted = self._wanted(groups)
        listed = np.flatnonzero(wanted).tolist()
        self._note_places(wanted)
        super().release_groups(listed)
        self.ownership += 1
        self._owned &= ~wanted
        self._packed.keep_groups(self._owned)
        self._unknown &= ~wanted
        self.unmarked &= ~wanted
        self._has_unknown = bool(self._unknown.any())
        for values in (self.places_ms, self._noted_places_ms, self._panes.gone_ms, self._panes.written_ms):
            values[wanted] = NOTHING_MS
        self._panes.forget_ends(wanted)

    @override
    def adopt_groups(self, groups: Iterable[int]) -> None:
        wanted = self._wanted(groups)
        super().adopt_groups(np.flatnonzero(wanted).tolist())
        self.ownership += 1
        self._owned |= wanted
        self._unknown |= wanted
        self._has_unknown = True
        self.places_ms[wanted] = self._noted_places_ms[wanted] = NOTHING_MS
        # The place is read as any other entry.
        self._panes.forget_ends(wanted)

    def copy_groups(self, groups: Iterable[int], count_max: int, bytes_max: int) -> CachedPart:
        """See :class:`StateTable`. The place is part of the copy: the new owner looks for it nowhere else."""
        listed = list(groups)
        self._note_places(self._wanted(listed))
        return super().copy_groups(listed, count_max, bytes_max)

    @override
    def changes_since_copy(self, groups: Iterable[int]) -> CachedPart:
        listed = list(groups)
        self._note_places(self._wanted(listed))
        return super().changes_since_copy(listed)

    # --- internals ---

    def _note_places(self, wanted: np.ndarray) -> None:
        """Bring the places of these groups into their entries."""
        moved = wanted & self._owned & (self.places_ms != self._noted_places_ms)
        groups = np.flatnonzero(moved).astype(np.uint16)
        if not len(groups):
            return
        cells = np.zeros((len(groups), self._cell_count), dtype=np.int64)
        cells[:, 0] = self.places_ms[groups]
        presence = np.zeros((len(groups), self.presence.shape[1]), dtype=np.uint8)
        presence[:, 0] = 1
        if self._marks_places:
            marked = ~self.unmarked[groups]
            cells[marked, 1] = 1
            presence[marked, 0] |= MARKED
        rows = np.arange(len(groups), dtype=np.int64)
        self.write(*place_keys(groups, self._max_parallelism), rows, cells, presence)
        self._noted_places_ms[groups] = self.places_ms[groups]
