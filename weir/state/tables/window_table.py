"""Accumulators of windows over a state backend: a cell table whose entries lie in the order of time.

An entry is ``end of its pane, 8 bytes | user key`` (``weir.state.tables.time_first`` has the bytes of the end), and its
key group that of the user key. Up to where the windows of a key group have fired is its *place*: the first cell of the
entry with the smallest time and the group's number (2 bytes, big endian) as user key. So the place goes wherever the
group's state goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from weir import keys as weir_keys
from weir.state import layout
from weir.state.api import StateBackend, prefix_end
from weir.state.tables import accumulators
from weir.state.tables import window_kernels as kernels
from weir.state.tables.cached_entries import CachedEntries
from weir.state.tables.capture import Capture
from weir.state.tables.cells import CellTable
from weir.state.tables.slot_table import SlotTable
from weir.state.tables.stored_cells import StoredCells
from weir.state.tables.table import EntryOrder, IsOver, never
from weir.state.tables.time_first import TIME_STOP, time_bytes, times_of, user_key_of

#: The end of no pane: later than all.
NEVER_MS = 2**63 - 1
#: Nothing has fired; also the time of the entry that is a group's place.
NOTHING_MS = -(2**63)
#: Ranges that are deleted in one call of :meth:`WindowTable.flush_part`, at most.
_RANGES_MAX = 256


@dataclass(frozen=True, slots=True, eq=False)
class WindowEntries:
    """Entries of some key groups, in no order."""

    #: End of the pane, ms; int64, shape (entries,).
    ends_ms: np.ndarray
    #: User keys.
    keys: weir_keys.KeyColumn
    #: Key group; uint16, shape (entries,).
    groups: np.ndarray
    #: int64, shape (entries, cells).
    cells: np.ndarray
    #: uint8, shape (entries, presence bytes).
    presence: np.ndarray

    def __len__(self) -> int:
        return len(self.ends_ms)

    def part(self, rows: np.ndarray) -> WindowEntries:
        """Those of these numbers (int64)."""
        return WindowEntries(
            self.ends_ms[rows],
            weir_keys.select_keys(self.keys, rows),
            self.groups[rows],
            self.cells[rows],
            self.presence[rows],
        )


def joined(blocks: Iterable[WindowEntries]) -> WindowEntries | None:
    """All entries of blocks in the order of their ends; None: there are none."""
    parts = [block for block in blocks if len(block)]
    if not parts:
        return None
    whole = parts[0] if len(parts) == 1 else _concatenated(parts)
    if (whole.ends_ms[1:] >= whole.ends_ms[:-1]).all():
        return whole
    return whole.part(np.argsort(whole.ends_ms, kind="stable"))


def _concatenated(parts: list[WindowEntries]) -> WindowEntries:
    lengths = np.concatenate([np.diff(part.keys.offsets) for part in parts])
    data = [part.keys.data[int(part.keys.offsets[0]) : int(part.keys.offsets[-1])] for part in parts]
    return WindowEntries(
        np.concatenate([part.ends_ms for part in parts]),
        weir_keys.KeyColumn(np.concatenate(data), _offsets(lengths)),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.cells for part in parts]),
        np.concatenate([part.presence for part in parts]),
    )


class WindowTable(CellTable):
    """Accumulators of panes. Not thread-safe: the subtask's thread calls it."""

    order: ClassVar[EntryOrder] = "time"

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        cell_count: int,
        bytes_max: int,
        max_parallelism: int,
        groups: Iterable[int],
    ) -> None:
        """``groups`` are owned from the beginning; the rest as for :class:`CellTable`."""
        super().__init__(backend, state_id, cell_count, bytes_max, max_parallelism)
        self._backend = backend
        #: By key group: no entry that is in the store alone has a later end.
        self._stored_last_ms = np.full(max_parallelism, NEVER_MS, dtype=np.int64)
        self._stored_panes = _StoredPanes(
            backend, state_id, self._table, max_parallelism, cell_count, self._stored_last_ms
        )
        self._stored = self._stored_panes
        self._writes.on_write = self._note_written
        #: By key group: up to where its windows have fired, and what the table's entry says of it.
        self.places_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)
        self._noted_places_ms = self.places_ms.copy()
        self._owned = self._wanted(groups)
        #: Groups of whose entries in the store nothing is known.
        self._unknown = self._owned.copy()
        self._has_unknown = bool(self._unknown.any())
        #: By key group: no entry that is in the store alone has an earlier end.
        self._stored_first_ms = np.full(max_parallelism, NEVER_MS, dtype=np.int64)
        #: By key group: the largest end of which the store may have entries; ``NOTHING_MS``: it has none.
        self._written_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)
        #: By key group: entries up to here are to be deleted from the store; ``NOTHING_MS``: none.
        self._gone_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)
        self._first_ms = NEVER_MS
        #: Grows whenever groups come or go.
        self.ownership = 0

    # --- entries ---

    def look(self) -> None:
        """Find out where the groups stand that are new here. Costs a few seeks for each of them."""
        if not self._has_unknown:
            return
        self._has_unknown = False
        groups = np.flatnonzero(self._unknown).astype(np.uint16)
        self._unknown[:] = False
        self._stored_first_ms[groups] = NEVER_MS
        # Until the places are read.
        self._stored_last_ms[groups] = NEVER_MS
        self._stored.check_groups(groups)
        cells, presence = self.read(*_place_keys(groups, self._max_parallelism))
        found = presence[:, 0] & 1 != 0
        self.places_ms[groups] = np.where(found, cells[:, 0], NOTHING_MS)
        self._noted_places_ms[groups] = self.places_ms[groups]
        for group in groups.tolist():
            self._seek(group)
        self._first_ms = self._least_ms()

    def _seek(self, group: int) -> None:
        """Note the first and the last end of a group that the store has."""
        self._stored_first_ms[group], self._stored_last_ms[group] = NEVER_MS, NOTHING_MS
        if not self._stored.holds(group):
            return
        start, stop = self._range(group, NOTHING_MS, NEVER_MS)
        first = next(iter(self._backend.scan(start, stop)), None)
        if first is None:
            return
        last = next(iter(self._backend.scan(start, stop, reverse=True)))
        ends = times_of([first[0], last[0]]).tolist()
        self._stored_first_ms[group], self._stored_last_ms[group] = ends
        self._written_ms[group] = ends[1]

    def _least_ms(self) -> int:
        """The smallest end of all entries."""
        stored_ms = int(self._stored_first_ms[self._owned].min(initial=NEVER_MS))
        _, first_ms = self._table.slots_between(NOTHING_MS, NOTHING_MS, stored_ms)
        return first_ms

    def first_ms(self) -> int:
        """No entry has an earlier end; ``NEVER_MS`` if there is none."""
        self.look()
        return self._first_ms

    def fired_ms(self) -> int:
        """The windows of all owned groups have fired up to this time, or further."""
        return int(self.places_ms[self._owned].min(initial=NEVER_MS))

    @property
    def fired_alike(self) -> bool:
        """Whether the windows of all owned groups have fired up to one time."""
        places_ms = self.places_ms[self._owned]
        return not len(places_ms) or bool((places_ms == places_ms[0]).all())

    @property
    def has_new_groups(self) -> bool:
        """Whether there are groups that nobody has looked at."""
        return self._has_unknown

    def update(
        self, ends_ms: np.ndarray, hashes: np.ndarray, keys: weir_keys.KeyColumn
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Slots of the entries of rows, all of them changed; see :meth:`CellTable.pieces`.

        Args:
            ends_ms: end of each row's pane, int64.
            hashes: of the user keys.
            keys: user keys of the rows.

        Raises:
            StateError: as ``pieces``.
        """
        self.look()
        if not len(ends_ms):
            return iter(())
        self._first_ms = min(self._first_ms, int(ends_ms.min()))
        return self.pieces(*entry_keys(ends_ms, hashes, keys))

    def put(
        self,
        ends_ms: np.ndarray,
        keys: weir_keys.KeyColumn,
        cells: np.ndarray,
        presence: np.ndarray,
        hashes: np.ndarray | None = None,
    ) -> None:
        """Set entries, none of them twice; ``hashes``: of the user keys, if they are not those of their bytes.

        Raises:
            StateError: as ``pieces``.
        """
        if len(ends_ms):
            hashes = weir_keys.hash_keys(keys) if hashes is None else hashes
            arrays = entry_keys(ends_ms, hashes, keys)
            self._first_ms = min(self._first_ms, int(ends_ms.min()))
            self.write(*arrays, np.arange(len(ends_ms), dtype=np.int64), cells, presence)

    def entries(
        self, after_ms: int, until_ms: int, of_groups: np.ndarray | None = None
    ) -> Iterator[WindowEntries]:
        """Copies of all entries with ``after_ms < end <= until_ms``, in blocks of whole key groups.

        ``of_groups``: only entries of these; None: of all.

        The first block has the groups of which all such entries are cached. Nothing else is called meanwhile.
        """
        if until_ms < self.first_ms():
            return
        slots, _ = self._table.slots_between(after_ms, until_ms, NEVER_MS)
        wanted = self._owned if of_groups is None else self._owned & self._wanted(of_groups)
        stored = wanted & (self._stored_first_ms <= until_ms) & (self._stored_last_ms > after_ms)
        groups = self._groups(slots)
        owned = wanted[groups]
        if not owned.all():
            slots, groups = slots[owned], groups[owned]
        if not stored.any():
            if len(slots):
                yield self._cached(slots, groups)
            return
        apart = stored[groups]
        if not apart.all():
            yield self._cached(slots[~apart], groups[~apart])
        slots, groups = slots[apart], groups[apart]
        for group in np.flatnonzero(stored).tolist():
            yield self._with_stored(group, slots[groups == group], after_ms, until_ms)

    def peek(self, end_ms: int, keys: weir_keys.KeyColumn) -> tuple[np.ndarray, np.ndarray]:
        """Cells and presence of the entries of keys in one pane, zero where there is none; copies.

        Unlike :meth:`read` it takes no room in the cache for keys that have no entry.
        """
        count = len(keys.offsets) - 1
        hashes, data, offsets = entry_keys(np.full(count, end_ms), weir_keys.hash_keys(keys), keys)
        slots, missing = self._table.probe(hashes, data, offsets, changes=False)
        self._latest_read = None
        cells, presence = self._table.cells[slots], self._table.presence[slots]
        if missing:
            absent = np.flatnonzero(slots < 0)
            cells[absent], presence[absent] = 0, 0
            groups = weir_keys.key_groups(hashes[absent], self._max_parallelism)
            absent = absent[self._stored_panes.may_have(groups, end_ms)]
            if len(absent):
                column = weir_keys.select_keys(weir_keys.KeyColumn(data, offsets), absent)
                cells[absent], presence[absent] = self.read(hashes[absent], column.data, column.offsets)
        return cells, presence

    def _slot_keys(self, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See :class:`CellTable`."""
        users = weir_keys.KeyColumn.from_list([user_key_of(key) for key in keys])
        return entry_keys(times_of(keys), weir_keys.hash_keys(users), users)

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`CellTable`; entries that are to be deleted from the store are not there."""
        found = super().get_stored(keys)
        if not keys:
            return found
        groups = np.array([int.from_bytes(key[:2], "big") for key in keys])
        gone = times_of(keys) <= self._gone_ms[groups]
        return [None if is_gone else value for value, is_gone in zip(found, gone.tolist(), strict=True)]

    def entries_at(self, slots: np.ndarray) -> WindowEntries:
        """Copies of the entries at these slots, which are none of them twice."""
        return self._cached(slots, self._groups(slots))

    def _cached(self, slots: np.ndarray, groups: np.ndarray) -> WindowEntries:
        data, lengths = self._table.keys_of(slots)
        return _made(data, lengths, groups, self._table.cells[slots], self._table.presence[slots])

    def _with_stored(self, group: int, slots: np.ndarray, after_ms: int, until_ms: int) -> WindowEntries:
        """Entries of a group of which some are in the store alone."""
        data, lengths = self._table.keys_of(slots)
        column = weir_keys.KeyColumn(data, _offsets(lengths))
        known = set(column.to_list())
        start, stop = self._range(group, after_ms, until_ms)
        found = [
            (key[layout.NO_NAMESPACE_HEADER_BYTES :], value)
            for key, value in self._backend.scan(start, stop)
            if key[layout.NO_NAMESPACE_HEADER_BYTES :] not in known
        ]
        cells, presence = accumulators.decode_values([value for _, value in found], self._cell_count)
        lengths = np.concatenate([lengths, np.fromiter((len(key) for key, _ in found), np.int32, len(found))])
        data = np.concatenate([data, np.frombuffer(b"".join(key for key, _ in found), dtype=np.uint8)])
        return _made(
            data,
            lengths,
            np.full(len(lengths), group, dtype=np.uint16),
            np.concatenate([self._table.cells[slots], cells]),
            np.concatenate([self._table.presence[slots], presence]),
        )

    def drop(self, until_ms: int) -> None:
        """Forget all entries up to this end; the store loses them when it is flushed."""
        if until_ms < self.first_ms():
            return
        slots, cached_ms = self._table.slots_between(NOTHING_MS, until_ms, NEVER_MS)
        if len(slots):
            self._latest_read = None
            self._table.remove(slots)
        gone = self._owned & (self._written_ms != NOTHING_MS)
        # Not beyond what was written: later entries may come even when the input has ended.
        self._gone_ms[gone] = np.maximum(self._gone_ms[gone], np.minimum(until_ms, self._written_ms[gone]))
        for group in np.flatnonzero(self._owned & (self._stored_first_ms <= until_ms)).tolist():
            self._stored_first_ms[group] = NEVER_MS
            if until_ms < self._stored_last_ms[group]:
                start, stop = self._range(group, until_ms, NEVER_MS)
                for key, _ in self._backend.scan(start, stop):
                    self._stored_first_ms[group] = times_of([key])[0]
                    break
        self._first_ms = min(cached_ms, int(self._stored_first_ms[self._owned].min(initial=NEVER_MS)))

    def advance(self, until_ms: int) -> None:
        """The windows of all groups have fired up to this time; of a group that is further nothing changes."""
        self.look()
        np.maximum(self.places_ms, until_ms, out=self.places_ms, where=self._owned)

    # --- life cycle ---

    def flush(self) -> None:
        """See :class:`StateTable`."""
        self._note_places(self._owned)
        super().flush()
        self._delete_ranges(None)

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """See :class:`StateTable`."""
        if self._writes.may_begin_part():
            self._note_places(self._owned)
        if not super().flush_part(share, is_over):
            return False
        return self._delete_ranges(_RANGES_MAX, is_over)

    def capture(self) -> Capture | None:
        """See :class:`StateTable`. Ranges that are to be deleted stay: nobody looks before a group's place."""
        self._note_places(self._owned)
        return super().capture()

    def flush_groups(self, groups: Iterable[int]) -> None:
        """See :class:`StateTable`."""
        listed = list(groups)
        self._note_places(self._wanted(listed))
        super().flush_groups(listed)

    def release_groups(self, groups: Iterable[int]) -> None:
        """See :class:`StateTable`."""
        wanted = self._wanted(groups)
        listed = np.flatnonzero(wanted).tolist()
        self._note_places(wanted)
        super().release_groups(listed)
        self.ownership += 1
        self._owned &= ~wanted
        self._unknown &= ~wanted
        self._has_unknown = bool(self._unknown.any())
        for values in (self.places_ms, self._noted_places_ms, self._gone_ms, self._written_ms):
            values[wanted] = NOTHING_MS
        self._stored_first_ms[wanted] = self._stored_last_ms[wanted] = NEVER_MS

    def adopt_groups(self, groups: Iterable[int]) -> None:
        """See :class:`StateTable`."""
        wanted = self._wanted(groups)
        super().adopt_groups(np.flatnonzero(wanted).tolist())
        self.ownership += 1
        self._owned |= wanted
        self._unknown |= wanted
        self._has_unknown = True
        self.places_ms[wanted] = self._noted_places_ms[wanted] = NOTHING_MS
        # The place is read as any other entry.
        self._stored_last_ms[wanted] = NEVER_MS

    def changes_since_copy(self, groups: Iterable[int]) -> CachedEntries:
        """See :class:`StateTable`."""
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
        rows = np.arange(len(groups), dtype=np.int64)
        self.write(*_place_keys(groups, self._max_parallelism), rows, cells, presence)
        self._noted_places_ms[groups] = self.places_ms[groups]

    def _note_evicted(self, slots: np.ndarray, groups: np.ndarray) -> None:
        ends_ms = self._table.times_of(slots)
        np.maximum.at(self._stored_last_ms, groups, ends_ms)
        panes = ends_ms != NOTHING_MS
        np.minimum.at(self._stored_first_ms, groups[panes], ends_ms[panes])

    def _note_written(self, slots: np.ndarray, groups: np.ndarray) -> None:
        np.maximum.at(self._written_ms, groups, self._table.times_of(slots))

    def _delete_ranges(self, count_max: int | None, is_over: IsOver = never) -> bool:
        """Delete from the store what has fired; whether all of it is gone."""
        wanted = np.flatnonzero(self._gone_ms != NOTHING_MS)
        for group in wanted[:count_max].tolist():
            until_ms = int(self._gone_ms[group])
            self._backend.delete_range(*self._range(group, NOTHING_MS, until_ms))
            self._gone_ms[group] = NOTHING_MS
            if self._written_ms[group] <= until_ms:
                self._written_ms[group] = NOTHING_MS
            if is_over():
                break
        return not (self._gone_ms != NOTHING_MS).any()

    def _range(self, group: int, after_ms: int, until_ms: int) -> tuple[bytes, bytes]:
        """Bounds of the entries of a group with ``after_ms < end <= until_ms``, in the store."""
        prefix = layout.key_prefix(group, self.state_id)
        stop = prefix_end(prefix) if until_ms >= NEVER_MS else prefix + time_bytes(until_ms + 1)
        assert stop is not None, "a prefix ends with the length of an empty namespace, 0"
        return prefix + time_bytes(after_ms + 1), stop


class _StoredPanes(StoredCells):
    """Knows the last end of each key group in the store: later entries are new."""

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        cell_count: int,
        last_ms: np.ndarray,
    ) -> None:
        """``last_ms``: int64, by key group; the table changes it."""
        super().__init__(backend, state_id, slots, max_parallelism, cell_count, 0)
        self._last_ms = last_ms

    def may_have(self, groups: np.ndarray, end_ms: int) -> np.ndarray:
        """Of which of these key groups the store may have entries of a pane that are not cached; bool."""
        self.check_groups(groups)
        held = np.array([self.holds(group) for group in range(len(self._last_ms))])
        found: np.ndarray = held[groups] & (end_ms <= self._last_ms[groups])
        return found

    def may_be_stored(self, slots: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """See :class:`StoredCells`."""
        stored: np.ndarray = super().may_be_stored(slots, groups) & (
            self._slots.times_of(slots) <= self._last_ms[groups]
        )
        return stored


def _offsets(lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _made(
    data: np.ndarray, lengths: np.ndarray, groups: np.ndarray, cells: np.ndarray, presence: np.ndarray
) -> WindowEntries:
    """Entries from their keys, which begin with the ends."""
    ends = np.empty(len(lengths), dtype=np.int64)
    users = np.empty(len(data) - kernels.END_BYTES * len(lengths), dtype=np.uint8)
    kernels.split_keys(data, _offsets(lengths), ends, users)
    column = weir_keys.KeyColumn(users, _offsets(lengths - kernels.END_BYTES))
    return WindowEntries(ends, column, groups, cells, presence)


def entry_keys(
    ends_ms: np.ndarray, hashes: np.ndarray, keys: weir_keys.KeyColumn
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes, key bytes and offsets of entries, as :meth:`CellTable.read` takes them."""
    rows = len(ends_ms)
    size_bytes = int(keys.offsets[-1]) - int(keys.offsets[0]) + kernels.END_BYTES * rows
    data = np.empty(size_bytes, dtype=np.uint8)
    offsets = np.empty(rows + 1, dtype=np.int64)
    mixed = np.empty(rows, dtype=np.uint64)
    kernels.entry_keys(ends_ms, hashes, keys.data, keys.offsets, data, offsets, mixed)
    return mixed, data, offsets


def _place_keys(groups: np.ndarray, max_parallelism: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes, key bytes and offsets of the places of groups."""
    # The smallest hash of the group.
    hashes = np.array([-(-(int(group) << 32) // max_parallelism) << 32 for group in groups], dtype=np.uint64)
    # The cache finds entries by their bytes: those of two groups must differ.
    data = groups.astype(">u2").view(np.uint8)
    column = weir_keys.KeyColumn(data, np.arange(0, 2 * len(groups) + 1, 2, dtype=np.int64))
    return entry_keys(np.full(len(groups), NOTHING_MS), hashes, column)


assert TIME_STOP == layout.NO_NAMESPACE_HEADER_BYTES + kernels.END_BYTES
