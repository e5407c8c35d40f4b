"""What each aggregate function keeps per key, and how a batch updates it.

An accumulator is one or two 8-byte cells of a key's slot (``weir.state.tables.cells``); its layout is persisted, so the
order of a spec's aggregates and their functions must not change while a store is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import WeirError
from weir.operators.keyed import aggregate_kernels as kernels
from weir.specs import Aggregate
from weir.state.tables.cells import CellTable


class Accumulator(ABC):
    """One aggregate's cells; ``cell`` is the first of them."""

    #: Cells of a key.
    width = 1

    def __init__(self, aggregate: Aggregate, dtype: pa.DataType | None, cell: int) -> None:
        self.aggregate = aggregate
        self.cell = cell
        self._dtype = dtype
        self._byte, self._bit = cell // 8, 1 << (cell % 8)

    @abstractmethod
    def update(self, state: CellTable, slots: np.ndarray, column: pa.Array | None) -> pa.Array:
        """Take in one value per slot and return the running values, as long as ``slots``.

        Args:
            state: owner of the cells.
            slots: int32, shape (rows,).
            column: the aggregated column's rows; None for a bare count.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """

    def _values(self, column: pa.Array | None, target: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
        """Values and validity (empty: no nulls) of a column as int64 or float64."""
        if column is None:
            raise WeirError(f"aggregate {self.aggregate.output!r} needs a column")
        try:
            cast = column if column.type == target else column.cast(target, safe=target == pa.int64())
        except pa.ArrowInvalid as error:
            raise WeirError(f"aggregate {self._name()}: {error}; cast the column to float64 first") from error
        if cast.null_count == 0:
            return cast.to_numpy(zero_copy_only=True), kernels.NO_NULLS
        valid = pc.cast(cast.is_valid(), pa.uint8()).to_numpy(zero_copy_only=True)
        return cast.fill_null(0).to_numpy(zero_copy_only=True), valid

    def _name(self) -> str:
        return f"{self.aggregate.output!r} ({self.aggregate.function} of {self.aggregate.column!r})"


def _array(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    return pa.array(values) if valid.all() else pa.array(values, mask=valid == 0)


class CountAccumulator(Accumulator):
    """Number of rows, or of values that are not null."""

    def update(self, state: CellTable, slots: np.ndarray, column: pa.Array | None) -> pa.Array:
        """See :class:`Accumulator`."""
        valid = kernels.NO_NULLS
        if column is not None and column.null_count:
            valid = pc.cast(column.is_valid(), pa.uint8()).to_numpy(zero_copy_only=True)
        out = np.empty(len(slots), dtype=np.int64)
        kernels.running_count(slots, state.cells, self.cell, valid, out)
        return pa.array(out)


class SumAccumulator(Accumulator):
    """Sum of values: int64, checked, for integers; float64 otherwise."""

    def update(self, state: CellTable, slots: np.ndarray, column: pa.Array | None) -> pa.Array:
        """See :class:`Accumulator`."""
        out_valid = np.empty(len(slots), dtype=np.uint8)
        place = (self.cell, state.presence, self._byte, self._bit)
        if self._dtype is not None and pa.types.is_integer(self._dtype):
            values, valid = self._values(column, pa.int64())
            out = np.empty(len(slots), dtype=np.int64)
            row = kernels.running_sum_int(slots, state.cells, *place, values, valid, out, out_valid)
            if row >= 0:
                raise WeirError(
                    f"aggregate {self._name()}: a key's sum passes 64 bits when {int(values[row])} is added; "
                    "cast the column to float64 first"
                )
            return _array(out, out_valid)
        values, valid = self._values(column, pa.float64())
        total = np.empty(len(slots), dtype=np.float64)
        kernels.running_sum_float(
            slots, state.cells.view(np.float64), *place, values, valid, total, out_valid
        )
        return _array(total, out_valid)


class ExtremeAccumulator(Accumulator):
    """Minimum or maximum: int64 for integers, float64 otherwise."""

    def update(self, state: CellTable, slots: np.ndarray, column: pa.Array | None) -> pa.Array:
        """See :class:`Accumulator`."""
        integers = self._dtype is not None and pa.types.is_integer(self._dtype)
        values, valid = self._values(column, pa.int64() if integers else pa.float64())
        cells = state.cells if integers else state.cells.view(np.float64)
        out = np.empty(len(slots), dtype=cells.dtype)
        out_valid = np.empty(len(slots), dtype=np.uint8)
        largest = self.aggregate.function == "max"
        place = (self.cell, state.presence, self._byte, self._bit)
        kernels.running_extreme(slots, cells, *place, values, valid, largest, out, out_valid)
        return _array(out, out_valid)


class MeanAccumulator(Accumulator):
    """Mean as float64: a float64 sum and the number of values."""

    width = 2

    def update(self, state: CellTable, slots: np.ndarray, column: pa.Array | None) -> pa.Array:
        """See :class:`Accumulator`."""
        values, valid = self._values(column, pa.float64())
        out = np.empty(len(slots), dtype=np.float64)
        out_valid = np.empty(len(slots), dtype=np.uint8)
        sums = state.cells.view(np.float64)
        kernels.running_mean(slots, sums, state.cells, self.cell, values, valid, out, out_valid)
        return _array(out, out_valid)


_CLASSES: dict[str, type[Accumulator]] = {
    "count": CountAccumulator,
    "sum": SumAccumulator,
    "min": ExtremeAccumulator,
    "max": ExtremeAccumulator,
    "mean": MeanAccumulator,
}


def cell_count(aggregates: tuple[Aggregate, ...]) -> int:
    """Cells that a key needs for all aggregates."""
    return sum(_CLASSES[aggregate.function].width for aggregate in aggregates)


def make_accumulators(aggregates: tuple[Aggregate, ...], schema: pa.Schema) -> list[Accumulator]:
    """Accumulators over columns of ``schema``, side by side in the order given."""
    made: list[Accumulator] = []
    cell = 0
    for aggregate in aggregates:
        dtype = None if aggregate.column is None else schema.field(aggregate.column).type
        accumulator = _CLASSES[aggregate.function](aggregate, dtype, cell)
        made.append(accumulator)
        cell += accumulator.width
    return made
