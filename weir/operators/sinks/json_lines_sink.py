"""Rows as JSON lines; bytes, which JSON has not, are base64, as in answers to questions."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa

from weir.rows.frames import frame_of
from weir.rows.records import user_columns


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    return frame_lines(frame_of(batch.select(user_columns(batch.schema))))


def frame_lines(frame: pl.DataFrame) -> bytes:
    """The rows of a frame, one JSON object a line."""
    texts = [
        _text(pl.col(name), dtype).alias(name) for name, dtype in frame.schema.items() if _has_bytes(dtype)
    ]
    out = io.BytesIO()
    frame.with_columns(texts).write_ndjson(out)
    return out.getvalue()


def _has_bytes(dtype: pl.DataType) -> bool:
    if isinstance(dtype, pl.List | pl.Array):
        return _has_bytes(_inner(dtype))
    if isinstance(dtype, pl.Struct):
        return any(_has_bytes(_inner(field)) for field in dtype.fields)
    return dtype == pl.Binary


def _inner(dtype: pl.List | pl.Array | pl.Field) -> pl.DataType:
    found = dtype.dtype if isinstance(dtype, pl.Field) else dtype.inner
    return found() if isinstance(found, type) else found


def _text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The same values with texts for bytes, in lists and structs too."""
    if not _has_bytes(dtype):
        return values
    if isinstance(dtype, pl.Array):
        return values.arr.to_list().list.eval(_text(pl.element(), _inner(dtype)))
    if isinstance(dtype, pl.List):
        return values.list.eval(_text(pl.element(), _inner(dtype)))
    if isinstance(dtype, pl.Struct):
        fields = [
            _text(values.struct.field(field.name), _inner(field)).alias(field.name) for field in dtype.fields
        ]
        return pl.when(values.is_not_null()).then(pl.struct(fields))
    return values.bin.encode("base64")
