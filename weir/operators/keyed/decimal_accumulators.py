"""Running sums, extremes and means of decimals; two cells hold a decimal (``weir.operators.aggregation.decimals``)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import decimal_kernels as kernels
from weir.operators.aggregation.decimals import decimal_cells, decimals_of, means_of, too_long
from weir.operators.aggregation.rows import FoldRows
from weir.operators.keyed.accumulator import Accumulator
from weir.specs.aggregate_functions import decimal_type
from weir.state.tables.cells.cell_table import CellTable


class DecimalSumAccumulator(Accumulator):
    """Sum of decimals, checked."""

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = decimal_cells(rows.column, rows.mask)
        out, out_valid = np.empty((len(slots), 2), dtype=np.int64), np.empty(len(slots), dtype=np.uint8)
        place = (self.cell, state.presence, self._byte, self._bit)
        if kernels.add(slots, state.cells, *place, values, valid, out, out_valid) >= 0:
            raise too_long(self.aggregate)
        return decimals_of(out, out_valid, decimal_type("sum", self._dtype))


class DecimalExtremeAccumulator(Accumulator):
    """Minimum or maximum of decimals."""

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = decimal_cells(rows.column, rows.mask)
        out, out_valid = np.empty((len(slots), 2), dtype=np.int64), np.empty(len(slots), dtype=np.uint8)
        place = (self.cell, state.presence, self._byte, self._bit)
        largest = self.aggregate.function == "max"
        kernels.extreme(slots, state.cells, *place, values, valid, largest, out, out_valid)
        return decimals_of(out, out_valid, self._dtype)


class DecimalMeanAccumulator(Accumulator):
    """Mean of decimals: their sum, and the number of values."""

    @property
    @override
    def width(self) -> int:
        return 3

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = decimal_cells(rows.column, rows.mask)
        sums, counts = np.empty((len(slots), 2), dtype=np.int64), np.empty(len(slots), dtype=np.int64)
        if kernels.add_counted(slots, state.cells, self.cell, values, valid, sums, counts) >= 0:
            raise too_long(self.aggregate)
        return means_of(self.aggregate, sums, counts, self._dtype)


DECIMAL_ACCUMULATORS: dict[str, type[Accumulator]] = {
    "sum": DecimalSumAccumulator,
    "min": DecimalExtremeAccumulator,
    "max": DecimalExtremeAccumulator,
    "mean": DecimalMeanAccumulator,
}
