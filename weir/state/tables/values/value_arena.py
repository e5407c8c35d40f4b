"""Bytes of cached values in one array, in the order in which they came; where they are is in the cells of a slot table.

What was written is never changed: who took the array (a capture, a reader) finds its values there whatever comes later.
Room is made by copying what slots still point to into another array, or all, where that is most of it.
"""

from __future__ import annotations

import numpy as np

from weir.state.packed import PackedValues
from weir.state.tables.cells.slot_table import SlotTable

#: Cells of a slot: where its value begins, and how long it is.
START, LENGTH = 0, 1
CELLS = 2
_BYTES_MIN = 64 << 10
#: With a larger share of values that slots have an array that is full is copied as it is.
_LIVE_SHARE = 0.75


class ValueArena:
    """The values of one slot table, whose cells are :data:`START` and :data:`LENGTH`."""

    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self.data = np.empty(_BYTES_MIN, dtype=np.uint8)
        #: Bytes that are taken, by values that nobody has any more too.
        self.used_bytes = 0

    def live_bytes(self) -> int:
        """Bytes of the values of all slots."""
        return int(self._slots.cells[self._slots.used_slots(dirty_only=False), LENGTH].sum())

    def append(self, values: PackedValues) -> np.ndarray:
        """Copy values here; returns their cells, int64, shape (values, cells). What slots have may move."""
        offsets = values.offsets()
        size_bytes = int(offsets[-1])
        if self.used_bytes + size_bytes > len(self.data):
            self._make_room(size_bytes)
        offsets += self.used_bytes
        values.copy_to(self.data, offsets)
        self.used_bytes += size_bytes
        return np.stack([offsets[:-1], values.lengths], axis=1)

    def _make_room(self, more_bytes: int) -> None:
        if self.live_bytes() < _LIVE_SHARE * self.used_bytes:
            self.compact(more_bytes)
            return
        # As one piece: value by value takes several times as long, and nearly all of them stay.
        data = np.empty(2 * (self.used_bytes + more_bytes), dtype=np.uint8)
        data[: self.used_bytes] = self.data[: self.used_bytes]
        self.data = data

    def compact(self, more_bytes: int = 0) -> None:
        """Keep what slots have, in an array that has as much room again, and this much."""
        slots = self._slots.used_slots(dirty_only=False)
        cells = self._slots.cells[slots]
        kept = PackedValues(self.data, cells[:, START], cells[:, LENGTH])
        offsets = kept.offsets()
        self.used_bytes = int(offsets[-1])
        data = np.empty(max(2 * (self.used_bytes + more_bytes), _BYTES_MIN), dtype=np.uint8)
        kept.copy_to(data, offsets)
        self._slots.cells[slots, START] = offsets[:-1]
        self.data = data
