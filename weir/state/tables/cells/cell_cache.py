"""Keyed accumulators in arrays, one slot for each cached key, over a state backend: the hot path of aggregations.

What is where: a key is cached (its slot's cells are the truth; dirty if the backend does not have them yet), or it is
in the backend, or it has no state. A batch's unknown keys come in one read, in key order
(``weir.state.tables.cells.stored_cells``); dirty slots go down at a flush and when they are evicted
(``weir.state.tables.cells.stored_cells``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import numpy as np

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state.api import StateBackend
from weir.state.tables.capture import Capture
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.slot_table import SlotTable
from weir.state.tables.cells.stored_cells import CellWrites, StoredCells
from weir.state.tables.expiry import Expiry
from weir.state.tables.table import IsOver, StateTable, never
from weir.types import StoreStats

#: Evicting one key at a time would make tiny batches; the smallest share of the slots that goes at once.
_EVICTION_SHARE = 16


class CellCache(StateTable):
    """Accumulators of one operator in one subtask. Not thread-safe: the subtask's thread calls it.

    Args:
        backend: where state lives; shared with other operators.
        state_id: the operator's number in the store.
        cell_count: accumulators of a key, 8 bytes each, all zero for a new key.
        bytes_max: bound of the memory for cached keys, arrays and key bytes included.
        max_parallelism: number of key groups.
        drops_empty: a key none of whose cells has a value is deleted from the store, not written to it.
        other_cell_count: stored values may also have so many cells (8 at most); missing ones are without a value, and
            those too many are left out. 0: that is an error.
        expiry: of a state with a TTL, whose last cell is the time.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        cell_count: int,
        bytes_max: int,
        max_parallelism: int,
        *,
        drops_empty: bool = False,
        other_cell_count: int = 0,
        expiry: Expiry | None = None,
    ) -> None:
        self.state_id = state_id
        self._backend = backend
        self._cell_count = cell_count
        self._value_bytes = accumulators.value_bytes(cell_count)
        self._max_parallelism = max_parallelism
        self._table = SlotTable(cell_count, bytes_max)
        self._stored = StoredCells(
            backend, state_id, self._table, max_parallelism, cell_count, other_cell_count
        )
        self._writes = CellWrites(backend, state_id, self._table, max_parallelism, drops_empty=drops_empty)
        self._gets = self._hits = 0
        self._failed = False
        #: Whether the rows of a piece are being taken into their cells.
        self._in_piece = False
        self.expiry = expiry
        #: Hashes, time and slots of the latest :meth:`read`, for the :meth:`write` that follows.
        self._latest_read: tuple[np.ndarray, int, np.ndarray] | None = None
        #: Keys that had no state anywhere when they were first met.
        self.keys_created = 0

    @property
    def cells(self) -> np.ndarray:
        """int64 (view it as float64 where a cell holds one), shape (capacity, cells); valid until the next piece."""
        return self._table.cells

    @property
    def presence(self) -> np.ndarray:
        """Bits of cells that have had a value, uint8, shape (capacity, ceil(cells / 8))."""
        return self._table.presence

    @property
    def capacity(self) -> int:
        """Slots now; slot numbers are below it."""
        return self._table.capacity

    def read(
        self, hashes: np.ndarray, key_data: np.ndarray, key_offsets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cells (int64, shape (keys, cells)) and presence of keys, which may repeat; copies. Nothing becomes dirty.

        Raises:
            StateError: as :meth:`pieces`.
        """
        rows = len(hashes)
        cells = np.empty((rows, self._cell_count), dtype=np.int64)
        presence = np.empty((rows, self.presence.shape[1]), dtype=np.uint8)
        for start, stop, slots in self.pieces(hashes, key_data, key_offsets, changes=False):
            np.take(self.cells, slots, axis=0, out=cells[start:stop])
            np.take(self.presence, slots, axis=0, out=presence[start:stop])
            if stop - start == rows:
                self._latest_read = hashes, self._table.now, slots
        return cells, presence

    def write(
        self,
        hashes: np.ndarray,
        key_data: np.ndarray,
        key_offsets: np.ndarray,
        rows: np.ndarray,
        cells: np.ndarray,
        presence: np.ndarray,
        *,
        loads: bool = True,
    ) -> None:
        """Set some of these keys, none of them twice.

        Args:
            hashes: of all keys, as for :meth:`pieces`; the very array of the latest :meth:`read` saves the lookup.
            key_data: of all keys.
            key_offsets: of all keys.
            rows: which keys to set, int64, ascending.
            cells: int64, shape (rows, cells).
            presence: uint8, shape (rows, presence bytes).
            loads: False: all keys are set, so that nobody needs to know what the store has of them.

        Raises:
            StateError: as :meth:`pieces`.
        """
        latest = self._latest_read
        if latest is not None and latest[0] is hashes and latest[1] == self._table.now:
            self._check_usable()
            self._set(latest[2][rows], cells, presence)
            return
        # Without a load, new slots are empty until they are set.
        with nullcontext() if loads else self._table.change():
            for start, stop, slots in self.pieces(hashes, key_data, key_offsets, changes=False, loads=loads):
                first, last = np.searchsorted(rows, (start, stop)).tolist()
                self._set(slots[rows[first:last] - start], cells[first:last], presence[first:last])

    def _set(self, slots: np.ndarray, cells: np.ndarray, presence: np.ndarray) -> None:
        with self._table.change():
            self._table.cells[slots] = cells
            self._table.presence[slots] = presence
        self._table.mark_dirty(slots)

    def pieces(
        self,
        hashes: np.ndarray,
        key_data: np.ndarray,
        key_offsets: np.ndarray,
        *,
        changes: bool = True,
        loads: bool = True,
    ) -> Iterator[tuple[int, int, np.ndarray]]:
        """Slots of a batch's rows, in as few pieces as the cache allows (one, unless it is tiny).

        Args:
            hashes: uint64, shape (rows,), of ``weir.keys.hashing.hash_keys``.
            key_data: uint8; the key of row i is ``key_data[key_offsets[i]:key_offsets[i + 1]]``.
            key_offsets: int32 or int64, shape (rows + 1,).
            changes: count all of them as changed.
            loads: False: the caller sets all cells, so those that are not cached stay zero.

        Yields:
            ``start, stop, slots``: int32 slots of the rows ``start <= row < stop``, with loaded cells. They
            are valid until the next piece is asked for.

        Raises:
            StateError: the store cannot be read or written, or holds values of another form.
        """
        start, rows = 0, len(hashes)
        try:
            while start < rows:
                # Half of the slots may always be pinned; asking for the exact bound takes longer than a small batch.
                stop = rows
                if rows - start > self._table.capacity // 2:
                    stop = min(rows, start + self._table.rows_max)
                stop = self._limit_key_bytes(key_offsets, start, stop)
                self._check_usable()
                self.end_piece()
                slots = self._lookup(
                    hashes[start:stop], key_data, key_offsets[start : stop + 1], changes, loads
                )
                if changes:
                    self._begin_piece()
                yield start, stop, slots
                start = stop
        finally:
            self.end_piece()

    def _begin_piece(self) -> None:
        self._in_piece = True
        self._table.updates += 1

    def end_piece(self) -> None:
        """The cells of a piece are as they will be: others may look at them.

        For callers of :meth:`pieces` who do something else before they ask for the next piece.
        """
        self._in_piece = False

    def _check_usable(self) -> None:
        if self._failed:
            raise StateError("this state cache failed before and may lack stored state; restart the job")

    def _limit_key_bytes(self, key_offsets: np.ndarray, start: int, stop: int) -> int:
        """At most a quarter of the bound in key bytes, but one row at least."""
        limit = int(key_offsets[start]) + self._table.bytes_max // 4
        if int(key_offsets[stop]) <= limit:
            return stop
        within = int(np.searchsorted(key_offsets[start : stop + 1], limit, side="right")) - 1
        return start + max(1, within)

    def _lookup(
        self, hashes: np.ndarray, key_data: np.ndarray, key_offsets: np.ndarray, changes: bool, loads: bool
    ) -> np.ndarray:
        table = self._table
        slots, missing = table.probe(hashes, key_data, key_offsets, changes=changes)
        self._gets += len(slots)
        self._hits += len(slots) - missing
        if missing == 0:
            return slots
        # Until all are loaded, new slots are empty although the store may have their state.
        self._failed = True
        with table.change():
            new_slots = np.empty(missing, dtype=np.int32)
            row = table.insert_missing(hashes, key_data, key_offsets, 0, slots, new_slots)
            while row < len(slots):
                if not table.make_room(int(key_offsets[row + 1]) - int(key_offsets[row])):
                    self._evict(missing - table.new_count)
                row = table.insert_missing(hashes, key_data, key_offsets, row, slots, new_slots)
            new_slots = new_slots[: table.new_count]
            if loads:
                has_none = self._stored.has_none_of(new_slots)
                stored = 0 if has_none else self._stored.load(new_slots, self._groups(new_slots))
                self.keys_created += len(new_slots) - stored
        self._failed = False
        if not changes:
            table.mark_clean(new_slots)
        return slots

    def _groups(self, slots: np.ndarray) -> np.ndarray:
        return weir_keys.key_groups(self._table.hashes[slots], self._max_parallelism)

    def _evict(self, wanted: int) -> None:
        """Write down and forget slots that are not pinned, at least one."""
        if not self._evict_some(wanted):
            raise StateError(
                "a piece of a batch pins the whole state cache; raise the cache's bound in bytes"
            )

    def _evict_some(self, wanted: int) -> int:
        """Write down and forget slots that are not pinned; returns how many."""
        self._writes.settle()
        share = max(1, self._table.capacity // _EVICTION_SHARE)
        victims = self._table.choose_victims(max(1, min(wanted, share)))
        if not len(victims):
            return 0
        groups = self._groups(victims)
        self._stored.note_stored(groups)
        self._note_evicted(victims, groups)
        self._writes.write(self._table.dirty_among(victims))
        self._table.remove(victims)
        return len(victims)

    def _note_evicted(self, slots: np.ndarray, groups: np.ndarray) -> None:
        """These slots, of these key groups, are about to be written and forgotten."""

    def flush(self) -> None:
        """Write all dirty slots to the backend; they stay cached. The caller flushes the backend.

        Raises:
            StateError: the store cannot be written; what was not written is still dirty.
        """
        self._check_usable()
        self._writes.write_all()

    def capture(self) -> Capture | None:
        """Note all dirty slots as they are now; another thread sorts and writes them. None: nothing is dirty.

        30 ns a key. If writing fails, they are dirty again. The caller flushes the backend.
        """
        self._check_usable()
        return self._writes.capture()

    def flush_part(self, share: float, is_over: IsOver = never) -> bool:
        """Write dirty slots bit by bit, so that rows do not wait for all of them.

        The first call, and the first after one that returned True, notes the slots that are dirty then. The caller
        flushes the backend in the end.

        Args:
            share: of the noted slots that should have been written when this returns, 0 to 1.
            is_over: whether to write no more now.

        Returns:
            Whether all of them have been.
        """
        self._check_usable()
        return self._writes.write_part(share, is_over)

    def flush_groups(self, groups: Iterable[int]) -> None:
        """Write the dirty slots of these key groups; they stay cached."""
        self._check_usable()
        self._writes.settle()
        self._writes.write(self._table.slots_in_groups(self._wanted(groups), dirty_only=True))

    def _wanted(self, groups: Iterable[int]) -> np.ndarray:
        """The key groups as a mask, bool, shape (max_parallelism,)."""
        wanted = np.zeros(self._max_parallelism, dtype=np.bool_)
        wanted[list(groups)] = True
        return wanted

    def stats(self) -> StoreStats:
        """Counters of this cache: ``cache_hits`` and ``cache_misses`` in rows, ``puts`` in keys written down."""
        return StoreStats(
            gets=self._gets,
            puts=self._writes.keys_written,
            cache_hits=self._hits,
            cache_misses=self._gets - self._hits,
            memory_bytes=self._table.memory_bytes,
        )
