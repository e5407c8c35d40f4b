"""Column types: from what a job author writes to the Arrow schema of a batch, and between Arrow and Polars.

Strings are always ``pa.string()`` and bytes ``pa.binary()``, whatever Polars hands out, so that the batches
of a channel have one schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import get_args

import polars as pl
import pyarrow as pa

from weir.errors import GraphError
from weir.rows.records import SYSTEM_COLUMNS, system_schema

_PYTHON_TYPES: dict[type, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
}


@dataclass(frozen=True)
class Nullable:
    """Marks a column of a source schema that may be null or missing: ``{"title": weir.Nullable(str)}``."""

    dtype: object


def column_type(dtype: object) -> pa.DataType:
    """The Arrow type of a Polars data type, a Python type or an Arrow type.

    Raises:
        GraphError: it is none of these, or has no place in a batch; the message has no step and no column.
    """
    if isinstance(dtype, pa.DataType):
        return small_type(dtype)
    if isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    if dtype in (pl.Null, pl.Object):
        raise GraphError(f"{dtype} cannot be a column type: its values have no form in a batch")
    if isinstance(dtype, pl.DataType) or (isinstance(dtype, type) and issubclass(dtype, pl.DataType)):
        try:
            return arrow_type(pl.Series([], dtype=dtype))
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            raise GraphError(f"{dtype} cannot be a column type: {error}") from error
    if NoneType in get_args(dtype):
        (given, *others) = [each for each in get_args(dtype) if each is not NoneType]
        name = str(dtype) if others else getattr(given, "__name__", str(given))
        raise GraphError(
            f"{dtype} is not a column type; where values may be null, write weir.Nullable({name})"
        )
    raise GraphError(
        f"{dtype!r} is not a column type; use a Polars data type or int, float, str, bool, bytes"
    )


def arrow_type(series: pl.Series) -> pa.DataType:
    """The type that the values of a Polars series have in a batch."""
    return small_type(series.to_arrow(compat_level=pl.CompatLevel.oldest()).type)


def small_type(dtype: pa.DataType) -> pa.DataType:
    """The same type with 32-bit offsets and without views or dictionaries, also inside lists and structs."""
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return pa.string()
    if pa.types.is_large_binary(dtype) or pa.types.is_binary_view(dtype):
        return pa.binary()
    if pa.types.is_dictionary(dtype):
        return small_type(dtype.value_type)
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype):
        return pa.list_(small_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        return pa.struct(
            [dtype.field(i).with_type(small_type(dtype.field(i).type)) for i in range(dtype.num_fields)]
        )
    return dtype


def is_list(dtype: pa.DataType) -> bool:
    """Whether values are lists, of any or of one length, as columns have them."""
    return bool(pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype))


def with_innermost(dtype: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with another one in place of it, or of each that is within its lists and structs."""
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(with_innermost(field.type, change)) for field in dtype])
    if is_list(dtype):
        item = dtype.value_field.with_type(with_innermost(dtype.value_type, change))
        return pa.list_(item, dtype.list_size if pa.types.is_fixed_size_list(dtype) else -1)
    return change(dtype)


def is_widened_by(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of type ``actual`` is one of type ``wanted``, so that a cast never fails and loses nothing.

    True for the same type, for strings, bytes and lists of any offsets, for integers and decimals that fit,
    for floats of fewer bits, and for timestamps of a coarser unit and of another time zone (but nanoseconds are no
    wider than others: they end in 2262), and for times of day of a coarser unit. Integers of 32 bits and less are exact
    in a float of 64, those of 16 and less in one of 32. So is a map a list of structs, an extension type what it is
    stored as, and what has nulls only anything. The same holds of what is inside lists and structs.
    """
    if isinstance(actual, pa.BaseExtensionType):
        actual = actual.storage_type
    actual = small_type(actual)
    if actual == wanted or pa.types.is_null(actual):
        return True
    nested = _nested_is_widened(actual, wanted)
    if nested is not None:
        return nested
    if pa.types.is_fixed_size_binary(actual):
        return bool(pa.types.is_binary(wanted))
    if pa.types.is_decimal128(actual) and pa.types.is_decimal128(wanted):
        digits = wanted.precision - wanted.scale - (actual.precision - actual.scale)
        return bool(wanted.scale >= actual.scale and digits >= 0)
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(wanted):
        units = ("ns",) if wanted.unit == "ns" else _UNITS[: _UNITS.index(wanted.unit) + 1]
        return (actual.tz is None) == (wanted.tz is None) and actual.unit in units
    if pa.types.is_time(actual) and pa.types.is_time(wanted):
        return _TIME_UNITS.index(actual.unit) <= _TIME_UNITS.index(wanted.unit)
    signed = pa.types.is_signed_integer
    if pa.types.is_integer(actual) and pa.types.is_integer(wanted):
        grows = wanted.bit_width > actual.bit_width
        return grows and (signed(wanted) or not signed(actual))
    if pa.types.is_floating(wanted) and pa.types.is_integer(actual):
        return bool(actual.bit_width < _EXACT_INTEGER_BITS[wanted.bit_width])
    if pa.types.is_floating(wanted) and pa.types.is_floating(actual):
        return bool(wanted.bit_width > actual.bit_width)
    return False


def _nested_is_widened(actual: pa.DataType, wanted: pa.DataType) -> bool | None:
    """The same of lists, structs and maps; None: ``actual`` is none of them."""
    if pa.types.is_map(actual):
        actual = pa.list_(pa.struct([("key", actual.key_type), ("value", actual.item_type)]))
    if pa.types.is_list(actual) or pa.types.is_fixed_size_list(actual):
        return pa.types.is_list(wanted) and is_widened_by(actual.value_type, wanted.value_type)
    if not pa.types.is_struct(actual):
        return None
    if not pa.types.is_struct(wanted) or [f.name for f in actual] != [f.name for f in wanted]:
        return False
    return all(is_widened_by(own.type, other.type) for own, other in zip(actual, wanted, strict=True))


#: Units of timestamps, each of which holds what those before it hold; but for some 300,000 years.
_UNITS = ("s", "ms", "us")
#: Units of times of day: each holds what those before it hold.
_TIME_UNITS = (*_UNITS, "ns")
#: Width of a float -> bits of the integers that it holds exactly.
_EXACT_INTEGER_BITS = {16: 11, 32: 24, 64: 53}


def to_schema(columns: Mapping[str, object] | pa.Schema) -> pa.Schema:
    """User columns of a source or of a function's result.

    Args:
        columns: name -> type (see :func:`column_type`), where a type may be wrapped in :class:`Nullable`; or
            an Arrow schema, whose nullability is kept.

    Raises:
        GraphError: no column, a repeated or a system name, one with a NUL, or a bad type; the message names the column.
    """
    if isinstance(columns, pa.Schema):
        fields = [pa.field(f.name, small_type(f.type), nullable=f.nullable) for f in columns]
    elif isinstance(columns, Mapping):
        fields = [_field(name, dtype) for name, dtype in columns.items()]
    else:
        raise GraphError(f"schema: expected a mapping of names to types, got {type(columns).__name__}")
    if not fields:
        raise GraphError("schema: it has no column; give at least one")
    names = [field.name for field in fields]
    for position, name in enumerate(names):
        if name in SYSTEM_COLUMNS:
            raise GraphError(f"schema: {name!r} is a system column; choose another name")
        if name in names[:position]:
            raise GraphError(f"schema: column {name!r} is there twice")
        if "\0" in name:
            # Polars and Arrow hand names over as texts of C, which end there.
            raise GraphError(f"schema: column {name!r} has a NUL in its name; choose another name")
    return pa.schema(fields)


def _field(name: object, dtype: object) -> pa.Field:
    if not isinstance(name, str) or not name:
        raise GraphError(f"schema: {name!r} is not a column name; use a non-empty string")
    nullable = isinstance(dtype, Nullable)
    try:
        return pa.field(
            name, column_type(dtype.dtype if isinstance(dtype, Nullable) else dtype), nullable=nullable
        )
    except GraphError as error:
        raise GraphError(f"schema: column {name!r}: {error}") from error


def empty_frame(schema: pa.Schema) -> pl.DataFrame:
    """No rows, the user columns of ``schema`` and the time columns: what expressions are checked against."""
    frame = pl.from_arrow(system_schema(schema).empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame


def schema_difference(expected: pa.Schema, actual: pa.Schema) -> str:
    """One line that says how the user columns of ``actual`` differ; empty if names and types are the same."""
    want = {field.name: field.type for field in expected}
    have = {field.name: field.type for field in actual if field.name not in SYSTEM_COLUMNS}
    parts = [f"column {name!r} ({dtype}) is missing" for name, dtype in want.items() if name not in have]
    parts += [
        f"column {name!r} ({dtype}) is not expected" for name, dtype in have.items() if name not in want
    ]
    parts += [
        f"column {name!r} is {have[name]}, not {dtype}"
        for name, dtype in want.items()
        if name in have and have[name] != dtype
    ]
    if not parts and list(want) != list(have):
        parts = [f"columns come in the order {', '.join(have)}, not {', '.join(want)}"]
    return "; ".join(parts)
