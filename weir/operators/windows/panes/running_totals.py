"""What the window of each key has that fires next: panes enter and leave, so that no window is put together anew.

Kept in memory only: it follows from the panes that the table has. Counts and sums of integers are added up, and taken
away again. What cannot be taken away has two stacks: of the panes up to some time, what each key has from each pane on,
made at once when the panes before have all left; and of the panes after that time, what they have together.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

import numpy as np
from typing_extensions import override

from weir.errors import WeirError
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes import running_kernels as kernels
from weir.operators.windows.panes.folds import Folds
from weir.state.tables.cells.slot_table import SlotTable
from weir.state.tables.panes.window_entries import WindowEntries


class NoRoomError(Exception):
    """The totals would not fit the memory that they may have."""


class RunningTotals(ABC):
    """Totals of keys. A key has a slot as long as a pane of it has entered and not left."""

    def __init__(self, folds: Folds, bytes_max: int) -> None:
        """``bytes_max``: bound of the memory for keys and totals."""
        self._folds = folds
        self._bytes_max = bytes_max
        self.clear()

    def clear(self) -> None:
        """No pane has entered."""
        self._slots = SlotTable(self._folds.cell_count, self._bytes_max)
        #: By slot: how many panes have entered and not left; int32.
        self._panes = np.zeros(self._slots.capacity, dtype=np.int32)
        self._keys: tuple[np.ndarray, weir_keys.KeyColumn] | None = None
        #: The entries that were looked up last, and their slots, which stay until something leaves.
        self._found: tuple[WindowEntries, np.ndarray] | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return int(self._slots.memory_bytes + self._panes.nbytes)

    def enter(self, entries: WindowEntries) -> np.ndarray:
        """Take in the entries of one or several panes; returns their slots.

        Raises:
            NoRoomError: there is no room for further keys; nothing has changed.
            WeirError: a sum passes 64 bits.
        """
        slots = self.slots_of(entries)
        if (self._panes[slots] == 0).any():
            self._keys = None
        self._add(slots, entries)
        return slots

    def slots_of(self, entries: WindowEntries) -> np.ndarray:
        """Slots of the keys of entries, new ones for new keys; int32.

        Raises:
            NoRoomError: there is no room for further keys.
        """
        if self._found is not None and self._found[0] is entries:
            return self._found[1]
        table, keys = self._slots, entries.keys
        hashes = weir_keys.hash_keys(keys)
        slots, missing = table.probe(hashes, keys.data, keys.offsets, changes=False)
        if missing:
            self._keys = None
            new = np.empty(missing, dtype=np.int32)
            row = table.insert_missing(hashes, keys.data, keys.offsets, 0, slots, new)
            while row < len(slots):
                if not table.make_room(int(keys.offsets[row + 1]) - int(keys.offsets[row])):
                    raise NoRoomError
                row = table.insert_missing(hashes, keys.data, keys.offsets, row, slots, new)
            self._grow(table.capacity)
        self._found = entries, slots
        return slots

    def _grow(self, capacity: int) -> None:
        self._panes = _grown(self._panes, capacity)

    def leave(self, entries: WindowEntries, until_ms: int) -> None:
        """Take away the entries of panes that have entered.

        Args:
            entries: of all panes that end up to ``until_ms``, and have not left.
            until_ms: end of the last pane that leaves.
        """
        if not len(entries):
            return
        slots = self.slots_of(entries)
        self._take_away(slots, entries, until_ms)
        self._found = None
        gone = np.unique(slots[self._panes[slots] == 0])
        if len(gone):
            self._forget(gone)
            self._slots.remove(gone)
            self._keys = None

    def keys(self) -> tuple[np.ndarray, weir_keys.KeyColumn]:
        """Slots of the keys that have a pane (int32), and the keys; the same arrays until keys come or go."""
        if self._keys is None:
            slots = self._slots.used_slots(dirty_only=False)
            slots = slots[self._panes[slots] > 0]
            data, lengths = self._slots.keys_of(slots)
            offsets = np.zeros(len(slots) + 1, dtype=np.int64)
            np.cumsum(lengths, out=offsets[1:])
            self._keys = slots, weir_keys.KeyColumn(data, offsets)
        return self._keys

    @abstractmethod
    def totals(self, slots: np.ndarray) -> Cells:
        """What the keys at these slots have; copies."""

    @abstractmethod
    def _add(self, slots: np.ndarray, entries: WindowEntries) -> None:
        """Add entries to what their keys have."""

    @abstractmethod
    def _take_away(self, slots: np.ndarray, entries: WindowEntries, until_ms: int) -> None:
        """Take entries away."""

    @abstractmethod
    def _forget(self, slots: np.ndarray) -> None:
        """Forget what these slots had: they are free."""


class SummedTotals(RunningTotals):
    """Totals of counts and sums of integers: what has entered is taken away exactly."""

    @override
    def clear(self) -> None:
        super().clear()
        #: By slot and cell: in how many panes it has had a value.
        self._counts = np.zeros((self._slots.capacity, self._folds.cell_count), dtype=np.int32)

    @property
    @override
    def memory_bytes(self) -> int:
        return super().memory_bytes + int(self._counts.nbytes)

    def _grow(self, capacity: int) -> None:
        super()._grow(capacity)
        self._counts = _grown(self._counts, capacity)

    @override
    def totals(self, slots: np.ndarray) -> Cells:
        presence = np.zeros((len(slots), self._slots.presence.shape[1]), dtype=np.uint8)
        kernels.presence_of(slots, self._counts, presence)
        return Cells(np.take(self._slots.cells, slots, axis=0), presence)

    def _add(self, slots: np.ndarray, entries: WindowEntries) -> None:
        arrays = (entries.cells, entries.presence, self._slots.cells, self._counts, self._panes)
        cell = kernels.enter(slots, *arrays)
        if cell >= 0:
            fold = next(each for each in reversed(self._folds.folds) if each.cell <= cell)
            raise WeirError(
                f"aggregate {fold.aggregate.output!r} ({fold.aggregate.function} of {fold.aggregate.column!r}): a "
                "key's sum passes 64 bits; cast the column to float64 first"
            )

    def _take_away(self, slots: np.ndarray, entries: WindowEntries, until_ms: int) -> None:
        arrays = (entries.cells, entries.presence, self._slots.cells, self._counts, self._panes)
        kernels.leave(slots, *arrays)

    def _forget(self, slots: np.ndarray) -> None:
        """Set all to zero."""


class StackedTotals(RunningTotals):
    """Totals of everything that can be combined, but not taken away: two stacks.

    The cells of a slot are the sum of the panes after :attr:`_split_ms`, the other stack.
    """

    @override
    def clear(self) -> None:
        super().clear()
        slots = self._slots
        #: By slot: what the panes up to the split have together.
        self._front = Cells(np.zeros_like(slots.cells), np.zeros_like(slots.presence))
        #: By end of a pane up to the split, the next one to leave last: slots, and what they have after that pane.
        self._after: list[tuple[int, np.ndarray, Cells]] = []
        self._split_ms = -(2**63)
        self.needs_panes = False

    @property
    @override
    def memory_bytes(self) -> int:
        after = sum(
            slots.nbytes + cells.integers.nbytes + cells.presence.nbytes for _, slots, cells in self._after
        )
        return super().memory_bytes + int(after + sum(array.nbytes for array in self._front))

    def _grow(self, capacity: int) -> None:
        super()._grow(capacity)
        self._front = Cells(*(_grown(array, capacity) for array in self._front))

    @override
    def totals(self, slots: np.ndarray) -> Cells:
        count = len(slots)
        cells = np.concatenate([self._front.integers[slots], self._slots.cells[slots]])
        presence = np.concatenate([self._front.presence[slots], self._slots.presence[slots]])
        index = np.tile(np.arange(count, dtype=np.int64), 2)
        return self._folds.merged(index, cells, presence, count)

    def _add(self, slots: np.ndarray, entries: WindowEntries) -> None:
        self._combine(slots, entries, Cells(self._slots.cells, self._slots.presence))
        np.add.at(self._panes, slots, 1)

    def _combine(self, slots: np.ndarray, entries: WindowEntries, into: Cells) -> None:
        self._folds.merge_into(slots.astype(np.int64), entries.cells, entries.presence, into)

    def _take_away(self, slots: np.ndarray, entries: WindowEntries, until_ms: int) -> None:
        np.subtract.at(self._panes, slots, 1)
        while self._after and self._after[-1][0] <= until_ms:
            _, changed, after = self._after.pop()
            self._front.integers[changed], self._front.presence[changed] = after
        # Panes after the split leave: the other stack must be made anew, of those that stay.
        self.needs_panes = until_ms > self._split_ms

    def check_room(self, entering: int) -> None:
        """Check whether the first stack may be made with so many further entries.

        Raises:
            NoRoomError: it would take too much memory.
        """
        entry_bytes = 8 * self._folds.cell_count + self._slots.presence.shape[1] + 4
        if (int(self._panes.sum(dtype=np.int64)) + entering) * entry_bytes > self._bytes_max:
            raise NoRoomError

    def split(self, entries: WindowEntries, until_ms: int) -> None:
        """Make the first stack of the panes that stay.

        Args:
            entries: of all panes that have entered and not left.
            until_ms: end of the last of them.
        """
        slots = self.slots_of(entries)
        for array in (*self._front, self._slots.cells, self._slots.presence):
            array[:] = 0
        self._after = []
        order = np.argsort(-entries.ends_ms, kind="stable")
        ends_ms = entries.ends_ms[order]
        bounds = [0, *(np.flatnonzero(np.diff(ends_ms)) + 1).tolist(), len(order)]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                rows = order[start:stop]
                pane = slots[rows]
                after = Cells(self._front.integers[pane], self._front.presence[pane])
                self._after.append((int(ends_ms[start]), pane, after))
                self._combine(pane, entries.part(rows), self._front)
        self._split_ms, self.needs_panes = until_ms, False

    def _forget(self, slots: np.ndarray) -> None:
        for array in (*self._front, self._slots.cells, self._slots.presence):
            array[slots] = 0


def make_totals(folds: Folds, bytes_max: int) -> RunningTotals:
    """The form that these aggregates need."""
    summed = all(fold.can_subtract for fold in folds.folds)
    return (SummedTotals if summed else StackedTotals)(folds, bytes_max)


def _grown(array: np.ndarray, rows: int) -> np.ndarray:
    if len(array) >= rows:
        return array
    return np.concatenate([array, np.zeros((rows - len(array), *array.shape[1:]), dtype=array.dtype)])
