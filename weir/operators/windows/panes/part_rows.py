"""The bytes in which accumulators of windows travel from the step before an exchange to the one after it.

A row that stands for several has in ``window_part`` their number (int64), the cells of its accumulators (8 bytes each)
and the bits of cells that have a value, little endian. Such rows are on their way between two subtasks of one job;
they are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.rows import Cells
from weir.rows.records import SYSTEM_COLUMNS
from weir.specs.windows import WINDOW_PART


@dataclass(frozen=True)
class PartRows:
    """Rows that stand for several."""

    #: Key columns and system columns.
    batch: pa.RecordBatch
    #: Rows that each stands for; int64.
    counts: np.ndarray
    cells: Cells


def split_parts(
    batch: pa.RecordBatch, schema: pa.Schema, cell_count: int
) -> tuple[pa.RecordBatch, PartRows | None]:
    """Rows as they came, and those that stand for several.

    Args:
        batch: of a :class:`WindowPartOperator`.
        schema: of the columns that the step reads.
        cell_count: of an accumulator.
    """
    index = batch.schema.get_field_index(WINDOW_PART)
    parts = batch.column(index)
    batch = batch.remove_column(index)
    system = [batch.schema.field(name) for name in batch.schema.names if name in SYSTEM_COLUMNS]
    plain_schema = pa.schema([*(schema.field(name) for name in schema.names), *system])
    if parts.null_count < len(parts):
        added = parts.is_valid()
        rows = unpacked(batch.filter(added), parts.drop_null(), cell_count)
        batch = batch.filter(parts.is_null())
    else:
        rows = None
    columns = [batch.column(name) for name in plain_schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema), rows


def unpacked(batch: pa.RecordBatch, parts: pa.Array, cell_count: int) -> PartRows:
    """The inverse of :func:`packed`; ``parts`` belongs to the rows of ``batch``, without nulls."""
    size = 8 * (1 + cell_count) + -(-cell_count // 8)
    _, offsets, data = parts.buffers()
    start = int(np.frombuffer(offsets, dtype=np.int32)[parts.offset])
    rows = np.frombuffer(data, dtype=np.uint8)[start : start + size * len(parts)].reshape(len(parts), size)
    words = np.ascontiguousarray(rows[:, : 8 * (1 + cell_count)]).view("<i8")
    cells = Cells(np.ascontiguousarray(words[:, 1:]), np.ascontiguousarray(rows[:, 8 * (1 + cell_count) :]))
    return PartRows(batch, words[:, 0], cells)


def packed(counts: np.ndarray, cells: Cells) -> pa.Array:
    """Numbers of rows and accumulators as bytes."""
    words = np.concatenate([counts.astype("<i8")[:, None], cells.integers], axis=1)
    rows = np.concatenate([np.ascontiguousarray(words).view(np.uint8), cells.presence], axis=1)
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)
