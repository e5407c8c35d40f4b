"""Rows as JSON lines; bytes, which JSON has not, are base64, as in answers to questions."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa

from weir.rows.frames import frame_of
from weir.rows.records import user_columns

#: Since 1973 each zone is whole minutes from UTC.
_WHOLE_FROM_S = 94_694_400


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    return frame_lines(frame_of(batch.select(user_columns(batch.schema))))


def with_whole_minutes(frame: pl.DataFrame) -> pl.DataFrame:
    """Times of zones that were not whole minutes from UTC then, as before 1900, in UTC: texts leave seconds out."""
    odd = []
    for name, dtype in frame.schema.items():
        if not isinstance(dtype, pl.Datetime) or dtype.time_zone in (None, "UTC"):
            continue
        times = frame.get_column(name)
        first_s = times.dt.epoch("s").min()
        if not isinstance(first_s, int) or first_s > _WHOLE_FROM_S:
            continue
        ahead_s = (times.dt.base_utc_offset() + times.dt.dst_offset()).dt.total_seconds()
        if (ahead_s % 60 != 0).any():
            odd.append(pl.col(name).dt.convert_time_zone("UTC"))
    return frame.with_columns(odd) if odd else frame


def frame_lines(frame: pl.DataFrame) -> bytes:
    """The rows of a frame, one JSON object a line."""
    frame = with_whole_minutes(frame)
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
