"""Cells and the store: what it has of keys that are not cached, and the way of changed cells there.

Reads are skipped where the store cannot have the key: a key group that was empty in the store when this state first met
it, and from which no key was evicted or dropped since. Then all its keys are cached, so an uncached one is new.

Changed cells are written all at once, bit by bit, or by another thread for a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, split_rows
from weir.state.tables.capture import Capture
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.slot_table import SlotTable, packed_state_keys, positions_in_key_order
from weir.state.tables.table import IsOver

#: Reads after which values of one number of cells are asked for again, at most.
_MIXED_SPAN_MAX = 64
_UNCHECKED, _ALL_CACHED, _MAY_BE_STORED = 0, 1, 2
#: Keys of one write to the store. Encoding and writing hold the GIL for about 1 µs a key: under 2 ms a chunk.
WRITE_KEYS_MAX = 1_500
#: Keys that rows wait for when dirty slots are written bit by bit: about half a millisecond.
FLUSH_KEYS_MAX = 500
#: What one :meth:`CellWrites.write_part` writes at most, whatever its share: about 5 ms.
FLUSH_CALL_KEYS_MAX = 10 * FLUSH_KEYS_MAX
#: Puts keys with their cells and presence into the store.
CellWriter = Callable[[PackedKeys, np.ndarray, np.ndarray], None]


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


class CellWrites:
    """Writes dirty slots of one table. Its methods are called by the table's thread; captures are written by another.

    Args:
        backend: where state lives.
        state_id: the operator's number in the store.
        slots: the table whose slots are written.
        max_parallelism: number of key groups.
        drops_empty: a key none of whose cells has a value is deleted from the store, not written to it.
    """

    def __init__(
        self,
        backend: StateBackend,
        state_id: int,
        slots: SlotTable,
        max_parallelism: int,
        *,
        drops_empty: bool = False,
    ) -> None:
        self._backend = backend
        self._state_id = state_id
        self._slots = slots
        self._max_parallelism = max_parallelism
        self._drops_empty = drops_empty
        #: Slots that :meth:`write_part` has to write, and how many of them it has.
        self._to_flush: np.ndarray | None = None
        self._flushed = 0
        #: What another thread is writing, and its slots; they are clean, and stay until it is written.
        self._captured: tuple[Capture, np.ndarray] | None = None
        #: Told of slots, and their key groups, before the store gets them.
        self.on_write: Callable[[np.ndarray, np.ndarray], None] | None = None
        #: Keys written so far.
        self.keys_written = 0

    def _groups(self, slots: np.ndarray) -> np.ndarray:
        return weir_keys.key_groups(self._slots.hashes[slots], self._max_parallelism)

    def write_all(self) -> None:
        """Write all dirty slots; see :meth:`write`."""
        # First: what a failed capture did not write is dirty again.
        self.settle()
        self.write(self._slots.used_slots(dirty_only=True))

    def write(self, slots: np.ndarray) -> None:
        """Write slots in key order and mark them clean, chunk by chunk.

        Raises:
            StateError: the store cannot be written; what was not written is still dirty.
        """
        self.settle()
        groups = self._groups(slots)
        if self.on_write is not None:
            self.on_write(slots, groups)
        order = self._slots.in_key_order(slots, groups)
        slots, groups = slots[order], groups[order]
        put = self._writer()
        for start in range(0, len(slots), WRITE_KEYS_MAX):
            chunk = slots[start : start + WRITE_KEYS_MAX]
            keys = self._slots.state_keys(chunk, groups[start : start + WRITE_KEYS_MAX], self._state_id)
            put(keys, self._slots.cells[chunk], self._slots.presence[chunk])
            self._slots.mark_clean(chunk)
            self.keys_written += len(chunk)
            # Let other threads have the GIL before the next chunk.
            time.sleep(0)

    def write_part(self, share: float, is_over: IsOver) -> bool:
        """See ``CellTable.flush_part``."""
        if self.has_to_wait():
            return False
        if self._to_flush is None:
            self.settle()
            self._to_flush, self._flushed = self._slots.used_slots(dirty_only=True), 0
        wanted = min(int(np.ceil(share * len(self._to_flush))), self._flushed + FLUSH_CALL_KEYS_MAX)
        while self._flushed < wanted:
            part = self._to_flush[self._flushed : self._flushed + FLUSH_KEYS_MAX]
            # A slot may have been written or given to another key meanwhile; if it is dirty it has to go.
            self.write(self._slots.dirty_among(part))
            self._flushed += len(part)
            if is_over():
                break
        if self._flushed < len(self._to_flush):
            return False
        self._to_flush = None
        return True

    def may_begin_part(self) -> bool:
        """Whether the next :meth:`write_part` notes what is dirty."""
        return self._to_flush is None and not self.has_to_wait()

    def has_to_wait(self) -> bool:
        """Whether rows would wait for a write: because of a checkpoint, or of a store that cannot keep up."""
        return self.is_captured() or self._backend.writes_wait() or self._backend.is_stalled()

    def capture(self) -> Capture | None:
        """See ``CellTable.capture``."""
        self.settle()
        table = self._slots
        slots = table.used_slots(dirty_only=True)
        if not len(slots):
            return None
        groups = self._groups(slots)
        if self.on_write is not None:
            self.on_write(slots, groups)
        keys = table.state_keys(slots, groups, self._state_id)
        cells, presence, put = table.cells[slots], table.presence[slots], self._writer()
        table.mark_clean(slots)
        self.keys_written += len(slots)
        capture = Capture(lambda: self._write_captured(put, keys, cells, presence, capture))
        self._captured = capture, slots
        return capture

    def _write_captured(
        self, put: CellWriter, keys: PackedKeys, cells: np.ndarray, presence: np.ndarray, capture: Capture
    ) -> None:
        """Called by another thread."""
        order = positions_in_key_order(keys)
        sorted_keys = keys.take(order)
        for start in range(0, len(keys), FLUSH_KEYS_MAX):
            stop = min(len(keys), start + FLUSH_KEYS_MAX)
            chunk = order[start:stop]
            put(sorted_keys.part(start, stop), cells[chunk], presence[chunk])
            capture.pause(self._backend.is_stalled)

    def unwritten_slots(self) -> np.ndarray:
        """Slots whose cells the store may not have yet: the dirty ones, and those that another thread is writing."""
        dirty = self._slots.used_slots(dirty_only=True)
        if self._captured is None:
            return dirty
        return np.union1d(dirty, self._slots.used_among(self._captured[1]))

    def is_captured(self) -> bool:
        """Whether another thread is still writing what was captured."""
        return self._captured is not None and not self._captured[0].has_ended

    def settle(self) -> None:
        """Wait until what was captured is written; if that failed it is dirty again."""
        if self._captured is not None:
            (capture, slots), self._captured = self._captured, None
            if not capture.wait():
                self._slots.mark_dirty(slots)

    def _writer(self) -> CellWriter:
        """What writes keys whose cells were read by now."""
        return self._put

    def _put(self, keys: PackedKeys, cells: np.ndarray, presence: np.ndarray) -> None:
        rows = accumulators.encode_rows(cells, presence)
        if self._drops_empty:
            kept = presence.sum(axis=1, dtype=np.int64) > 0
            if not kept.all():
                listed = list(zip(keys.to_list(), kept.tolist(), strict=True))
                puts = zip((key for key, is_kept in listed if is_kept), split_rows(rows[kept]), strict=True)
                self._backend.write(list(puts), [key for key, is_kept in listed if not is_kept])
                return
        self._backend.put_packed(keys, rows)
