"""What an aggregate of a window is: it takes rows in, combines accumulators, and reads its result from them."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa

from weir.errors import WeirError
from weir.operators.aggregation.columns import array_of, name_of, numbers
from weir.operators.aggregation.rows import Cells, FoldRows
from weir.specs.windows import WindowAggregate


class Fold(ABC):
    """One aggregate's cells; ``cell`` is the first of them."""

    def __init__(self, aggregate: WindowAggregate, dtype: pa.DataType | None, cell: int) -> None:
        self.aggregate = aggregate
        self.cell = cell
        self._dtype = dtype
        self._is_integer = dtype is not None and pa.types.is_integer(dtype)
        self._byte, self._bit = cell // 8, 1 << (cell % 8)

    @property
    def width(self) -> int:
        """Cells of an entry."""
        return 1

    @abstractmethod
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows) -> None:
        """Take in one value per slot.

        Args:
            slots: int32, shape (rows,).
            cells: of the table.
            rows: as many as ``slots``.
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

    @property
    def can_subtract(self) -> bool:
        """Whether :meth:`merge` can be undone, exactly, by adding accumulators whose cells are negated.

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

    def _overflow(self) -> WeirError:
        return WeirError(
            f"aggregate {name_of(self.aggregate)}: a key's sum passes 64 bits; cast the column to float64 first"
        )
