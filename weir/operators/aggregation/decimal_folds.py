"""Sums, extremes and means of decimals in windows; two cells hold one (``weir.operators.aggregation.decimals``)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import decimal_kernels as kernels
from weir.operators.aggregation import fold_kernels
from weir.operators.aggregation.decimals import (
    NO_COUNTS,
    NO_OUT,
    NO_VALID,
    decimal_cells,
    decimals_of,
    means_of,
    too_long,
)
from weir.operators.aggregation.fold import Fold
from weir.operators.aggregation.rows import Cells, FoldRows
from weir.specs.aggregate_functions import decimal_type


class _DecimalFold(Fold):
    @property
    @override
    def width(self) -> int:
        return 2

    def _results(self, cells: Cells, dtype: pa.DataType) -> pa.Array:
        valid = cells.presence[:, self._byte] & self._bit
        return decimals_of(cells.integers[:, self.cell : self.cell + 2], valid, dtype)


class DecimalSumFold(_DecimalFold):
    """Sum of decimals, checked."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        place = (self.cell, cells.presence, self._byte, self._bit)
        if kernels.add(slots, cells.integers, *place, values, valid, NO_OUT, NO_VALID) >= 0:
            raise too_long(self.aggregate)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        if kernels.merge(index, cells.integers, self.cell, into.integers) >= 0:
            raise too_long(self.aggregate)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return self._results(cells, decimal_type("sum", self._dtype))


class DecimalExtremeFold(_DecimalFold):
    """Minimum or maximum of decimals."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        place = (self.cell, cells.presence, self._byte, self._bit)
        largest = self.aggregate.function == "max"
        kernels.extreme(slots, cells.integers, *place, values, valid, largest, NO_OUT, NO_VALID)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        place = (self.cell, self._byte, self._bit, self.aggregate.function == "max")
        kernels.merge_extreme(index, cells.integers, cells.presence, *place, into.integers, into.presence)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return self._results(cells, self._dtype)


class DecimalMeanFold(Fold):
    """Mean of decimals: their sum, and the number of values."""

    @property
    @override
    def width(self) -> int:
        return 3

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        values, valid = decimal_cells(rows.column, rows.mask)
        if kernels.add_counted(slots, cells.integers, self.cell, values, valid, NO_OUT, NO_COUNTS) >= 0:
            raise too_long(self.aggregate)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        if kernels.merge(index, cells.integers, self.cell, into.integers) >= 0:
            raise too_long(self.aggregate)
        fold_kernels.merge_int(index, cells.integers, self.cell + 2, into.integers)

    @override
    def results(self, cells: Cells) -> pa.Array:
        at = self.cell
        return means_of(
            self.aggregate, cells.integers[:, at : at + 2], cells.integers[:, at + 2], self._dtype
        )


DECIMAL_FOLDS: dict[str, type[Fold]] = {
    "sum": DecimalSumFold,
    "min": DecimalExtremeFold,
    "max": DecimalExtremeFold,
    "mean": DecimalMeanFold,
}
