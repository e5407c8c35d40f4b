"""Timestamps of Parquet's old form, INT96, which Spark, Hive and Impala write: nanoseconds of a day, and the day.

A file says neither their unit nor their time zone. Most writers mean UTC. The unit is what the reader's schema says:
microseconds, in which every date of four digits has its place, or nanoseconds, which end in the year 2262.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pa_types

#: As pyarrow calls it.
INT96 = "INT96"
#: Of a value in the file: the nanoseconds of the day, and the day's number in the Julian calendar.
INT96_VALUE = np.dtype([("ns", "<u8"), ("day", "<i4")])
Int96Unit = Literal["us", "ns"]
_UNITS: tuple[Int96Unit, ...] = ("us", "ns")
#: The Julian day that is 1970-01-01, and how many days nanoseconds reach to both sides of it.
_EPOCH_DAY, _NANOSECOND_DAYS = 2_440_588, 106_750
_DAY_US = 86_400_000_000


class NanosecondsError(pa.ArrowInvalid):  # type: ignore[misc]
    """A timestamp has no place among nanoseconds."""

    def __init__(self) -> None:
        super().__init__("a timestamp is beyond the years 1677 to 2262, where nanoseconds end")


def int96_columns(file: pq.ParquetFile) -> set[int]:
    """Numbers of the Parquet columns of this form."""
    return {
        place
        for place in range(file.metadata.num_columns)
        if file.schema.column(place).physical_type == INT96
    }


def int96_schemas(found: pa.Schema, columns: Collection[int]) -> list[tuple[Int96Unit, pa.Schema]]:
    """What a file's schema may be taken to be: by unit, and with the time zone UTC or none."""
    return [
        (
            unit,
            pa.schema(
                [
                    field.with_type(_typed(field.type, columns, count, pa.timestamp(unit, zone)))
                    for field in found
                ]
            ),
        )
        for unit, zone in itertools.product(_UNITS, (None, "UTC"))
        for count in [itertools.count()]
    ]


def _typed(
    at: pa.DataType, columns: Collection[int], take: Iterator[int], timestamp: pa.DataType
) -> pa.DataType:
    """A type with another one for these of the Parquet columns below it, which are counted."""

    def below(inner: pa.Field) -> pa.Field:
        return inner.with_type(_typed(inner.type, columns, take, timestamp))

    if isinstance(at, pa.BaseExtensionType):
        # None of them is made of timestamps.
        _typed(at.storage_type, (), take, timestamp)
        return at
    if pa_types.is_struct(at):
        return pa.struct([below(field) for field in at])
    if pa_types.is_map(at):
        return pa.map_(below(at.key_field), below(at.item_field))
    if pa_types.is_fixed_size_list(at):
        return pa.list_(below(at.value_field), at.list_size)
    if pa_types.is_list(at):
        return pa.list_(below(at.value_field))
    if pa_types.is_large_list(at):
        return pa.large_list(below(at.value_field))
    return timestamp if next(take) in columns else at


def int96_numbers(values: np.ndarray, unit: Int96Unit) -> np.ndarray:
    """Values of a file as int64 since 1970; what is finer than microseconds is cut off if these are wanted.

    Args:
        values: ``INT96_VALUE``, shape (rows,).
        unit: of what is returned.

    Raises:
        NanosecondsError: they do not reach so far.
    """
    days = values["day"].astype(np.int64) - _EPOCH_DAY
    if unit == "us":
        return days * _DAY_US + (values["ns"] // np.uint64(1000)).astype(np.int64)
    if len(days) and max(-int(days.min()), int(days.max())) > _NANOSECOND_DAYS:
        raise NanosecondsError
    return days * (1000 * _DAY_US) + values["ns"].astype(np.int64)


def check_nanoseconds(source: Any, index: int, paths: Sequence[str]) -> None:
    """Check that values of a row group have a place among nanoseconds: pyarrow makes any others of those without one.

    Args:
        source: of the file, as pyarrow takes it.
        index: of the row group.
        paths: of the columns.

    Raises:
        NanosecondsError: one has none.
        OSError, pa.ArrowException: the file cannot be read.
    """
    reach_ms = _NANOSECOND_DAYS * _DAY_US // 1000
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="ms") as file:
        for batch in file.iter_batches(row_groups=[index], columns=list(paths), use_threads=False):
            for values in itertools.chain.from_iterable(map(_timestamps, batch.columns)):
                ends = pc.min_max(values.cast(pa.int64()))
                if ends["max"].is_valid and max(-ends["min"].as_py(), ends["max"].as_py()) > reach_ms:
                    raise NanosecondsError


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """The timestamps in nested values."""
    if pa_types.is_timestamp(array.type):
        yield array
    elif pa_types.is_struct(array.type):
        for child in array.flatten():
            yield from _timestamps(child)
    elif pa_types.is_map(array.type):
        yield from _timestamps(array.keys)
        yield from _timestamps(array.items)
    elif hasattr(array, "flatten"):
        yield from _timestamps(array.flatten())
