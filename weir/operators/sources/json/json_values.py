"""JSON values as a schema wants them: exact types, integers in range, no field of the schema twice.

Called by ``json_strict`` for lines that are read one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pa_types

from weir.rows.decimals import wide
from weir.rows.schemas import with_innermost
from weir.rows.time_digits import more_digits

_INTEGER_RANGES = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}


#: Of a second, that a unit has.
_FRACTION_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


class BadLineError(Exception):
    """A line is rejected; the message is the reason."""


def integer_range(data_type: pa.DataType) -> tuple[int, int] | None:
    """Least and greatest value of an integer type; None for other types."""
    return _INTEGER_RANGES.get(data_type)


def name_of(value: object) -> str:
    """What a parsed value is, for messages."""
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number with a fraction, an exponent or too many digits",
    }
    return "null" if value is None else names[type(value)]


def wrong_type(text: str, data_type: pa.DataType) -> str:
    """Why a text is no value of a type that only Arrow converts, after the name of the field."""
    if pa_types.is_timestamp(data_type):
        found = re.search(r":\d\d\.(\d+)", text)
        if found and len(found[1]) > _FRACTION_DIGITS[data_type.unit]:
            return more_digits(text, data_type)
    return f"is not of type {data_type}"


def value_converter(data_type: pa.DataType) -> Callable[[Any], Any] | None:
    """A function from a parsed JSON value, not null, to what ``pa.array`` takes; None: pyarrow must do it."""
    bounds = integer_range(data_type)
    if bounds is not None:
        return _integer_converter(str(data_type), *bounds)
    if data_type == pa.float64():
        return _float
    if data_type == pa.float32():
        return _single_float
    if pa_types.is_date(data_type):
        return _date_converter(data_type)
    if data_type == pa.bool_():
        return _exact(bool, "bool")
    if data_type in (pa.string(), pa.large_string()):
        return _exact(str, "string")
    if pa_types.is_list(data_type):
        item = value_converter(data_type.value_type)
        return None if item is None else _list_converter(item)
    if pa_types.is_struct(data_type):
        children = [(field.name, value_converter(field.type)) for field in data_type]
        return _struct_converter([(n, c) for n, c in children if c is not None], len(children))
    return None


def _integer_converter(type_name: str, low: int, high: int) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not int:
            raise BadLineError(f"must be {type_name}, not {name_of(value)}")
        if not low <= value <= high:
            raise BadLineError(f"is out of range for {type_name}")
        return value

    return convert


def _float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise BadLineError(f"must be double, not {name_of(value)}")
    return float(value)


def _single_float(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise BadLineError(f"must be float, not {name_of(value)}")
    with np.errstate(over="ignore"):
        if np.isinf(np.float32(value)):
            raise BadLineError("is out of range for float")
    return float(value)


def _date_converter(data_type: pa.DataType) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not str:
            raise BadLineError(f"must be a date as text, such as 2026-11-23, not {name_of(value)}")
        try:
            return pc.cast(pa.scalar(value), data_type).value
        except pa.ArrowInvalid:
            raise BadLineError(f"is no date, such as 2026-11-23: {value[:40]!r}") from None

    return convert


def parsed_type(data_type: pa.DataType) -> pa.DataType:
    """As what pyarrow.json reads values of a type: dates as texts, decimals as wider ones; then it is cast."""
    return with_innermost(wide(data_type), lambda dtype: pa.string() if pa_types.is_date(dtype) else dtype)


def is_overflown(values: pa.Array) -> bool:
    """Whether a number in a column of floats of 32 bits or of decimals, or within it, was too large for them."""
    data_type = values.type
    if pa_types.is_list(data_type):
        return is_overflown(values.flatten())
    if pa_types.is_struct(data_type):
        return any(is_overflown(child) for child in values.flatten())
    if pa_types.is_decimal(data_type):
        # pyarrow.json looks at the digits of a number before it adds those of the scale.
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            return True
    return data_type == pa.float32() and bool(pc.any(pc.is_inf(values)).as_py())


def _exact(kind: type, type_name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not kind:
            raise BadLineError(f"must be {type_name}, not {name_of(value)}")
        return value

    return convert


def _list_converter(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) is not list:
            raise BadLineError(f"must be a list, not {name_of(value)}")
        return [None if element is None else item(element) for element in value]

    return convert


def _struct_converter(
    children: list[tuple[str, Callable[[Any], Any]]], child_count: int
) -> Callable[[Any], Any] | None:
    if len(children) < child_count:
        return None

    def convert(value: Any) -> Any:
        if type(value) is not dict:
            raise BadLineError(f"must be a struct, not {name_of(value)}")
        found = ((name, converter, value.get(name)) for name, converter in children)
        return {name: None if child is None else converter(child) for name, converter, child in found}

    return convert


class Pairs(list[tuple[str, Any]]):
    """A JSON object with its fields in order, also those that occur twice."""


def all_names(fields: Any) -> list[str]:
    """Names of these fields, and of those within them."""
    names = []
    for field in fields:
        names.append(field.name)
        inner = field.type
        while pa_types.is_list(inner):
            inner = inner.value_type
        if pa_types.is_struct(inner):
            names += all_names(inner)
    return names


def reject_duplicates(fields: Any, pairs: Any) -> None:
    """Raise if a field of the schema occurs twice in one object."""
    types = {field.name: field.type for field in fields}
    seen = set()
    for name, value in pairs:
        if name not in types:
            continue
        if name in seen:
            raise BadLineError(f"field {name} occurs twice")
        seen.add(name)
        _reject_inner_duplicates(types[name], value)


def _reject_inner_duplicates(data_type: pa.DataType, value: Any) -> None:
    if pa_types.is_struct(data_type) and type(value) is Pairs:
        reject_duplicates(data_type, value)
    elif pa_types.is_list(data_type) and type(value) is list:
        for item in value:
            _reject_inner_duplicates(data_type.value_type, item)
