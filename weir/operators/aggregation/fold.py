"""What an aggregate is: which rows it takes, and counts, sums, extremes and means of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.errors import WeirError
from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation.columns import (
    Cells,
    FoldRows,
    array_of,
    from_words,
    name_of,
    numbers,
    rows_that_count,
    words,
)
from weir.operators.stateless.expressions import ExpressionInput
from weir.operators.stateless.small_predicates import SmallPredicate, small_predicate
from weir.rows.records import plain_array
from weir.specs.aggregate_functions import AnyAggregate, different_conditions
from weir.specs.row_wise import has_selector

#: All rows count.
ALL_VALID = np.zeros(0, dtype=np.uint8)
#: Arrays for results after each row; of length 0: none are wanted.
Room = tuple[np.ndarray, ...]


class Conditions:
    """Conditions of a step's aggregates. Each different one is evaluated once for a batch, all of them together.

    Comparisons of integers are done by NumPy: a call of Polars costs more than eight of them over a whole batch.
    """

    def __init__(self, aggregates: Sequence[AnyAggregate]) -> None:
        self._conditions, self._numbers = different_conditions(aggregates)
        self._schema: pa.Schema | None = None
        #: By the number of a condition; True and False themselves are evaluated once.
        self._plain: dict[int, SmallPredicate] = {}
        self._literals: dict[int, int] = {
            number: pl.select(condition.fill_null(value=False).cast(pl.UInt8)).item()
            for number, condition in enumerate(self._conditions)
            if condition.meta.is_literal()
        }
        #: Those that see the same columns, together.
        self._others: list[tuple[ExpressionInput, dict[int, pl.Expr]]] = []

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """Return for each aggregate which rows count: uint8, or of length 0: all."""
        if not self._conditions:
            return [ALL_VALID] * len(self._numbers)
        if self._schema is None or not self._schema.equals(batch.schema):
            self._prepare(batch.schema)
        found = {number: plain.mask(batch).view(np.uint8) for number, plain in self._plain.items()}
        for number, value in self._literals.items():
            found[number] = np.full(batch.num_rows, value, dtype=np.uint8)
        for given, conditions in self._others:
            told = given.frame(batch).select(
                condition.fill_null(value=False).cast(pl.UInt8).alias(str(number))
                for number, condition in conditions.items()
            )
            for number in conditions:
                mask = told.get_column(str(number)).to_numpy()
                # Conditions without a column have one value.
                whole = len(mask) == batch.num_rows
                found[number] = np.array(mask) if whole else np.full(batch.num_rows, mask[0], dtype=np.uint8)
        return [ALL_VALID if number is None else found[number] for number in self._numbers]

    def _prepare(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._plain = {}
        # A selector does not see the times, which others may name.
        others: dict[bool, dict[int, pl.Expr]] = {False: {}, True: {}}
        for number, condition in enumerate(self._conditions):
            if number in self._literals:
                continue
            plain = small_predicate(condition, schema)
            if plain is None:
                others[has_selector(condition)][number] = condition
            else:
                self._plain[number] = plain
        self._others = [(ExpressionInput(list(each.values())), each) for each in others.values() if each]


class Fold(ABC):
    """Cells of an aggregate; ``cell`` is the first of them."""

    #: Whether it looks at the event times of rows.
    needs_times: ClassVar[bool] = False

    def __init__(self, aggregate: AnyAggregate, dtype: pa.DataType | None, cell: int) -> None:
        self.aggregate = aggregate
        self.cell = cell
        self._dtype = dtype
        self._is_integer = dtype is not None and pa.types.is_integer(dtype)
        self._is_float = dtype is not None and pa.types.is_floating(dtype)
        self._byte, self._bit = cell // 8, 1 << (cell % 8)
        self._no_room = self._room(0)

    @property
    def width(self) -> int:
        """Cells of an entry."""
        return 1

    @abstractmethod
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        """Take in one value per slot.

        Args:
            slots: int32, shape (rows,).
            cells: of the table.
            rows: as many as ``slots``.
            room: gets the results after each row; None: nobody wants them.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """

    def running(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> pa.Array:
        """Take in one value per slot, as :meth:`take`; returns the result after each row."""
        room = self._room(len(slots))
        self.take(slots, cells, rows, room)
        return self._told(*room)

    def _room(self, rows: int) -> Room:
        """Arrays for the results after so many rows, and for whether there is one: uint8."""
        return np.empty(rows, dtype=np.int64 if self._is_integer else np.float64), np.empty(rows, np.uint8)

    def _told(self, *room: np.ndarray) -> pa.Array:
        """Results after each row, of room that is filled."""
        return array_of(*room)

    @abstractmethod
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        """Combine accumulators of panes; presence that is only set, never looked at, is merged by the caller.

        Raises:
            WeirError: a sum passes 64 bits.
        """

    @property
    def can_subtract(self) -> bool:
        """Return whether :meth:`merge` can be undone, exactly, by adding accumulators whose cells are negated.

        So are counts and sums of integers. What "has had a value" is not undone.
        """
        return False

    @abstractmethod
    def results(self, cells: Cells) -> pa.Array:
        """The values of accumulators, one per entry."""

    def _values(self, rows: FoldRows, target: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
        """Values and validity (empty: all) of the column as int64 or float64."""
        return numbers(self.aggregate, rows.column, rows.mask, target)

    def _present(self, values: np.ndarray, presence: np.ndarray) -> pa.Array:
        return array_of(values, self._is_present(presence))

    def _is_present(self, presence: np.ndarray) -> np.ndarray:
        found: np.ndarray = presence[:, self._byte] & self._bit != 0
        return found

    def _overflow(self, added: str = "") -> WeirError:
        return WeirError(
            f"aggregate {name_of(self.aggregate)}: a key's sum passes 64 bits{added}; cast the column to float64 first"
        )


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
