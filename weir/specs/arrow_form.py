"""A spelling of Arrow types of Weir's own, for fingerprints and for codecs in checkpoints.

Persisted, and so never to be changed: ``tests/weir/specs/test_arrow_form.py`` has golden texts. They are what pyarrow
26 shows of the same types, because earlier checkpoints have that; another pyarrow may show them otherwise. One text is
of one type: a name within a struct that would make it be of two is in quotes.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.types as pa_types

from weir.errors import GraphError

_PLAIN: dict[pa.DataType, str] = {
    pa.null(): "null",
    pa.bool_(): "bool",
    **{
        getattr(pa, f"{sign}int{bits}")(): f"{sign}int{bits}"
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
    pa.float16(): "halffloat",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "large_string",
    pa.string_view(): "string_view",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
    pa.binary_view(): "binary_view",
    pa.date32(): "date32[day]",
    pa.date64(): "date64[ms]",
    **{pa.time32(unit): f"time32[{unit}]" for unit in ("s", "ms")},
    **{pa.time64(unit): f"time64[{unit}]" for unit in ("us", "ns")},
    **{pa.timestamp(unit): f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")},
    **{pa.duration(unit): f"duration[{unit}]" for unit in ("s", "ms", "us", "ns")},
    pa.month_day_nano_interval(): "month_day_nano_interval",
}
_LISTS = (
    (pa_types.is_list, "list"),
    (pa_types.is_large_list, "large_list"),
    (pa_types.is_list_view, "list_view"),
    (pa_types.is_large_list_view, "large_list_view"),
    (pa_types.is_fixed_size_list, "fixed_size_list"),
)
_DECIMALS = (
    (pa_types.is_decimal32, "decimal32"),
    (pa_types.is_decimal64, "decimal64"),
    (pa_types.is_decimal128, "decimal128"),
    (pa_types.is_decimal256, "decimal256"),
)


def arrow_form(dtype: pa.DataType) -> str:
    """The type as text, with all of its parameters: ``timestamp[us, tz=UTC]``, ``struct<a: int64 not null>``.

    Raises:
        GraphError: Weir has no spelling of it.
    """
    plain = _PLAIN.get(dtype)
    if plain is not None:
        return plain
    if pa_types.is_timestamp(dtype):
        return f"timestamp[{dtype.unit}, tz={dtype.tz}]"
    if pa_types.is_fixed_size_binary(dtype):
        return f"fixed_size_binary[{dtype.byte_width}]"
    for is_decimal, name in _DECIMALS:
        if is_decimal(dtype):
            return f"{name}({dtype.precision}, {dtype.scale})"
    nested = _nested_form(dtype)
    if nested is None:
        raise GraphError(f"{dtype} is a type that has no form in a checkpoint; cast it to another one")
    return nested


def schema_form(schema: pa.Schema) -> list[list[object]]:
    """JSON of columns in order: name, type, whether nulls may be in it.

    Raises:
        GraphError: a type has no spelling; names the column.
    """
    return [[field.name, _column_form(field), field.nullable] for field in schema]


def _column_form(field: pa.Field) -> str:
    try:
        return arrow_form(field.type)
    except GraphError as error:
        raise GraphError(f"column {field.name!r}: {error}") from error


def _nested_form(dtype: pa.DataType) -> str | None:
    for is_list, name in _LISTS:
        if is_list(dtype):
            size = f"[{dtype.list_size}]" if name == "fixed_size_list" else ""
            return f"{name}<{_field_form(dtype.value_field)}>{size}"
    if pa_types.is_struct(dtype):
        return f"struct<{', '.join(_field_form(field) for field in dtype)}>"
    if pa_types.is_map(dtype):
        return f"map<{_map_field(dtype.key_field, 'key')}, {_map_field(dtype.item_field, 'value')}{_sorted(dtype)}>"
    if pa_types.is_dictionary(dtype):
        values, indices = arrow_form(dtype.value_type), arrow_form(dtype.index_type)
        return f"dictionary<values={values}, indices={indices}, ordered={int(dtype.ordered)}>"
    if isinstance(dtype, pa.BaseExtensionType):
        return f"extension<{_name(dtype.extension_name)}: {arrow_form(dtype.storage_type)}>"
    return None


def _field_form(field: pa.Field) -> str:
    return f"{_name(field.name)}: {arrow_form(field.type)}{'' if field.nullable else ' not null'}"


def _map_field(field: pa.Field, usual: str) -> str:
    own = "" if field.name == usual else f" ({field.name!r})"
    return arrow_form(field.type) + own


def _sorted(dtype: pa.MapType) -> str:
    return ", keys_sorted" if dtype.keys_sorted else ""


def _name(name: str) -> str:
    return json.dumps(name) if ": " in name or name.startswith('"') else name
