"""What all aggregates of a window keep per key and pane, how rows are taken in, panes combined and results read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from weir.operators.aggregation import fold_kernels as kernels
from weir.operators.aggregation.columns import Cells, FoldRows, event_times
from weir.operators.aggregation.fold import Conditions, Fold
from weir.operators.aggregation.fold_classes import fold_class
from weir.operators.aggregation.parts import make_parts
from weir.operators.windows.panes.text_folds import TextByTimeFold
from weir.specs.aggregate_functions import AnyAggregate, is_coded_text


def _class_of(aggregate: AnyAggregate, dtype: pa.DataType | None) -> type[Fold]:
    return TextByTimeFold if is_coded_text(aggregate.function, dtype) else fold_class(aggregate, dtype)


class Folds:
    """The folds of a step's aggregates, side by side in the order given."""

    def __init__(
        self, aggregates: Sequence[AnyAggregate], schema: pa.Schema, order: Sequence[int] | None = None
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
        """Return the cells of the first and the last time of an entry of sessions: they are the last two."""
        return self.folds[-2].cell, self.folds[-1].cell

    def masks(self, batch: pa.RecordBatch) -> list[np.ndarray]:
        """Return for each aggregate which rows count: uint8, or of length 0."""
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
