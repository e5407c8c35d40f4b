"""What each aggregate of a window keeps per key and pane, how rows are taken in, panes combined and results read.

A fold is some 8-byte cells of an entry (``weir.state.tables.panes.window_table``); its layout is persisted, so the
order of a step's aggregates and their functions must not change while a store is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation.columns import array_of, from_words, rows_that_count, words
from weir.operators.aggregation.conditions import Conditions
from weir.operators.aggregation.decimal_folds import DECIMAL_FOLDS
from weir.operators.aggregation.fold import Fold
from weir.operators.aggregation.part_folds import DistinctFold, QuantileFold, RegistersFold
from weir.operators.aggregation.parts import make_parts
from weir.operators.aggregation.rows import Cells, FoldRows, event_times
from weir.operators.aggregation.value_folds import ByTimeFold, LargestFold, MomentsFold
from weir.operators.windows.panes.text_folds import TextByTimeFold
from weir.specs.aggregate_functions import is_coded_text
from weir.specs.windows import WindowAggregate


class CountFold(Fold):
    """Number of rows, or of values that are not null."""

    @property
    @override
    def can_subtract(self) -> bool:
        return True

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        mask = rows.mask if rows.column is None else rows_that_count(rows.column, rows.mask)
        kernels.count(slots, cells.integers, self.cell, mask)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        kernels.merge_int(index, cells.integers, self.cell, into.integers)

    @override
    def results(self, cells: Cells) -> pa.Array:
        return pa.array(np.ascontiguousarray(cells.integers[:, self.cell]))


class SumFold(Fold):
    """Sum of values: int64, checked, for integers; float64 otherwise."""

    @property
    @override
    def can_subtract(self) -> bool:
        return self._is_integer

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        place = (self.cell, cells.presence, self._byte, self._bit)
        if self._is_integer:
            if kernels.sum_int(slots, cells.integers, *place, *self._values(rows, pa.int64())) >= 0:
                raise self._overflow()
        else:
            values, valid = self._values(rows, pa.float64())
            kernels.sum_float(slots, cells.floats, *place, values, valid)

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
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        values, valid = words(self.aggregate, rows.column, rows.mask)
        if self._is_float:
            values = values.view(np.float64)
        place = (self.cell, cells.presence, self._byte, self._bit)
        kernels.extreme(slots, self._typed(cells), *place, values, valid, self._is_largest)

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        kernels.merge_extreme(
            index,
            self._typed(cells),
            cells.presence,
            self.cell,
            self._byte,
            self._bit,
            self._is_largest,
            self._typed(into),
            into.presence,
        )

    @override
    def results(self, cells: Cells) -> pa.Array:
        assert self._dtype is not None, "the graph checks that there is a column"
        return from_words(cells.integers[:, self.cell], self._is_present(cells.presence), self._dtype)

    @property
    def _is_float(self) -> bool:
        return self._dtype is not None and pa.types.is_floating(self._dtype)

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
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        values, valid = self._values(rows, pa.float64())
        kernels.mean(slots, cells.floats, cells.integers, self.cell, values, valid)

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
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        pass

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        pass

    @override
    def results(self, cells: Cells) -> pa.Array:
        return pa.nulls(len(cells.integers))


_CLASSES: dict[str, type[Fold]] = {
    "count": CountFold,
    "sum": SumFold,
    "min": ExtremeFold,
    "max": ExtremeFold,
    "mean": MeanFold,
    "variance": MomentsFold,
    "stddev": MomentsFold,
    "first": ByTimeFold,
    "last": ByTimeFold,
    "largest": LargestFold,
    "count_distinct": DistinctFold,
    "approx_distinct": RegistersFold,
    "quantile": QuantileFold,
    "dropped": DroppedFold,
}


def _class_of(aggregate: WindowAggregate, dtype: pa.DataType | None) -> type[Fold]:
    if is_coded_text(aggregate.function, dtype):
        return TextByTimeFold
    is_decimal = dtype is not None and pa.types.is_decimal(dtype)
    return (is_decimal and DECIMAL_FOLDS.get(aggregate.function)) or _CLASSES[aggregate.function]


class Folds:
    """All aggregates of a step, side by side in the order given."""

    def __init__(
        self, aggregates: Sequence[WindowAggregate], schema: pa.Schema, order: Sequence[int] | None = None
    ) -> None:
        """Lay them out.

        Args:
            aggregates: in the order of results.
            schema: has the columns that are aggregated.
            order: their numbers in the order of their cells; None: as they are given.
        """
        made: dict[int, Fold] = {}
        self.cell_count = 0
        for number in range(len(aggregates)) if order is None else order:
            aggregate = aggregates[number]
            dtype = None if aggregate.column is None else schema.field(aggregate.column).type
            made[number] = _class_of(aggregate, dtype)(aggregate, dtype, self.cell_count)
            self.cell_count += made[number].width
        self.folds: list[Fold] = [made[number] for number in range(len(aggregates))]
        self._conditions = Conditions(aggregates)
        #: What aggregates keep besides cells.
        self.parts = make_parts(aggregates, [fold.cell for fold in self.folds])

    @property
    def time_cells(self) -> tuple[int, int]:
        """Of sessions, whose last two are the first and the last time of an entry: their cells."""
        return self.folds[-2].cell, self.folds[-1].cell

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """For each aggregate which rows count: uint8, or of length 0."""
        return self._conditions.masks(batch)

    def take(
        self, slots: np.ndarray, cells: Cells, piece: pa.RecordBatch, masks: Sequence[np.ndarray]
    ) -> None:
        """Take rows into the accumulators at their slots; ``masks`` are those of these rows.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """
        times_ms = event_times(piece)
        for fold, mask in zip(self.folds, masks, strict=True):
            name = fold.aggregate.column
            column = None if name is None else piece.column(name)
            fold.take(slots, cells, FoldRows(column, mask, times_ms))

    def merged(self, index: np.ndarray, cells: np.ndarray, presence: np.ndarray, count: int) -> Cells:
        """Cells and presence of ``count`` windows; entry i goes to that of number ``index[i]``, unless -1.

        Raises:
            WeirError: a sum passes 64 bits.
        """
        into = Cells(
            np.zeros((count, self.cell_count), dtype=np.int64),
            np.zeros((count, presence.shape[1]), dtype=np.uint8),
        )
        self.merge_into(index, cells, presence, into)
        return into

    def merge_into(self, index: np.ndarray, cells: np.ndarray, presence: np.ndarray, into: Cells) -> None:
        """Combine accumulators with others, as :meth:`merged`.

        Raises:
            WeirError: a sum passes 64 bits.
        """
        for fold in self.folds:
            fold.merge(index, Cells(cells, presence), into)
        kernels.merge_presence(index, presence, into.presence)

    def results(self, cells: np.ndarray, presence: np.ndarray) -> list[pa.Array]:
        """A column for each aggregate."""
        return [fold.results(Cells(cells, presence)) for fold in self.folds]
