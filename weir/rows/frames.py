"""Polars frames of Arrow rows."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.types as pat


def frame_of(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """A frame of the same columns, which shares memory with numbers; its text columns are converted.

    Polars 2.1 does not take a part of a column of lists of a fixed size (``pl.Array``) that has nulls: rows with such
    a column are copied first.
    """
    return pl.DataFrame(whole_rows(rows) if has_arrays(rows.schema) else rows)


def whole_rows(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """A copy, which is no part of other rows."""
    return rows.take(pa.array(range(rows.num_rows), pa.int64()))


def has_arrays(schema: pa.Schema) -> bool:
    """Return whether some column has lists of a fixed size, or lists or structs of them."""
    return any(dtype.num_fields and _has_arrays(dtype) for dtype in schema.types)


def _has_arrays(dtype: pa.DataType) -> bool:
    if pat.is_fixed_size_list(dtype):
        return True
    return any(_has_arrays(dtype.field(index).type) for index in range(dtype.num_fields))
