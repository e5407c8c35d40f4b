"""Aggregates whose parts (``weir.operators.aggregation.parts``) say what their cells take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation import part_kernels
from weir.operators.aggregation.columns import Cells, FoldRows
from weir.operators.aggregation.fold import CountedFold, Room
from weir.specs.aggregate_functions import hyperloglog_precision


class PartFold(CountedFold):
    """Accumulators that cannot be combined: what the part has of all panes is counted anew."""

    @override
    def merge(self, index: np.ndarray, cells: Cells, into: Cells) -> None:
        pass


class DistinctFold(PartFold):
    """Number of different values."""

    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        """Take in rows, as every fold; the mask says which values are new."""
        kernels.count(slots, cells.integers, self.cell, rows.mask, *(room or self._no_room))


class RegistersFold(PartFold):
    """Numbers of HyperLogLog registers by their rank, uint16."""

    @property
    @override
    def width(self) -> int:
        return part_kernels.RANKS // 4

    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        """Take in rows, as every fold; the mask has ranks before and after each row."""
        before, after = (np.ascontiguousarray(rows.mask[:, number]) for number in (0, 1))
        ranks, out = cells.integers.view(np.uint16), room or self._no_room
        part_kernels.count_ranks(slots, ranks, 4 * self.cell, before, after, self._precision, *out)

    @override
    def results(self, cells: Cells) -> pa.Array:
        out = np.empty(len(cells.integers), dtype=np.int64)
        ranks = np.ascontiguousarray(cells.integers).view(np.uint16)
        part_kernels.estimates(ranks, 4 * self.cell, self._precision, out)
        return pa.array(out)

    @property
    def _precision(self) -> int:
        return hyperloglog_precision(self.aggregate.parameters[0])


class QuantileFold(PartFold):
    """A quantile, which is read from buckets alone."""

    @override
    def take(self, slots: np.ndarray, cells: Cells, rows: FoldRows, room: Room | None = None) -> None:
        pass

    @override
    def results(self, cells: Cells) -> pa.Array:
        return self._present(cells.floats[:, self.cell], cells.presence)
