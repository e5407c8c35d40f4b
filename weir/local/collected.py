"""Rows that are kept in this process: what passed a step, in the order in which it passed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from weir.author.operator import Operator, OperatorContext


class Collection:
    """The rows of one step, of all its subtasks.

    Rows are here at once. After a restart those that no checkpoint covers are cut off and come again.
    """

    def __init__(self, schema: pa.Schema) -> None:
        """``schema``: user columns of the step's output, of a sink its input."""
        self.schema = schema
        self._batches: list[tuple[int, pa.RecordBatch]] = []
        self.rows = 0

    def add(self, subtask_index: int, batch: pa.RecordBatch) -> None:
        """Take in what passed one subtask."""
        self._batches.append((subtask_index, batch))
        self.rows += batch.num_rows

    def batches(self, start: int = 0) -> list[pa.RecordBatch]:
        """What came after the first ``start`` batches."""
        return [batch for _, batch in self._batches[start:]]

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def count(self, subtask_index: int) -> int:
        """How many batches came from one subtask."""
        return sum(index == subtask_index for index, _ in self._batches)

    def cut(self, counts: Mapping[int, int]) -> None:
        """Keep as many batches of each subtask as it had given at a checkpoint; none of those that are not named."""
        left = dict(counts)
        kept = []
        for index, batch in self._batches:
            if left.get(index, 0) > 0:
                left[index] -= 1
                kept.append((index, batch))
        self._batches = kept
        self.rows = sum(batch.num_rows for _, batch in kept)


class CollectingStep(Operator):
    """Keeps the rows that pass it; ``is_end``: nothing follows."""

    def __init__(self, collection: Collection, *, is_end: bool) -> None:
        self._collection = collection
        self._is_end = is_end
        self._index = 0

    def open(self, context: OperatorContext) -> None:
        """Remember the subtask."""
        self._index = context.subtask_index

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Keep the batch, and pass it on unless this is the end."""
        self._collection.add(self._index, batch)
        return () if self._is_end else (batch,)
