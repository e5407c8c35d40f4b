"""Variance, first and last, and largest values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import value_kernels as kernels
from weir.operators.aggregation.columns import Cells, FoldRows, array_of, from_words, lists_of, words
from weir.operators.aggregation.fold import Fold, Room


class MomentsFold(Fold):
    """Variance and standard deviation: number of values, mean, sum of squared differences from it."""

    @property
    @override
    def width(self) -> int:
        return 3

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = self._values(rows, pa.float64())
        form = (int(self.aggregate.parameters[0]), self.aggregate.function == "stddev")
        place, out = (cells.integers, cells.floats, self.cell), room or self._no_room
        kernels.moments(slots, *place, values, valid, *form, *out)

    @override
    def _room(self, rows: int) -> Room:
        return np.empty(rows, dtype=np.float64), np.empty(rows, dtype=np.uint8)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        kernels.merge_moments(index, cells.integers, cells.floats, self.cell, into.integers, into.floats)

    @override
    def results(self, cells: Cells) -> pa.Array:
        divisors = cells.integers[:, self.cell] - int(self.aggregate.parameters[0])
        found = cells.floats[:, self.cell + 2] / np.maximum(divisors, 1)
        return array_of(np.sqrt(found) if self.aggregate.function == "stddev" else found, divisors > 0)


class ByTimeFold(Fold):
    """The value with the lowest or the highest event time, and that time."""

    needs_times = True

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = self._words(rows)
        place, out = (self.cell, cells.presence, self._byte, self._bit), room or self._no_room
        kernels.by_time(slots, cells.integers, *place, values, rows.times_ms, valid, self._is_last, *out)

    @override
    def _room(self, rows: int) -> Room:
        return np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.uint8)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        values, valid = room
        return from_words(values, valid, self._dtype)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        place = (self.cell, self._byte, self._bit, self._is_last)
        kernels.merge_by_time(index, cells.integers, cells.presence, *place, into.integers, into.presence)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return from_words(cells.integers[:, self.cell], self._is_present(cells.presence), self._dtype)

    def _words(self, rows: FoldRows) -> tuple[np.ndarray, np.ndarray]:
        """Values as int64, and which rows count."""
        return words(self.aggregate, rows.column, rows.mask)

    @property
    def _is_last(self) -> bool:
        return self.aggregate.function == "last"


class LargestFold(Fold):
    """The largest values, descending, after their number."""

    @property
    @override
    def width(self) -> int:
        return 1 + self._size

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = self._values(rows, pa.int64() if self._is_integer else pa.float64())
        place, out = (self.cell, self._size), room or self._no_room
        kernels.largest(slots, cells.integers, self._typed(cells), *place, values, valid, *out)

    @override
    def _room(self, rows: int) -> Room:
        dtype = np.int64 if self._is_integer else np.float64
        return np.zeros((rows, self._size), dtype=dtype), np.empty(rows, dtype=np.int64)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        return lists_of(*room)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        place = (self.cell, self._size)
        kernels.merge_largest(
            index, cells.integers, self._typed(cells), *place, into.integers, self._typed(into)
        )

    @override
    def results(self, cells: Cells) -> pa.Array:
        values = self._typed(cells)[:, self.cell + 1 : self.cell + 1 + self._size]
        return lists_of(values, cells.integers[:, self.cell])

    @property
    def _size(self) -> int:
        return int(self.aggregate.parameters[0])

    def _typed(self, cells: Cells) -> np.ndarray:
        return cells.integers if self._is_integer else cells.floats
