"""Sums, extremes and means of decimals: exact, as integers of 128 bits in two cells, of up to 38 digits.

Results are of the types of SQL: a sum has the column's digits after the point and 38 in all, a minimum the column's
type, a mean six digits after the point at least, rounded half away from zero (``weir.specs.aggregate_functions``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.errors import WeirError
from weir.operators.aggregation import decimal_kernels as kernels
from weir.operators.aggregation import fold_kernels
from weir.operators.aggregation.columns import Cells, FoldRows, name_of, rows_that_count
from weir.operators.aggregation.fold import Fold, Room
from weir.specs.aggregate_functions import AnyAggregate, decimal_type


def decimal_cells(column: pa.Array | None, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of a column of decimals as int64, shape (rows, 2), and which rows count (of length 0: all)."""
    assert column is not None, "the graph checks that there is a column"
    values = np.frombuffer(column.buffers()[1], dtype=np.int64).reshape(-1, 2)
    return values[column.offset : column.offset + len(column)], rows_that_count(column, mask)


def decimals_of(cells: np.ndarray, valid: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """What :func:`decimal_cells` took, of a type of its own; null where ``valid`` is 0 or False."""
    bits = None
    if not valid.all():
        bits = pa.py_buffer(np.packbits(valid != 0, bitorder="little"))
    return pa.Array.from_buffers(dtype, len(cells), [bits, pa.py_buffer(np.ascontiguousarray(cells))])


def means_of(aggregate: AnyAggregate, sums: np.ndarray, counts: np.ndarray, dtype: pa.DataType) -> pa.Array:
    """Means of values of type ``dtype``; null where there is no value.

    Args:
        aggregate: for messages.
        sums: int64, shape (results, 2).
        counts: int64, shape (results,).
        dtype: of the values.

    Raises:
        WeirError: a mean has more than 38 digits.
    """
    made, counts = np.array(sums, order="C"), np.ascontiguousarray(counts)
    target = decimal_type("mean", dtype)
    if kernels.divide(made, counts, target.scale - dtype.scale) >= 0:
        raise too_long(aggregate)
    return decimals_of(made, counts > 0, target)


def too_long(aggregate: AnyAggregate) -> WeirError:
    """A sum or mean does not fit its type."""
    return WeirError(
        f"aggregate {name_of(aggregate)}: a key's {aggregate.function} passes the 38 digits of a decimal; cast the "
        "column to float64 first"
    )


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
