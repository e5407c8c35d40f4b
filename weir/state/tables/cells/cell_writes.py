"""The way of changed cells to the store: all at once, bit by bit, or by another thread for a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state.api import StateBackend
from weir.state.packed import PackedKeys, split_rows
from weir.state.tables.capture import Capture
from weir.state.tables.cells import accumulators
from weir.state.tables.cells.slot_table import SlotTable, positions_in_key_order
from weir.state.tables.table import IsOver

#: Keys of one write to the store. Encoding and writing hold the GIL for about 1 µs a key: under 2 ms a chunk.
WRITE_KEYS_MAX = 1_500
#: Keys that rows wait for when dirty slots are written bit by bit: about half a millisecond.
FLUSH_KEYS_MAX = 500
#: What one :meth:`CellWrites.write_part` writes at most, whatever its share: about 5 ms.
FLUSH_CALL_KEYS_MAX = 10 * FLUSH_KEYS_MAX
#: Puts keys with their cells and presence into the store.
CellWriter = Callable[[PackedKeys, np.ndarray, np.ndarray], None]


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
