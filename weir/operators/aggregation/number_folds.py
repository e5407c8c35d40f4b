"""Counts, sums, extremes and means of rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation.columns import array_of, from_words, rows_that_count, words
from weir.operators.aggregation.fold import Fold, Room
from weir.operators.aggregation.rows import Cells, FoldRows
from weir.rows.records import plain_array


class CountedFold(Fold):
    """Base of whole numbers that are never null."""

    @override
    def _room(self, rows: int) -> Room:
        return (np.empty(rows, dtype=np.int64),)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        return plain_array(*room)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return pa.array(np.ascontiguousarray(cells.integers[:, self.cell]))


class CountFold(CountedFold):
    """Number of rows, or of values that are not null."""

    @property
    @override
    def can_subtract(self) -> bool:
        return True

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        mask = rows.mask if rows.column is None else rows_that_count(rows.column, rows.mask)
        kernels.count(slots, cells.integers, self.cell, mask, *(room or self._no_room))

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        kernels.merge_int(index, cells.integers, self.cell, into.integers)


class SumFold(Fold):
    """Sum of values: int64, checked, for integers; float64 otherwise."""

    @property
    @override
    def can_subtract(self) -> bool:
        return self._is_integer

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        place, out = (self.cell, cells.presence, self._byte, self._bit), room or self._no_room
        values, valid = self._values(rows, pa.int64() if self._is_integer else pa.float64())
        if not self._is_integer:
            kernels.sum_float(slots, cells.floats, *place, values, valid, *out)
            return
        row = kernels.sum_int(slots, cells.integers, *place, values, valid, *out)
        if row >= 0:
            raise self._overflow(f" when {int(values[row])} is added" if room else "")

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        if not self._is_integer:
            kernels.merge_float(index, cells.floats, self.cell, into.floats)
        elif kernels.merge_int(index, cells.integers, self.cell, into.integers) >= 0:
            raise self._overflow()

    @override
    def results(self, cells: Cells) -> pa.Array:
        values = cells.integers if self._is_integer else cells.floats
        return self._present(values[:, self.cell], cells.presence)


class ExtremeFold(Fold):
    """Minimum or maximum: float64 for floats, int64 for all others, which are numbers or what a number stands for."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = words(self.aggregate, rows.column, rows.mask)
        if self._is_float:
            values = values.view(np.float64)
        place, out = (self.cell, cells.presence, self._byte, self._bit), room or self._no_room
        kernels.extreme(slots, self._typed(cells), *place, values, valid, self._is_largest, *out)

    @override
    def _room(self, rows: int) -> Room:
        return np.empty(rows, dtype=np.float64 if self._is_float else np.int64), np.empty(rows, np.uint8)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        values, valid = room
        return from_words(values.view(np.int64), valid, self._dtype)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        place = (self.cell, self._byte, self._bit, self._is_largest)
        found, best = self._typed(cells), self._typed(into)
        kernels.merge_extreme(index, found, cells.presence, *place, best, into.presence)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return from_words(cells.integers[:, self.cell], self._is_present(cells.presence), self._dtype)

    @property
    def _is_largest(self) -> bool:
        return self.aggregate.function == "max"

    def _typed(self, cells: Cells) -> np.ndarray:
        return cells.floats if self._is_float else cells.integers


class MeanFold(Fold):
    """Mean as float64: a float64 sum and the number of values."""

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = self._values(rows, pa.float64())
        out = room or self._no_room
        kernels.mean(slots, cells.floats, cells.integers, self.cell, values, valid, *out)

    @override
    def _room(self, rows: int) -> Room:
        return np.empty(rows, dtype=np.float64), np.empty(rows, dtype=np.uint8)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        kernels.merge_float(index, cells.floats, self.cell, into.floats)
        kernels.merge_int(index, cells.integers, self.cell + 1, into.integers)

    @override
    def results(self, cells: Cells) -> pa.Array:
        counts = cells.integers[:, self.cell + 1]
        return array_of(cells.floats[:, self.cell] / np.maximum(counts, 1), counts != 0)


class DroppedFold(Fold):
    """The cells of an aggregate that the job has no more."""

    @property
    @override
    def width(self) -> int:
        return int(self.aggregate.parameters[0])

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        pass

    @override
    def running(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> pa.Array:
        return pa.nulls(len(slots))

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        pass

    @override
    def results(self, cells: Cells) -> pa.Array:
        return pa.nulls(len(cells.integers))
