"""Accumulators as bytes, as they travel between two subtasks of a job: a number, cells, and which of them have a value.

Little endian: the number (int64), the cells (8 bytes each), and the bits of cells that have a value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.columns import Cells


def packed_bytes(cell_count: int) -> int:
    """Bytes of one accumulator."""
    return 8 * (1 + cell_count) + -(-cell_count // 8)


def packed(numbers: np.ndarray, cells: Cells) -> pa.Array:
    """Accumulators as an array of binary values.

    Args:
        numbers: one for each; int64, shape (entries,).
        cells: of the entries.
    """
    words = np.concatenate([numbers.astype("<i8")[:, None], cells.integers], axis=1)
    rows = np.concatenate([np.ascontiguousarray(words).view(np.uint8), cells.presence], axis=1)
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)


def unpacked(parts: pa.Array, cell_count: int) -> tuple[np.ndarray, Cells]:
    """The inverse of :func:`packed`; ``parts`` has no nulls, and each has :func:`packed_bytes`."""
    size = packed_bytes(cell_count)
    _, offsets, data = parts.buffers()
    start = int(np.frombuffer(offsets, dtype=np.int32)[parts.offset])
    rows = np.frombuffer(data, dtype=np.uint8)[start : start + size * len(parts)].reshape(len(parts), size)
    words = np.ascontiguousarray(rows[:, : 8 * (1 + cell_count)]).view("<i8")
    cells = Cells(np.ascontiguousarray(words[:, 1:]), np.ascontiguousarray(rows[:, 8 * (1 + cell_count) :]))
    return words[:, 0], cells
