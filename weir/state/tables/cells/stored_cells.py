"""What the store has of keys that a table of cells has not cached.

Reads are skipped where the store cannot have the key: a key group that was empty in the store when this state first met
it, and from which no key was evicted or dropped since. Then all its keys are cached, so an uncached one is new.
"""

from __future__ import annotations

import numpy as np

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.slot_table import SlotTable, packed_state_keys, positions_in_key_order

#: Reads after which values of one number of cells are asked for again, at most.
_MIXED_SPAN_MAX = 64
_UNCHECKED, _ALL_CACHED, _MAY_BE_STORED = 0, 1, 2


class StoredCells:
    """Fills new slots of one table from the store. Not thread-safe.

    Args:
        backend: where state lives.
        state_id: the operator's number in the store.
        slots: the table whose slots are filled.
        max_parallelism: number of key groups.
        cell_count: accumulators of a key.
        other_cell_count: stored values may also have so many cells; 0: that is an error. See ``CellTable``.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        cell_count: int,
        other_cell_count: int,
    ) -> None:
        self._backend = backend
        self._state_id = state_id
        self._slots = slots
        self._cell_count = cell_count
        self._value_bytes = accumulators.value_bytes(cell_count)
        self._other_cell_count = other_cell_count
        #: Some stored values have another number of cells: so many reads do not ask for one number, and so many will
        #: not after the next one that finds another.
        self._mixed_reads, self._mixed_span = 0, 1
        self._group_status = np.zeros(max_parallelism, dtype=np.uint8)

    def has_none_of(self, new_slots: np.ndarray) -> bool:
        """Whether it is known at once that the store has nothing of new slots; :meth:`load` is in vain then."""
        return self._slots.are_in_groups_of(new_slots, self._group_status, _ALL_CACHED)

    def load(self, new_slots: np.ndarray, groups: np.ndarray) -> int:
        """Fill new slots of these key groups with what the store has; returns how many keys it has.

        Raises:
            StateError: the store cannot be read, or holds values of another form.
        """
        self.check_groups(groups)
        stored = self.may_be_stored(new_slots, groups)
        if not stored.any():
            return 0
        slots, groups = new_slots[stored], groups[stored]
        order = self._slots.in_key_order(slots, groups)
        slots, groups = slots[order], groups[order]
        present, rows = self._rows(self._slots.state_keys(slots, groups, self._state_id))
        if not len(rows):
            return 0
        if len(rows) < len(slots):
            slots = slots[present]
        cells, presence = accumulators.decode_rows(rows, self._cell_count)
        self._slots.cells[slots] = cells
        self._slots.presence[slots] = presence
        return len(rows)

    def read(
        self, keys: weir_keys.KeyColumn, groups: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What the store has of keys that are not cached: rows (int64), their cells and presence.

        Args:
            keys: as the cache has them, without what a state key begins with.
            groups: their key groups, uint16.

        Raises:
            StateError: as :meth:`load`.
        """
        state_keys = packed_state_keys(keys, groups, self._state_id)
        order = positions_in_key_order(state_keys)
        present, rows = self._rows(state_keys.take(order))
        return order[present], *accumulators.decode_rows(rows, self._cell_count)

    def may_be_stored(self, slots: np.ndarray, groups: np.ndarray) -> np.ndarray:
        """Of which of these slots, of these key groups, the store may have the state; bool."""
        stored: np.ndarray = self._group_status[groups] == _MAY_BE_STORED
        return stored

    def holds(self, group: int) -> bool:
        """Whether the store may have keys of a group that are not cached."""
        return bool(self._group_status[group] == _MAY_BE_STORED)

    def _rows(self, keys: PackedKeys) -> tuple[np.ndarray, np.ndarray]:
        """See ``StateBackend.get_packed``."""
        if self._mixed_reads:
            self._mixed_reads -= 1
        else:
            try:
                packed = self._backend.get_packed(keys, self._value_bytes)
                self._mixed_span = 1
                return packed
            except StateError:
                if self._cell_count == 1 and not self._other_cell_count:
                    raise
            self._mixed_reads, self._mixed_span = self._mixed_span, min(2 * self._mixed_span, _MIXED_SPAN_MAX)
        # What fails for another reason fails again here.
        values = self._backend.get_many(keys.to_list())
        if self._other_cell_count:
            found = accumulators.pack_mixed(values, self._cell_count, self._other_cell_count)
        else:
            found = accumulators.pack_padded(values, self._cell_count)
        return found

    def check_groups(self, groups: np.ndarray) -> None:
        """Find out, once for each key group, whether the store holds any key of this state."""
        unchecked = groups[self._group_status[groups] == _UNCHECKED]
        for group in np.unique(unchecked).tolist() if len(unchecked) else ():
            prefix = layout.state_prefix(group, self._state_id)
            holds = self._backend.may_hold(prefix)
            self._group_status[group] = _MAY_BE_STORED if holds else _ALL_CACHED

    def note_stored(self, groups: np.ndarray) -> None:
        """The store may have keys of these groups (numbers, or a mask) that are not cached."""
        self._group_status[groups] = _MAY_BE_STORED

    def forget(self, groups: np.ndarray) -> None:
        """These groups (a mask) have another owner: look again when one of their keys comes."""
        self._group_status[groups] = _UNCHECKED
