"""Rows as JSON lines, for the sinks that show them."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa

from weir.records import user_columns


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    frame = pl.from_arrow(batch.select(user_columns(batch.schema)))
    assert isinstance(frame, pl.DataFrame)
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()
