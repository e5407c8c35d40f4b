"""Rows that Python code returned, as a batch: pyarrow alone would cut 1.5 to 1 for a column of integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pa_types

from weir.rows.decimals import has_decimals
from weir.rows.schemas import is_list

NARROW_FLOATS = (pa.float16(), pa.float32())


def rows_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Dicts as rows of these columns.

    Raises:
        pa.ArrowInvalid: see :func:`checked_array`.
    """
    arrays = []
    for field in schema:
        # Out of the loop: pyarrow makes the text anew at each look.
        name = field.name
        arrays.append(checked_array([row.get(name) for row in rows], name, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def checked_array(values: Sequence[Any], name: str, data_type: pa.DataType) -> pa.Array:
    """Python values as a column of this name and type.

    Raises:
        pa.ArrowInvalid: a value is of another type, as ``pa.array`` says, or a number with a fraction would become an
            integer, a tiny decimal 0, a finite number infinite, or a text the list of its letters. The message names
            the column.
    """
    try:
        array = pa.array(values, data_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        no_text = _not_text(values, data_type)
        reason = TypeError(no_text) if no_text else error
        raise pa.ArrowInvalid(f"column {name!r} ({data_type}): {reason}") from reason
    if _has_integers(data_type):
        lost = _lost_fraction(values, data_type)
        if lost is not None:
            raise pa.ArrowInvalid(f"{lost!r} is no integer, and column {name!r} is {data_type}")
    if has_singles(data_type):
        huge = _overflown(values, data_type)
        if huge is not None:
            raise pa.ArrowInvalid(f"{huge!r} is out of range for column {name!r}, which is {data_type}")
    if has_decimals(data_type):
        tiny = _lost_decimal(values, data_type)
        if tiny is not None:
            raise pa.ArrowInvalid(f"{tiny!r} has more digits than column {name!r}, which is {data_type}")
    if _has_lists(data_type):
        text = _text_for_list(values, data_type)
        if text is not None:
            raise pa.ArrowInvalid(f"{text!r} is no list, and column {name!r} is {data_type}")
    return array


def _not_text(values: Sequence[Any], data_type: pa.DataType) -> str:
    """Say which value is no text where text is wanted: pyarrow says of it that bytes were expected; "": none."""
    there = [value for value in values if value is not None]
    if is_list(data_type):
        lists = [value for value in there if isinstance(value, list | tuple)]
        return _not_text([item for value in lists for item in value], data_type.value_type)
    if pa_types.is_struct(data_type):
        maps = [value for value in there if isinstance(value, Mapping)]
        told = (_not_text([value.get(field.name) for value in maps], field.type) for field in data_type)
        return next(filter(None, told), "")
    if not (pa_types.is_string(data_type) or pa_types.is_large_string(data_type)):
        return ""
    wrong = next((value for value in there if not isinstance(value, str | bytes | bytearray)), None)
    return "" if wrong is None else f"expected text, got {type(wrong).__name__} {wrong!r:.100}"


@lru_cache(maxsize=1_000)
def _has_lists(data_type: pa.DataType) -> bool:
    in_struct = pa_types.is_struct(data_type) and any(_has_lists(field.type) for field in data_type)
    return in_struct or is_list(data_type)


@lru_cache(maxsize=1_000)
def _has_integers(data_type: pa.DataType) -> bool:
    if is_list(data_type):
        return _has_integers(data_type.value_type)
    if pa_types.is_struct(data_type):
        return any(_has_integers(field.type) for field in data_type)
    return _is_whole(data_type)


def _is_whole(data_type: pa.DataType) -> bool:
    """Whether a number is kept as an integer: times may be given as numbers, too."""
    return bool(pa_types.is_integer(data_type) or pa_types.is_temporal(data_type))


@lru_cache(maxsize=1_000)
def has_singles(data_type: pa.DataType) -> bool:
    """Return whether a type is that of floats of fewer than 64 bits, or has such within it."""
    if is_list(data_type):
        return has_singles(data_type.value_type)
    if pa_types.is_struct(data_type):
        return any(has_singles(field.type) for field in data_type)
    return data_type in NARROW_FLOATS


def _overflown(values: Sequence[Any], data_type: pa.DataType) -> Number | None:
    """The first finite number that a float of fewer bits has as infinite."""
    there = [value for value in values if value is not None]
    if is_list(data_type):
        return _overflown([item for value in there for item in value], data_type.value_type)
    if pa_types.is_struct(data_type):
        for field in data_type:
            if has_singles(field.type):
                name = field.name
                inner = [value.get(name) for value in there if isinstance(value, Mapping)]
                if (huge := _overflown(inner, field.type)) is not None:
                    return huge
        return None
    wide = np.array(there, dtype=np.float64)
    with np.errstate(over="ignore"):
        lost = np.isinf(wide.astype(data_type.to_pandas_dtype())) & np.isfinite(wide)
    return there[int(np.argmax(lost))] if lost.any() else None


def _lost_fraction(values: Sequence[Any], data_type: pa.DataType) -> Number | None:
    """The first number that is not whole where integers are wanted."""
    if _is_whole(data_type):
        # Of numbers, pyarrow takes those of NumPy and decimals, too.
        others = {kind for kind in set(map(type, values)) - {int} if issubclass(kind, Number)}
        if not others:
            return None
        return next((value for value in values if type(value) in others and value != int(value)), None)
    there = [value for value in values if value is not None]
    if is_list(data_type):
        return _lost_fraction([item for value in there for item in value], data_type.value_type)
    for field in data_type:
        if _has_integers(field.type):
            name = field.name
            inner = [value.get(name) for value in there if isinstance(value, Mapping)]
            lost = _lost_fraction(inner, field.type)
            if lost is not None:
                return lost
    return None


def _text_for_list(values: Sequence[Any], data_type: pa.DataType) -> str | bytes | None:
    """The first text, or bytes, where a list is wanted: pyarrow takes it for that of its letters."""
    there = [value for value in values if value is not None]
    if is_list(data_type):
        text = next((value for value in there if isinstance(value, str | bytes)), None)
        if text is not None or not _has_lists(data_type.value_type):
            return text
        return _text_for_list([item for value in there for item in value], data_type.value_type)
    for field in data_type:
        if _has_lists(field.type):
            name = field.name
            inner = [value.get(name) for value in there if isinstance(value, Mapping)]
            if (text := _text_for_list(inner, field.type)) is not None:
                return text
    return None


def _lost_decimal(values: Sequence[Any], data_type: pa.DataType) -> Decimal | None:
    """The first decimal that is below the last digit of its column: pyarrow takes some of these as 0."""
    there = [value for value in values if value is not None]
    if pa_types.is_decimal(data_type):
        least = -data_type.scale
        return next(
            (value for value in there if isinstance(value, Decimal) and value and value.adjusted() < least),
            None,
        )
    if is_list(data_type):
        return _lost_decimal([item for value in there for item in value], data_type.value_type)
    for field in data_type:
        if has_decimals(field.type):
            name = field.name
            lost = _lost_decimal(
                [value.get(name) for value in there if isinstance(value, Mapping)], field.type
            )
            if lost is not None:
                return lost
    return None
