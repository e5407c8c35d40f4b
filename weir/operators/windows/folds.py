"""What each aggregate of a window keeps per key and pane, how rows are taken in, panes combined and results read.

A fold is one or two 8-byte cells of an entry (``weir.state.tables.window_table``); its layout is persisted, so the
order of a step's aggregates and their functions must not change while a store is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from weir.errors import WeirError
from weir.operators.stateless.expressions import ExpressionInput
from weir.operators.windows import fold_kernels as kernels
from weir.specs.windows import WindowAggregate


class Cells(NamedTuple):
    """Accumulators of entries."""

    #: int64, shape (entries, cells).
    integers: np.ndarray
    #: Bits of the cells that have a value, uint8, shape (entries, ceil(cells / 8)).
    presence: np.ndarray

    @property
    def floats(self) -> np.ndarray:
        """The same memory as float64."""
        return self.integers.view(np.float64)


class Fold(ABC):
    """One aggregate's cells; ``cell`` is the first of them."""

    #: Cells of an entry.
    width = 1

    def __init__(self, aggregate: WindowAggregate, dtype: pa.DataType | None, cell: int) -> None:
        self.aggregate = aggregate
        self.cell = cell
        self._is_integer = dtype is not None and pa.types.is_integer(dtype)
        self._byte, self._bit = cell // 8, 1 << (cell % 8)

    @abstractmethod
    def take(self, slots: np.ndarray, cells: Cells, column: pa.Array | None, mask: np.ndarray) -> None:
        """Take in one value per slot.

        Args:
            slots: int32, shape (rows,).
            cells: of the table.
            column: the aggregated column's rows; None for a bare count.
            mask: uint8, 0 for rows that do not count; of length 0: all do.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """

    @abstractmethod
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """Combine accumulators of panes; presence that is only set, never looked at, is merged by the caller.

        Raises:
            WeirError: a sum passes 64 bits.
        """

    @abstractmethod
    def results(self, cells: Cells) -> pa.Array:
        """The values of accumulators, one per entry."""

    def _valid(self, column: pa.Array, mask: np.ndarray) -> np.ndarray:
        if column.null_count == 0:
            return mask
        valid: np.ndarray = pc.cast(column.is_valid(), pa.uint8()).to_numpy(zero_copy_only=True)
        return valid if not len(mask) else valid & mask

    def _values(
        self, column: pa.Array | None, mask: np.ndarray, target: pa.DataType
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values and validity (empty: all) of a column as int64 or float64."""
        assert column is not None, "only a count goes without a column, which the graph checks"
        valid = self._valid(column, mask)
        try:
            cast = column if column.type == target else column.cast(target, safe=target == pa.int64())
        except pa.ArrowInvalid as error:
            raise WeirError(f"aggregate {self._name()}: {error}; cast the column to float64 first") from error
        if cast.null_count:
            cast = cast.fill_null(0)
        return cast.to_numpy(zero_copy_only=True), valid

    def _name(self) -> str:
        return f"{self.aggregate.output!r} ({self.aggregate.function} of {self.aggregate.column!r})"

    def _present(self, values: np.ndarray, presence: np.ndarray) -> pa.Array:
        return _array(values, presence[:, self._byte] & self._bit != 0)

    def _overflow(self) -> WeirError:
        return WeirError(
            f"aggregate {self._name()}: a key's sum passes 64 bits; cast the column to float64 first"
        )


def _array(values: np.ndarray, valid: np.ndarray) -> pa.Array:
    values = np.ascontiguousarray(values)
    return pa.array(values) if valid.all() else pa.array(values, mask=~valid)


class CountFold(Fold):
    """Number of rows, or of values that are not null."""

    def take(self, slots: np.ndarray, cells: Cells, column: pa.Array | None, mask: np.ndarray) -> None:
        """See :class:`Fold`."""
        kernels.count(slots, cells.integers, self.cell, mask if column is None else self._valid(column, mask))

    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """See :class:`Fold`."""
        kernels.merge_int(index, cells.integers, self.cell, into.integers)

    def results(self, cells: Cells) -> pa.Array:
        """See :class:`Fold`."""
        return pa.array(np.ascontiguousarray(cells.integers[:, self.cell]))


class SumFold(Fold):
    """Sum of values: int64, checked, for integers; float64 otherwise."""

    def take(self, slots: np.ndarray, cells: Cells, column: pa.Array | None, mask: np.ndarray) -> None:
        """See :class:`Fold`."""
        place = (self.cell, cells.presence, self._byte, self._bit)
        if self._is_integer:
            if kernels.sum_int(slots, cells.integers, *place, *self._values(column, mask, pa.int64())) >= 0:
                raise self._overflow()
        else:
            values, valid = self._values(column, mask, pa.float64())
            kernels.sum_float(slots, cells.floats, *place, values, valid)

    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """See :class:`Fold`."""
        if not self._is_integer:
            kernels.merge_float(index, cells.floats, self.cell, into.floats)
        elif kernels.merge_int(index, cells.integers, self.cell, into.integers) >= 0:
            raise self._overflow()

    def results(self, cells: Cells) -> pa.Array:
        """See :class:`Fold`."""
        values = cells.integers if self._is_integer else cells.floats
        return self._present(values[:, self.cell], cells.presence)


class ExtremeFold(Fold):
    """Minimum or maximum: int64 for integers, float64 otherwise."""

    def take(self, slots: np.ndarray, cells: Cells, column: pa.Array | None, mask: np.ndarray) -> None:
        """See :class:`Fold`."""
        values, valid = self._values(column, mask, pa.int64() if self._is_integer else pa.float64())
        place = (self.cell, cells.presence, self._byte, self._bit)
        kernels.extreme(slots, self._typed(cells), *place, values, valid, self._is_largest)

    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """See :class:`Fold`."""
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

    def results(self, cells: Cells) -> pa.Array:
        """See :class:`Fold`."""
        return self._present(self._typed(cells)[:, self.cell], cells.presence)

    @property
    def _is_largest(self) -> bool:
        return self.aggregate.function == "max"

    def _typed(self, cells: Cells) -> np.ndarray:
        return cells.integers if self._is_integer else cells.floats


class MeanFold(Fold):
    """Mean as float64: a float64 sum and the number of values."""

    width = 2

    def take(self, slots: np.ndarray, cells: Cells, column: pa.Array | None, mask: np.ndarray) -> None:
        """See :class:`Fold`."""
        values, valid = self._values(column, mask, pa.float64())
        kernels.mean(slots, cells.floats, cells.integers, self.cell, values, valid)

    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """See :class:`Fold`."""
        kernels.merge_float(index, cells.floats, self.cell, into.floats)
        kernels.merge_int(index, cells.integers, self.cell + 1, into.integers)

    def results(self, cells: Cells) -> pa.Array:
        """See :class:`Fold`."""
        counts = cells.integers[:, self.cell + 1]
        return _array(cells.floats[:, self.cell] / np.maximum(counts, 1), counts != 0)


_CLASSES: dict[str, type[Fold]] = {
    "count": CountFold,
    "sum": SumFold,
    "min": ExtremeFold,
    "max": ExtremeFold,
    "mean": MeanFold,
}


class Folds:
    """All aggregates of a step, side by side in the order given."""

    def __init__(self, aggregates: Sequence[WindowAggregate], schema: pa.Schema) -> None:
        """``schema`` has the columns that are aggregated."""
        self.folds: list[Fold] = []
        self.cell_count = 0
        for aggregate in aggregates:
            dtype = None if aggregate.column is None else schema.field(aggregate.column).type
            fold = _CLASSES[aggregate.function](aggregate, dtype, self.cell_count)
            self.folds.append(fold)
            self.cell_count += fold.width
        #: Each different condition is evaluated once for a batch.
        self._conditions = {str(a.condition): a.condition for a in aggregates if a.condition is not None}
        self._inputs = {text: ExpressionInput([each]) for text, each in self._conditions.items()}

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """For each aggregate which rows count: uint8, or of length 0."""
        found = {
            text: _mask(self._inputs[text].frame(batch), condition, batch.num_rows)
            for text, condition in self._conditions.items()
        }
        return [
            kernels.ALL_VALID if fold.aggregate.condition is None else found[str(fold.aggregate.condition)]
            for fold in self.folds
        ]

    def take(
        self, slots: np.ndarray, cells: Cells, piece: pa.RecordBatch, masks: Sequence[np.ndarray]
    ) -> None:
        """Take rows into the accumulators at their slots; ``masks`` are those of these rows.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """
        for fold, mask in zip(self.folds, masks, strict=True):
            name = fold.aggregate.column
            fold.take(slots, cells, None if name is None else piece.column(name), mask)

    def merged(self, index: np.ndarray, cells: np.ndarray, presence: np.ndarray, count: int) -> Cells:
        """Cells and presence of ``count`` windows; entry i goes to that of number ``index[i]``, unless -1.

        Raises:
            WeirError: a sum passes 64 bits.
        """
        into = Cells(
            np.zeros((count, self.cell_count), dtype=np.int64),
            np.zeros((count, presence.shape[1]), dtype=np.uint8),
        )
        for fold in self.folds:
            fold.merge(index, Cells(cells, presence), into)
        kernels.merge_presence(index, presence, into.presence)
        return into

    def results(self, cells: np.ndarray, presence: np.ndarray) -> list[pa.Array]:
        """A column for each aggregate."""
        return [fold.results(Cells(cells, presence)) for fold in self.folds]


def _mask(frame: pl.DataFrame, condition: pl.Expr, rows: int) -> np.ndarray:
    found = frame.select(condition.fill_null(value=False)).to_series()
    mask = found.cast(pl.UInt8).to_numpy()
    # A condition without a column has one value.
    return np.array(mask) if len(mask) == rows else np.full(rows, mask[0], dtype=np.uint8)
