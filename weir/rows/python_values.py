"""Rows as Python has them: dicts for functions of the author, JSON for dead letters and messages.

Times of Arrow may have nanoseconds, and years that Python's ``datetime`` does not reach.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from weir.rows.utf8 import has_texts

#: Days of 1 January 1 and of 31 December 9999, from 1970 on.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
#: ``timedelta`` has no more days.
_DAYS_MAX = 999_999_999
_OF_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}


def python_times(rows: pa.RecordBatch | pa.Table) -> pa.RecordBatch | pa.Table:
    """Rows whose times Python has: nanoseconds are cut (of points in time towards the past).

    Raises:
        pa.ArrowInvalid: a date, time or duration is beyond what Python has; with the name of the column.
    """
    for index, field in enumerate(rows.schema):
        if not _has(field.type, _is_dated):
            continue
        column = rows.column(index)
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not all(map(_is_within, _leaves(chunk))):
                raise pa.ArrowInvalid(
                    f"column {field.name!r} ({field.type}) has a value that Python's datetime has not"
                )
        if _has(field.type, _is_fine):
            rows = rows.set_column(index, field.name, _cut(column))
    return rows


def row_dicts(rows: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """A dict for each row.

    Raises:
        pa.ArrowInvalid: see :func:`python_times`.
    """
    try:
        found: list[dict[str, Any]] = python_times(rows).to_pylist()
    except OverflowError as error:
        # By its time zone a time lies beyond, that in UTC does not.
        raise pa.ArrowInvalid(f"a time that Python's datetime has not: {error}") from error
    return found


def row_json(row: pa.RecordBatch) -> bytes:
    """The first row as JSON, whatever it has: bytes that are not UTF-8 stay as they are."""
    row = row.slice(0, 1)
    try:
        return orjson.dumps(row.to_pylist()[0], default=str)
    except (ValueError, OverflowError):
        values = {name: _told(column[0]) for name, column in zip(row.schema.names, row.columns, strict=True)}
        text = json.dumps(values, default=str, ensure_ascii=False, separators=(",", ":"))
        return text.encode(errors="surrogateescape")


def _told(scalar: pa.Scalar) -> Any:
    """A value as Python has it; bytes of texts that are not UTF-8 are lone surrogates (``surrogateescape``)."""
    dtype = scalar.type
    if not scalar.is_valid:
        return None
    if isinstance(dtype, pa.BaseExtensionType | pa.DictionaryType):
        return _told(scalar.value)
    if pat.is_struct(dtype):
        return {field.name: _told(scalar[index]) for index, field in enumerate(dtype)}
    if dtype.num_fields:
        return [_told(value) for value in scalar.values]
    if has_texts(dtype):
        return scalar.as_buffer().to_pybytes().decode(errors="surrogateescape")
    if pat.is_duration(dtype):
        return f"{scalar.value} {dtype.unit}"
    return scalar.cast(pa.string()).as_py() if pat.is_temporal(dtype) else scalar.as_py()


def _has(dtype: pa.DataType, is_meant: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type is meant, or lies within this one at whatever depth."""
    if dtype.num_fields:
        return any(_has(dtype.field(index).type, is_meant) for index in range(dtype.num_fields))
    return is_meant(dtype)


def _is_dated(dtype: pa.DataType) -> bool:
    return bool(pat.is_temporal(dtype))


def _is_fine(dtype: pa.DataType) -> bool:
    return dtype in (pa.time64("ns"), pa.duration("ns")) or (pat.is_timestamp(dtype) and dtype.unit == "ns")


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Arrays of dates, times and durations within a column."""
    if pat.is_struct(column.type):
        for part in column.flatten():
            yield from _leaves(part)
    elif column.type.num_fields:
        yield from _leaves(column.flatten())
    elif _is_dated(column.type):
        yield column


def _is_within(column: pa.Array) -> bool:
    dtype = column.type
    if pat.is_time(dtype) or not len(column):
        return True
    is_date32 = pat.is_date32(dtype)
    ends = pc.min_max(column.cast(pa.int32() if is_date32 else pa.int64()))
    if not ends["min"].is_valid:
        return True
    of_a_day = 1 if is_date32 else _OF_A_DAY["ms" if pat.is_date64(dtype) else dtype.unit]
    first, last = (-_DAYS_MAX, _DAYS_MAX) if pat.is_duration(dtype) else (_FIRST_DAY, _LAST_DAY)
    return bool(first <= ends["min"].as_py() // of_a_day and ends["max"].as_py() // of_a_day <= last)


def _cut(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    if pat.is_timestamp(column.type):
        # The cast cuts towards 1970.
        column = pc.floor_temporal(column, unit="microsecond")
    return column.cast(_coarser(column.type), safe=False)


@lru_cache(maxsize=1_000)
def _coarser(dtype: pa.DataType) -> pa.DataType:
    """The type with microseconds in place of nanoseconds."""
    if pat.is_struct(dtype):
        return pa.struct([field.with_type(_coarser(field.type)) for field in dtype])
    if pat.is_fixed_size_list(dtype):
        return pa.list_(_coarser(dtype.value_type), dtype.list_size)
    if dtype.num_fields:
        kind = pa.large_list if pat.is_large_list(dtype) else pa.list_
        return kind(_coarser(dtype.value_type))
    if not _is_fine(dtype):
        return dtype
    if pat.is_timestamp(dtype):
        return pa.timestamp("us", dtype.tz)
    return pa.duration("us") if pat.is_duration(dtype) else pa.time64("us")
