"""Sums, extremes and means of decimals; two cells hold one (``weir.operators.aggregation.decimals``)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import decimal_kernels as kernels
from weir.operators.aggregation import fold_kernels
from weir.operators.aggregation.columns import Cells, FoldRows
from weir.operators.aggregation.decimals import decimal_cells, decimals_of, means_of, too_long
from weir.operators.aggregation.fold import Fold, Room
from weir.specs.aggregate_functions import decimal_type


class _DecimalFold(Fold):
    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def _room(self, rows: int) -> Room:
        return np.empty((rows, 2), dtype=np.int64), np.empty(rows, dtype=np.uint8)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        values, valid = room
        return decimals_of(values, valid, decimal_type(self.aggregate.function, self._dtype))

    @override
    def results(self, cells: Cells) -> pa.Array:
        valid = cells.presence[:, self._byte] & self._bit
        return self._told(cells.integers[:, self.cell : self.cell + 2], valid)


class DecimalSumFold(_DecimalFold):
    """Sum of decimals, checked."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        place = (self.cell, cells.presence, self._byte, self._bit)
        if kernels.add(slots, cells.integers, *place, values, valid, *(room or self._no_room)) >= 0:
            raise too_long(self.aggregate)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        if kernels.merge(index, cells.integers, self.cell, into.integers) >= 0:
            raise too_long(self.aggregate)


class DecimalExtremeFold(_DecimalFold):
    """Minimum or maximum of decimals."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        place = (self.cell, cells.presence, self._byte, self._bit)
        largest, out = self.aggregate.function == "max", room or self._no_room
        kernels.extreme(slots, cells.integers, *place, values, valid, largest, *out)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        place = (self.cell, self._byte, self._bit, self.aggregate.function == "max")
        kernels.merge_extreme(index, cells.integers, cells.presence, *place, into.integers, into.presence)


class DecimalMeanFold(Fold):
    """Mean of decimals: their sum, and the number of values."""

    @property
    @override
    def width(self) -> int:
        return 3

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        out = room or self._no_room
        if kernels.add_counted(slots, cells.integers, self.cell, values, valid, *out) >= 0:
            raise too_long(self.aggregate)

    @override
    def _room(self, rows: int) -> Room:
        return np.empty((rows, 2), dtype=np.int64), np.empty(rows, dtype=np.int64)

    @override
    def _told(self, *room: np.ndarray) -> pa.Array:
        sums, counts = room
        return means_of(self.aggregate, sums, counts, self._dtype)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        if kernels.merge(index, cells.integers, self.cell, into.integers) >= 0:
            raise too_long(self.aggregate)
        fold_kernels.merge_int(index, cells.integers, self.cell + 2, into.integers)

    @override
    def results(self, cells: Cells) -> pa.Array:
        at = self.cell
        return self._told(cells.integers[:, at : at + 2], cells.integers[:, at + 2])


DECIMAL_FOLDS: dict[str, type[Fold]] = {
    "sum": DecimalSumFold,
    "min": DecimalExtremeFold,
    "max": DecimalExtremeFold,
    "mean": DecimalMeanFold,
}
