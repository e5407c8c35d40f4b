"""What an aggregate is: it takes rows into accumulators, combines these, and reads its result from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir.errors import WeirError
from weir.operators.aggregation.columns import array_of, name_of, numbers
from weir.operators.aggregation.rows import Cells, FoldRows
from weir.specs.aggregate_functions import AnyAggregate

#: Arrays for results after each row; of length 0: none are wanted.
Room = tuple[np.ndarray, ...]


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
