"""Entries of panes over a state backend: a cell table whose entries lie in the order of time.

An entry is ``end of its pane, 8 bytes | user key`` (``weir.state.tables.timers.time_first`` has the bytes of the end),
and its key group that of the user key. Up to where the windows of a key group have fired is its *place*: the first cell
of the entry with the smallest time and the group's number (2 bytes, big endian) as user key. So the place goes wherever
the group's state goes. Panes that get hardly any more rows are packed (``weir.state.tables.panes.packed_rows``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.packed import split_rows
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.panes.stored_panes import StoredPanes
from weir.state.tables.panes.window_entries import (
    NEVER_MS,
    NOTHING_MS,
    WindowEntries,
    end_and_user_keys,
    entry_keys,
    laid_over,
    made_entries,
    place_keys,
)
from weir.state.tables.table import EntryOrder
from weir.state.tables.timers.time_first import times_of, user_key_of

#: Of the presence of a place: its second cell.
MARKED = 2


class PaneTable(CellTable):
    """Accumulators of panes: their entries. ``weir.state.tables.panes.window_table`` has what becomes of them."""

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
        self._panes = StoredPanes(backend, state_id, self._table, max_parallelism, cell_count)
        self._stored = self._panes
        self._writes.on_write = self._note_written
        #: By key group: up to where its windows have fired, and what the table's entry says of it.
        self.places_ms = np.full(max_parallelism, NOTHING_MS, dtype=np.int64)
        self._noted_places_ms = self.places_ms.copy()
        #: By key group, bool: its place has no mark, see :meth:`mark_places`.
        self.unmarked = np.zeros(max_parallelism, dtype=np.bool_)
        self._marks_places = False
        self._owned = self._wanted(groups)
        #: Groups of whose entries in the store nothing is known.
        self._unknown = self._owned.copy()
        self._has_unknown = bool(self._unknown.any())
        self._first_ms = NEVER_MS
        #: No entry that was put here has a later end.
        self._last_ms = NOTHING_MS
        self._bytes_max = bytes_max
        self._packed = self._panes.packed
        #: Panes up to this end are packed, or not worth it.
        self._packed_to_ms = NOTHING_MS
        #: Panes are to be packed as soon as the store may be written.
        self.has_to_pack = False
        #: Grows whenever groups come or go.
        self.ownership = 0
        self._has_put = False

    # --- places ---

    def mark_places(self) -> None:
        """Mark places from now on, and say of which groups they have none (:attr:`unmarked`), until they advance.

        For sessions: where a place is marked, an entry whose last row is more than a gap before it is over. The mark
        is the second cell of the place. Called before anything else.
        """
        self._marks_places = True

    # --- entries ---

    def look(self) -> None:
        """Find out where the groups stand that are new here. Costs a few seeks for each of them."""
        if not self._has_unknown:
            return
        self._has_unknown = False
        groups = np.flatnonzero(self._unknown).astype(np.uint16)
        if not len(groups):
            return
        self._unknown[:] = False
        # Until the places are read.
        self._panes.forget_ends(groups)
        self._stored.check_groups(groups)
        cells, presence = self.read(*place_keys(groups, self._max_parallelism))
        found = presence[:, 0] & 1 != 0
        self.places_ms[groups] = np.where(found, cells[:, 0], NOTHING_MS)
        self._noted_places_ms[groups] = self.places_ms[groups]
        if self._marks_places:
            self.unmarked[groups] = found & (presence[:, 0] & MARKED == 0)
        for group in groups.tolist():
            self._panes.seek(group)
            self._limit_packed()
        self._first_ms = self._least_ms()

    def _least_ms(self) -> int:
        """The smallest end of all entries."""
        stored_ms = int(self._panes.first_ms[self._owned].min(initial=NEVER_MS))
        _, first_ms = self._table.slots_between(NOTHING_MS, NOTHING_MS, stored_ms)
        return min(first_ms, self._packed.first_ms())

    def first_ms(self) -> int:
        """No entry has an earlier end; ``NEVER_MS`` if there is none."""
        self.look()
        return self._first_ms

    def fired_ms(self) -> int:
        """The windows of all owned groups have fired up to this time, or further."""
        return int(self.places_ms[self._owned].min(initial=NEVER_MS))

    @property
    def owned_groups(self) -> list[int]:
        """Key groups that are owned, ascending."""
        found: list[int] = np.flatnonzero(self._owned).tolist()
        return found

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
        self._last_ms = max(self._last_ms, int(ends_ms.max()))
        self._limit_packed()
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
            self._has_put = True
            hashes = weir_keys.hash_keys(keys) if hashes is None else hashes
            arrays = entry_keys(ends_ms, hashes, keys)
            self._first_ms = min(self._first_ms, int(ends_ms.min()))
            self._last_ms = max(self._last_ms, int(ends_ms.max()))
            self.write(*arrays, np.arange(len(ends_ms), dtype=np.int64), cells, presence, loads=False)

    def entries(
        self,
        after_ms: int,
        until_ms: int,
        of_groups: np.ndarray | None = None,
        chosen: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    ) -> Iterator[WindowEntries]:
        """Copies of all entries with ``after_ms < end <= until_ms``, in blocks of whole key groups.

        ``of_groups``: only entries of these; None: of all. ``chosen``: of cells and key groups, says which entries are
        needed, so that others need not be copied; some of these may come all the same.

        The first block has the groups of which no such entry is in the store alone. Nothing else is called meanwhile.
        """
        if until_ms < self.first_ms():
            return
        slots, _ = self._table.slots_between(after_ms, until_ms, NEVER_MS)
        wanted = self._owned if of_groups is None else self._owned & self._wanted(of_groups)
        packed = self._packed.entries(after_ms, until_ms, wanted)
        stored = wanted & (self._panes.first_ms <= until_ms) & (self._panes.last_ms > after_ms)
        groups = self._groups(slots)
        owned = wanted[groups]
        if not owned.all():
            slots, groups = slots[owned], groups[owned]
        if not stored.any():
            if chosen is not None and packed is None:
                rows = np.flatnonzero(chosen(self._table.cells[slots], groups))
                slots, groups = slots[rows], groups[rows]
            whole = laid_over(self._cached(slots, groups) if len(slots) else None, packed)
            if whole is not None:
                yield whole
            return
        apart = stored[groups]
        whole = laid_over(self._cached(slots[~apart], groups[~apart]), _of(packed, ~stored))
        if whole is not None and len(whole):
            yield whole
        slots, groups = slots[apart], groups[apart]
        for group in np.flatnonzero(stored).tolist():
            entries = self._with_stored(group, slots[groups == group], after_ms, until_ms)
            yield laid_over(entries, _of(packed, self._wanted([group]))) or entries

    def peek(
        self, end_ms: int | np.ndarray, keys: weir_keys.KeyColumn, hashes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cells and presence of the entries of keys, zero where there is none; copies.

        Unlike :meth:`read` it takes no room in the cache. ``end_ms``: of one pane, or of that of each key (int64).
        ``hashes``: of the user keys, as for :meth:`put`.

        Raises:
            StateError: the store cannot be read.
        """
        hashes = weir_keys.hash_keys(keys) if hashes is None else hashes
        ends_ms = np.full(len(keys), end_ms) if isinstance(end_ms, int) else end_ms
        hashes, data, offsets = entry_keys(ends_ms, hashes, keys)
        slots, missing = self._table.probe(hashes, data, offsets, changes=False)
        self._latest_read = None
        cells, presence = self._table.cells[slots], self._table.presence[slots]
        if missing:
            absent = np.flatnonzero(slots < 0)
            cells[absent], presence[absent] = 0, 0
            groups = weir_keys.key_groups(hashes[absent], self._max_parallelism)
            if self._packed.are_among(ends_ms[absent]).any():
                rows, *found = self._packed.find(ends_ms[absent], groups, weir_keys.select_keys(keys, absent))
                cells[absent[rows]], presence[absent[rows]] = found
            may_have = self._panes.may_have(ends_ms[absent], hashes[absent], groups)
            absent, groups = absent[may_have], groups[may_have]
            if len(absent):
                entries = weir_keys.select_keys(weir_keys.KeyColumn(data, offsets), absent)
                rows, *found = self._stored.read(entries, groups)
                cells[absent[rows]], presence[absent[rows]] = found
        return cells, presence

    @override
    def _slot_keys(self, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        users = weir_keys.KeyColumn.from_list([user_key_of(key) for key in keys])
        return entry_keys(times_of(keys), weir_keys.hash_keys(users), users)

    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See :class:`CellTable`; entries that are to be deleted from the store are not there."""
        found = super().get_stored(keys)
        if not keys:
            return found
        groups = np.array([int.from_bytes(key[:2], "big") for key in keys])
        ends_ms = times_of(keys)
        gone = ends_ms <= self._panes.gone_ms[groups]
        found = [None if is_gone else value for value, is_gone in zip(found, gone.tolist(), strict=True)]
        absent = np.flatnonzero([value is None for value in found])
        users = weir_keys.KeyColumn.from_list([user_key_of(keys[row]) for row in absent.tolist()])
        rows, cells, presence = self._packed.find(ends_ms[absent], groups[absent], users)
        if not len(rows):
            return found
        values = split_rows(accumulators.encode_rows(cells, presence))
        for row, value in zip(absent[rows].tolist(), values, strict=True):
            found[row] = value
        return found

    def entries_at(self, slots: np.ndarray) -> WindowEntries:
        """Copies of the entries at these slots, which are none of them twice."""
        return self._cached(slots, self._groups(slots))

    def _cached(self, slots: np.ndarray, groups: np.ndarray) -> WindowEntries:
        data, lengths = self._table.keys_of(slots)
        return made_entries(data, lengths, groups, self._table.cells[slots], self._table.presence[slots])

    def _with_stored(self, group: int, slots: np.ndarray, after_ms: int, until_ms: int) -> WindowEntries:
        """Entries of a group of which some are in the store alone; 0.5 µs each."""
        found = list(self._backend.scan(*self._panes.range_of(group, after_ms, until_ms)))
        state_keys, values = zip(*found, strict=True) if found else ((), ())
        ends_ms, keys = end_and_user_keys(*_without_header(state_keys))
        cells, presence = accumulators.decode_values(values, self._cell_count)
        groups = np.full(len(found), group, dtype=np.uint16)
        own = self._cached(slots, np.full(len(slots), group, dtype=np.uint16))
        return laid_over(own, WindowEntries(ends_ms, keys, groups, cells, presence)) or own

    def _limit_packed(self) -> None:
        """Leave panes to the store while there is no room for them."""
        while self._packed.bytes and self._packed.bytes + self._table.memory_bytes > self._bytes_max:
            self._packed.give_up_last()

    def _note_written(self, slots: np.ndarray, groups: np.ndarray) -> None:
        if self._has_put and len(slots):
            self.rearranged += 1
        self._panes.note_written(slots, groups)

    def _note_evicted(self, slots: np.ndarray, groups: np.ndarray) -> None:
        super()._note_evicted(slots, groups)
        self._panes.note_evicted(slots, groups)


def _without_header(keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Keys of entries one after the other (uint8), and their lengths, from their state keys."""
    header = layout.NO_NAMESPACE_HEADER_BYTES
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    data = np.frombuffer(b"".join(keys), dtype=np.uint8)
    if len(keys) and (lengths == lengths[0]).all():
        return data.reshape(len(keys), -1)[:, header:].ravel(), lengths - header
    return np.frombuffer(b"".join([key[header:] for key in keys]), dtype=np.uint8), lengths - header


def _of(entries: WindowEntries | None, groups: np.ndarray) -> WindowEntries | None:
    """Those of key groups (bool)."""
    return None if entries is None else entries.part(np.flatnonzero(groups[entries.groups]))
