"""A block of rows that leave one by one, divided among the consumers of a HASH exchange at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from weir.keys.division import narrowed, with_key_hash
from weir.keys.hashing import partition_hashes
from weir.plan.graph import Edge
from weir.rows.ahead import Picked
from weir.rows.records import batch_bytes


class DividedBlock:
    """One block, divided among the consumers of one edge; valid as long as the edge's routing table holds.

    Used by the sending subtask's thread.
    """

    def __init__(
        self, block: pa.RecordBatch, edge: Edge, group_to_subtask: np.ndarray, consumers: Iterable[int]
    ) -> None:
        """Divide all rows.

        Args:
            block: the rows.
            edge: where they go, by HASH.
            group_to_subtask: int32, shape (max_parallelism,); its values are among ``consumers``.
            consumers: subtask indices.
        """
        self.block = block
        hashed, hashes = with_key_hash(narrowed(block, edge.sent_columns), edge.key_columns)
        indices = list(consumers)
        order, offsets = partition_hashes(hashes, group_to_subtask, max(indices) + 1)
        ordered = hashed.take(pa.array(order))
        ends = offsets.tolist()
        self._row_bytes = batch_bytes(ordered) / max(ordered.num_rows, 1)
        self._parts = [
            (index, Picked(order[start:end], ordered.slice(start, end - start)))
            for index in indices
            if (start := ends[index]) < (end := ends[index + 1])
        ]

    def between(self, first: int, end: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
        """Divide the block's rows from ``first`` on and before ``end`` among the consumers, in their order.

        Yields:
            Subtask index, rows (at least one), and about how many bytes they occupy.
        """
        for index, part in self._parts:
            start, stop = part.between(first, end)
            if start < stop:
                yield index, part.batch.slice(start, stop - start), int((stop - start) * self._row_bytes)
