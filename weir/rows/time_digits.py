"""Times with more digits than the unit of their column: where they come in they are rejected, not cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from weir.rows.schemas import is_list, small_type, with_innermost


def finer(dtype: pa.DataType) -> pa.DataType:
    """The type with its times in microseconds, as Python has them, where it has fewer digits; also within others."""
    return with_innermost(dtype, _finer)


def _finer(dtype: pa.DataType) -> pa.DataType:
    if pat.is_timestamp(dtype) and dtype.unit in ("s", "ms"):
        return pa.timestamp("us", dtype.tz)
    if pat.is_duration(dtype) and dtype.unit in ("s", "ms"):
        return pa.duration("us")
    if pat.is_time32(dtype):
        return pa.time64("us")
    return dtype


def differ_in_units(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether both are the same but for the units of times."""
    return bool(_unitless(actual) == _unitless(wanted))


def _unitless(dtype: pa.DataType) -> pa.DataType:
    dtype = small_type(dtype)
    if pat.is_timestamp(dtype):
        return pa.timestamp("ns", dtype.tz)
    if pat.is_duration(dtype):
        return pa.duration("ns")
    if pat.is_time(dtype):
        return pa.time64("ns")
    if pat.is_struct(dtype):
        return pa.struct([pa.field(field.name, _unitless(field.type)) for field in dtype])
    if is_list(dtype):
        return pa.list_(_unitless(dtype.value_type), dtype.list_size if pat.is_fixed_size_list(dtype) else -1)
    return dtype


def lost_digits(column: pa.Array, dtype: pa.DataType, name: str) -> dict[int, str]:
    """Values that a type has too few digits for: their numbers, and the reason with the path of the time.

    Args:
        column: values of :func:`finer` or of another type that differs in the units of times only.
        dtype: of the column that they are for.
        name: of the column.
    """
    waiting, found = [(0, len(column))], dict[int, str]()
    while waiting:
        first, stop = waiting.pop()
        # A copy: of a part of lists all items would be looked at.
        if first == stop or _fits(column.take(pa.array(range(first, stop), pa.int64())), dtype):
            continue
        if stop - first == 1:
            found[first] = next(_reasons(column[first], dtype, name), f"field {name} is not of type {dtype}")
            continue
        middle = (first + stop) // 2
        waiting += [(first, middle), (middle, stop)]
    return found


def _fits(column: pa.Array, dtype: pa.DataType) -> bool:
    try:
        column.cast(dtype)
    except pa.ArrowInvalid:
        return False
    return True


def _reasons(value: pa.Scalar, dtype: pa.DataType, name: str) -> Iterator[str]:
    if not value.is_valid:
        return
    if pat.is_struct(dtype):
        for field in dtype:
            yield from _reasons(value[field.name], field.type, f"{name}.{field.name}")
    elif is_list(dtype):
        for item in value.values:
            yield from _reasons(item, dtype.value_type, name)
    elif pat.is_temporal(dtype) and not _fits(pa.array([value.as_py()], value.type), dtype):
        yield f"field {name} {more_digits(str(value), dtype)}"


def more_digits(text: str, dtype: pa.DataType) -> str:
    """Why a time is no value of a type, after the name of the field."""
    return f"has more digits than {dtype.unit}: {text[:40]!r}; declare it finer"


def lost_digits_of(values: Sequence[Any], dtype: pa.DataType, name: str) -> dict[int, str]:
    """As :func:`lost_digits`, of Python values that ``pa.array`` takes as this type."""
    wanted = finer(dtype)
    return {} if wanted == dtype else lost_digits(pa.array(values, wanted), dtype, name)
