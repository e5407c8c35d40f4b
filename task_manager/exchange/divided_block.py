"""A block of rows that leave one by one, divided among the consumers of a HASH exchange at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import pyarrow as pa

from weir.keys.division import Part
from weir.rows.block import Block


class DividedBlock:
    """A block, divided among the consumers of one edge; valid as long as the edge's routing table holds.

    Used by the sending subtask's thread.
    """

    def __init__(self, block: Block, parts: Sequence[Part]) -> None:
        """``parts``: of all rows of the block that count; one for each consumer."""
        self.block = block
        # They share their buffers.
        size_bytes = parts[0].rows.get_total_buffer_size() if parts else 0
        self._row_bytes = size_bytes / max(1, sum(part.rows.num_rows for part in parts))
        self._parts = [(part.consumer, part.rows, part.numbers.tolist()) for part in parts]

    def between(self, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
        """Divide the block's rows from number ``start`` on and before ``stop`` among the consumers, in their order.

        Yields:
            Subtask index, rows (at least one), and about how many bytes they occupy.
        """
        for index, rows, numbers in self._parts:
            first = bisect_left(numbers, start)
            count = bisect_left(numbers, stop, first) - first
            if count:
                yield index, rows.slice(first, count), int(count * self._row_bytes)
