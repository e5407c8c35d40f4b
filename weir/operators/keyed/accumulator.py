"""What a running aggregate is: it takes rows of keys in, and returns the value after each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.columns import numbers
from weir.operators.aggregation.rows import FoldRows
from weir.specs import Aggregate
from weir.state.tables.cells.cell_table import CellTable


class Accumulator(ABC):
    """One aggregate's cells; ``cell`` is the first of them."""

    #: Whether it looks at the event times of rows.
    needs_times: ClassVar[bool] = False

    def __init__(self, aggregate: Aggregate, dtype: pa.DataType | None, cell: int) -> None:
        self.aggregate = aggregate
        self.cell = cell
        self._dtype = dtype
        self._byte, self._bit = cell // 8, 1 << (cell % 8)

    @property
    def width(self) -> int:
        """Cells of a key."""
        return 1

    @abstractmethod
    def update(self, state: CellTable, slots: np.ndarray, rows: FoldRows) -> pa.Array:
        """Take in one value per slot and return the running values, as long as ``slots``.

        Args:
            state: owner of the cells.
            slots: int32, shape (rows,).
            rows: as many as ``slots``.

        Raises:
            WeirError: an integer does not fit 64 bits, or a sum passes them.
        """

    def _values(self, rows: FoldRows, target: pa.DataType) -> tuple[np.ndarray, np.ndarray]:
        """Values and validity (empty: no nulls) of the column as int64 or float64."""
        return numbers(self.aggregate, rows.column, rows.mask, target)
