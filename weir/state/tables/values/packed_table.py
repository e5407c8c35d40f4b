"""Keyed values of any length in arrays: a cell table whose cells say where in an arena the value of a key is.

For operators that read and write the values of a whole batch as arrays: nothing is done per key in Python but what the
store asks for. The store has the same entries as for :class:`weir.state.tables.values.value_table.ValueTable`, so that
either of them reads what the other has written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
from typing_extensions import override

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, PackedValues, join_values
from weir.state.tables.cached_entries import CachedPart, CachedValues
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.cells.slot_table import SlotTable
from weir.state.tables.cells.stored_cells import CellWriter, CellWrites, StoredCells
from weir.state.tables.values.value_arena import CELLS, LENGTH, START, ValueArena
from weir.types import StoreStats

#: Of the bound for values: so much they may have after some were evicted, so that this is not done for each batch.
_KEPT_SHARE = 0.75
#: Of the slots: what is evicted at a time.
_EVICTED_SHARE = 16


class PackedTable(CellTable):
    """Values of one operator in one subtask; half of the bound is for the keys, half for the values."""

    def __init__(self, backend: StateBackend, state_id: int, bytes_max: int, max_parallelism: int) -> None:
        super().__init__(backend, state_id, CELLS, bytes_max // 2, max_parallelism)
        self._values_bytes_max = bytes_max // 2
        self._arena = ValueArena(self._table)
        self._stored = _StoredValues(backend, state_id, self._table, max_parallelism, self._arena)
        self._writes = _ValueWrites(backend, state_id, self._table, max_parallelism, self._arena)

    def read_values(self, hashes: np.ndarray, keys: weir_keys.KeyColumn) -> PackedValues:
        """Values of keys, absent where there is none; they stay as they are whatever is written.

        Args:
            hashes: uint64, shape (keys,), of ``weir.keys.hashing.hash_keys``.
            keys: none of them twice.

        Raises:
            StateError: the store cannot be read.
        """
        parts = []
        for start, stop, slots in self.pieces(hashes, keys.data, keys.offsets, changes=False):
            parts.append(self._values_at(slots))
            if stop - start == len(hashes):
                self._latest_read = hashes, self._table.now, slots
        return join_values(parts)

    def write_values(
        self, hashes: np.ndarray, keys: weir_keys.KeyColumn, rows: np.ndarray, values: PackedValues
    ) -> None:
        """Set some of these keys; an absent value deletes.

        Args:
            hashes: of all keys; the very array of the latest :meth:`read_values` saves the lookup.
            keys: none of them twice.
            rows: which keys to set, int64, ascending.
            values: of these.

        Raises:
            StateError: the store cannot be read or written.
        """
        self._check_usable()
        with self._table.change():
            cells = self._arena.append(values)
        presence = np.zeros((len(rows), self.presence.shape[1]), dtype=np.uint8)
        latest = self._latest_read
        if latest is not None and latest[0] is hashes and latest[1] == self._table.now:
            self._set(latest[2][rows], cells, presence)
        else:
            some = weir_keys.select_keys(keys, rows)
            every = np.arange(len(rows), dtype=np.int64)
            self.write(hashes[rows], some.data, some.offsets, every, cells, presence, loads=False)
        if self._arena.used_bytes > self._values_bytes_max:
            self._shrink()

    def _values_at(self, slots: np.ndarray) -> PackedValues:
        cells = self._table.cells[slots]
        return PackedValues(
            self._arena.data, np.ascontiguousarray(cells[:, START]), np.ascontiguousarray(cells[:, LENGTH])
        )

    def _shrink(self) -> None:
        """Evict until values take less than their bound, as far as slots are not pinned."""
        self._latest_read = None
        while self._arena.live_bytes() > _KEPT_SHARE * self._values_bytes_max:
            if not self._evict_some(max(1, self._table.live // _EVICTED_SHARE)):
                break
        with self._table.change():
            self._arena.compact()

    # --- questions from outside ---

    @override
    def get_stored(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_usable()
        if not keys:
            return []
        slots, _ = self._table.probe(*self._slot_keys(keys), changes=False)
        self._latest_read = None
        cached = iter(self._values_at(slots[slots >= 0]).to_list())
        missing = [key for key, slot in zip(keys, slots.tolist(), strict=True) if slot < 0]
        found = iter(self._backend.get_many(missing))
        return [next(found) if slot < 0 else next(cached) or None for slot in slots.tolist()]

    def unwritten_values(
        self, groups: Iterable[int], count_max: int
    ) -> list[tuple[bytes, bytes | None]] | None:
        """State keys and values (None: deleted) of key groups that the store may not have yet, in no order.

        None: there are more than ``count_max``. For questions from outside.
        """
        self._check_usable()
        slots = self._writes.unwritten_slots()
        slots = slots[self._wanted(groups)[self._groups(slots)]]
        if len(slots) > count_max:
            return None
        entries = self._entries(slots)
        return list(zip(entries.keys, entries.values, strict=True))

    # --- copies for a new owner ---

    @override
    def _copied_value_bytes(self) -> int:
        return self._arena.used_bytes // max(self._table.live, 1)

    @override
    def _entries(self, slots: np.ndarray) -> CachedValues:
        keys = self._table.state_keys(slots, self._groups(slots), self.state_id)
        values = [value or None for value in self._values_at(slots).to_list()]
        return CachedValues(self.state_id, keys.to_list(), values)

    @override
    def take_copy(self, entries: CachedPart, groups: Iterable[int]) -> bool:
        if entries.state_id != self.state_id:
            return False
        if not isinstance(entries, CachedValues):
            raise StateError("cached state came as cells, not as values of any length")
        self._check_usable()
        keys = weir_keys.KeyColumn.from_list(
            [key[layout.NO_NAMESPACE_HEADER_BYTES :] for key in entries.keys]
        )
        with self._table.change():
            cells = self._arena.append(PackedValues.from_list(entries.values))
        presence = np.zeros((len(entries), self.presence.shape[1]), dtype=np.uint8)
        has_room = self._arena.used_bytes <= self._values_bytes_max
        self._take(weir_keys.hash_keys(keys), keys, cells, presence, groups, may_insert=has_room)
        return True

    @override
    def stats(self) -> StoreStats:
        stats = super().stats()
        return StoreStats(
            gets=stats.gets,
            puts=stats.puts,
            cache_hits=stats.cache_hits,
            cache_misses=stats.cache_misses,
            memory_bytes=stats.memory_bytes + self._arena.data.nbytes,
        )


class _StoredValues(StoredCells):
    """Fills new slots, and the arena, from the store."""

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        arena: ValueArena,
    ) -> None:
        super().__init__(backend, state_id, slots, max_parallelism, CELLS, 0)
        self._arena = arena

    @override
    def load(self, new_slots: np.ndarray, groups: np.ndarray) -> int:
        self.check_groups(groups)
        stored = self.may_be_stored(new_slots, groups)
        slots, groups = new_slots[stored], groups[stored]
        if not len(slots):
            return 0
        order = self._slots.in_key_order(slots, groups)
        slots, groups = slots[order], groups[order]
        keys = self._slots.state_keys(slots, groups, self._state_id).to_list()
        values = PackedValues.from_list(self._backend.get_many(keys))
        if len(values.data):
            self._slots.cells[slots] = self._arena.append(values)
        return int((values.lengths > 0).sum())


class _ValueWrites(CellWrites):
    """Writes the values of dirty slots; absent ones are deleted."""

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        arena: ValueArena,
    ) -> None:
        super().__init__(backend, state_id, slots, max_parallelism)
        self._arena = arena

    @override
    def _writer(self) -> CellWriter:
        # Values may move later, but never within this array.
        return partial(self._put_values, self._arena.data)

    def _put_values(
        self, data: np.ndarray, keys: PackedKeys, cells: np.ndarray, presence: np.ndarray
    ) -> None:
        values = PackedValues(data, cells[:, START], cells[:, LENGTH])
        if values.lengths.all():
            self._backend.put_many(keys.to_list(), values.to_list())
            return
        pairs = list(zip(keys.to_list(), values.to_list(), strict=True))
        self._backend.write([pair for pair in pairs if pair[1]], [key for key, value in pairs if not value])
