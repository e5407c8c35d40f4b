"""Rows of windows that stand for several, on their way from the step before an exchange to the one after it.

Such a row has in ``window_part`` the number of these and their accumulators
(``weir.operators.aggregation.packed_cells``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.packed_cells import unpacked
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
        rows = PartRows(batch.filter(added), *unpacked(parts.drop_null(), cell_count))
        batch = batch.filter(parts.is_null())
    else:
        rows = None
    columns = [batch.column(name) for name in plain_schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=plain_schema), rows
