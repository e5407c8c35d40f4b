"""What each aggregate function keeps per key, and how a batch updates it.

An accumulator is some 8-byte cells of a key's slot (``weir.state.tables.cells.cell_table``); its layout is persisted,
so the order of a spec's aggregates and their functions must not change while a store is kept.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.errors import WeirError
from weir.operators.aggregation import part_kernels, value_kernels
from weir.operators.aggregation.columns import (
    array_of,
    from_words,
    lists_of,
    name_of,
    rows_that_count,
    words,
)
from weir.operators.aggregation.rows import FoldRows
from weir.operators.keyed import aggregate_kernels as kernels
from weir.operators.keyed.accumulator import Accumulator
from weir.operators.keyed.decimal_accumulators import DECIMAL_ACCUMULATORS
from weir.rows.records import plain_array
from weir.specs import Aggregate
from weir.specs.aggregate_functions import hyperloglog_precision
from weir.state.tables.cells.cell_table import CellTable


class CountAccumulator(Accumulator):
    """Number of rows, or of values that are not null."""

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        valid = rows.mask if rows.column is None else rows_that_count(rows.column, rows.mask)
        out = np.empty(len(slots), dtype=np.int64)
        kernels.running_count(slots, state.cells, self.cell, valid, out)
        return plain_array(out)


class SumAccumulator(Accumulator):
    """Sum of values: int64, checked, for integers; float64 otherwise."""

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        out_valid = np.empty(len(slots), dtype=np.uint8)
        place = (self.cell, state.presence, self._byte, self._bit)
        if self._dtype is not None and pa.types.is_integer(self._dtype):
            values, valid = self._values(rows, pa.int64())
            out = np.empty(len(slots), dtype=np.int64)
            row = kernels.running_sum_int(slots, state.cells, *place, values, valid, out, out_valid)
            if row >= 0:
                raise WeirError(
                    f"aggregate {name_of(self.aggregate)}: a key's sum passes 64 bits when {int(values[row])} is "
                    "added; cast the column to float64 first"
                )
            return array_of(out, out_valid)
        values, valid = self._values(rows, pa.float64())
        total = np.empty(len(slots), dtype=np.float64)
        kernels.running_sum_float(
            slots, state.cells.view(np.float64), *place, values, valid, total, out_valid
        )
        return array_of(total, out_valid)


class ExtremeAccumulator(Accumulator):
    """Minimum or maximum: float64 for floats, int64 for all others, which are numbers or what a number stands for."""

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        assert self._dtype is not None, "the graph checks that there is a column"
        is_float = pa.types.is_floating(self._dtype)
        values, valid = words(self.aggregate, rows.column, rows.mask)
        cells = state.cells
        if is_float:
            values, cells = values.view(np.float64), cells.view(np.float64)
        out = np.empty(len(slots), dtype=cells.dtype)
        out_valid = np.empty(len(slots), dtype=np.uint8)
        largest = self.aggregate.function == "max"
        place = (self.cell, state.presence, self._byte, self._bit)
        kernels.running_extreme(slots, cells, *place, values, valid, largest, out, out_valid)
        return from_words(out.view(np.int64), out_valid, self._dtype)


class MeanAccumulator(Accumulator):
    """Mean as float64: a float64 sum and the number of values."""

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = self._values(rows, pa.float64())
        out = np.empty(len(slots), dtype=np.float64)
        out_valid = np.empty(len(slots), dtype=np.uint8)
        sums = state.cells.view(np.float64)
        kernels.running_mean(slots, sums, state.cells, self.cell, values, valid, out, out_valid)
        return array_of(out, out_valid)


class MomentsAccumulator(Accumulator):
    """Variance and standard deviation: number of values, mean, sum of squared differences from it."""

    @property
    @override
    def width(self) -> int:
        return 3

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = self._values(rows, pa.float64())
        out, out_valid = np.empty(len(slots), dtype=np.float64), np.empty(len(slots), dtype=np.uint8)
        form = (int(self.aggregate.parameters[0]), self.aggregate.function == "stddev")
        cells = state.cells
        value_kernels.moments(
            slots, cells, cells.view(np.float64), self.cell, values, valid, *form, out, out_valid
        )
        return array_of(out, out_valid)


class ByTimeAccumulator(Accumulator):
    """The value with the lowest or the highest event time, and that time."""

    needs_times = True

    @property
    @override
    def width(self) -> int:
        return 2

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        values, valid = words(self.aggregate, rows.column, rows.mask)
        out, out_valid = np.empty(len(slots), dtype=np.int64), np.empty(len(slots), dtype=np.uint8)
        place = (self.cell, state.presence, self._byte, self._bit)
        is_last = self.aggregate.function == "last"
        value_kernels.by_time(
            slots, state.cells, *place, values, rows.times_ms, valid, is_last, out, out_valid
        )
        assert rows.column is not None, "the graph checks that there is a column"
        return from_words(out, out_valid, rows.column.type)


class LargestAccumulator(Accumulator):
    """The largest values, descending, after their number."""

    @property
    @override
    def width(self) -> int:
        return 1 + int(self.aggregate.parameters[0])

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        integers = self._dtype is not None and pa.types.is_integer(self._dtype)
        values, valid = self._values(rows, pa.int64() if integers else pa.float64())
        cells = state.cells if integers else state.cells.view(np.float64)
        size = self.width - 1
        out, counts = np.zeros((len(slots), size), dtype=cells.dtype), np.empty(len(slots), dtype=np.int64)
        value_kernels.largest(slots, state.cells, cells, self.cell, size, values, valid, out, counts)
        return lists_of(out, counts)


class DistinctAccumulator(Accumulator):
    """Number of different values; the mask says which are new."""

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        out = np.empty(len(slots), dtype=np.int64)
        kernels.running_count(slots, state.cells, self.cell, rows.mask, out)
        return pa.array(out)


class RegistersAccumulator(Accumulator):
    """Numbers of HyperLogLog registers by their rank, uint16; the mask has ranks before and after each row."""

    @property
    @override
    def width(self) -> int:
        return part_kernels.RANKS // 4

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        out = np.empty(len(slots), dtype=np.int64)
        before, after = (np.ascontiguousarray(rows.mask[:, number]) for number in (0, 1))
        precision = hyperloglog_precision(self.aggregate.parameters[0])
        ranks = state.cells.view(np.uint16)
        part_kernels.count_ranks(slots, ranks, 4 * self.cell, before, after, precision, out)
        return pa.array(out)


class DroppedAccumulator(Accumulator):
    """The cells of an aggregate that the job has no more."""

    @property
    @override
    def width(self) -> int:
        return int(self.aggregate.parameters[0])

    @override
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        return pa.nulls(len(slots))


_CLASSES: dict[str, type[Accumulator]] = {
    "count": CountAccumulator,
    "sum": SumAccumulator,
    "min": ExtremeAccumulator,
    "max": ExtremeAccumulator,
    "mean": MeanAccumulator,
    "variance": MomentsAccumulator,
    "stddev": MomentsAccumulator,
    "first": ByTimeAccumulator,
    "last": ByTimeAccumulator,
    "largest": LargestAccumulator,
    "count_distinct": DistinctAccumulator,
    "approx_distinct": RegistersAccumulator,
    "dropped": DroppedAccumulator,
}


def cell_count(aggregates: tuple[Aggregate, ...], schema: pa.Schema | None = None) -> int:
    """Cells that a key needs for all aggregates; columns that ``schema`` does not have are of no decimals."""
    types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
    return sum(_made(each, types.get(str(each.column)), 0).width for each in aggregates)


def make_accumulators(aggregates: tuple[Aggregate, ...], schema: pa.Schema) -> list[Accumulator]:
    """Accumulators over columns of ``schema``, side by side in the order given."""
    made: list[Accumulator] = []
    cell = 0
    for aggregate in aggregates:
        dtype = None if aggregate.column is None else schema.field(aggregate.column).type
        accumulator = _made(aggregate, dtype, cell)
        made.append(accumulator)
        cell += accumulator.width
    return made


def _made(aggregate: Aggregate, dtype: pa.DataType | None, cell: int) -> Accumulator:
    is_decimal = dtype is not None and pa.types.is_decimal(dtype)
    made_by = (is_decimal and DECIMAL_ACCUMULATORS.get(aggregate.function)) or _CLASSES[aggregate.function]
    return made_by(aggregate, dtype, cell)
