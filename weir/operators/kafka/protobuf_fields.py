"""Fields of Protobuf messages as columns: which types they can be, and what their values are there.

Of the messages that come with Protobuf a ``Timestamp`` is a time or an integer of ms, a ``Duration`` a duration or an
integer of ms, and a wrapper such as ``StringValue`` the value that it wraps, where the column is not a struct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from weir.operators.kafka.coded_values import Column
from weir.rows.avro_fields import fits_plain

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
WRAPPERS = frozenset(
    f"google.protobuf.{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
#: The type of Avro whose values are the same; of all other types it is "long".
_KINDS = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
}
_TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}
#: From a message, or a value in it, to what a column takes.
Read = Callable[[Any], object]
_NANOS = 10**9
_AS_THEY_ARE = frozenset(_TYPE_NAMES) - {
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_GROUP,
}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": _NANOS}


def misfit(message: Descriptor, columns: Sequence[Column]) -> str | None:
    """Why no message of a kind can be a row; None: some may."""
    for field, keys in columns:
        path = ".".join(keys)
        part = _part_at(message, keys)
        if part is None:
            if not field.nullable:
                return f"message {message.full_name} has no field {path}"
        elif not _fits(part, field.type):
            where = "" if path == field.name else f" at {path}"
            return f"column {field.name!r} is {field.type}, but message {message.full_name} has {_shown(part)}{where}"
    return None


def _part_at(message: Descriptor, keys: Sequence[str]) -> Any:
    """The field at a path; None: there is none, or only in the elements of a list."""
    inner: Descriptor | None = message
    part: Any = None
    for key in keys:
        part = None if inner is None else inner.fields_by_name.get(key)
        if part is None:
            return None
        inner = None if part.is_repeated else part.message_type
    return part


def map_value(part: Any) -> Any:
    """The field with the values of a map; None: the field is no map."""
    entry = part.message_type
    return entry.fields_by_name["value"] if entry is not None and entry.GetOptions().map_entry else None


def _fits(part: Any, data_type: pa.DataType) -> bool:
    of_map = map_value(part)
    if of_map is not None:
        return pa_types.is_struct(data_type) and all(_fits_one(of_map, field.type) for field in data_type)
    if part.is_repeated:
        is_list = pa_types.is_list(data_type) or pa_types.is_large_list(data_type)
        return is_list and _fits_one(part, data_type.value_type)
    return _fits_one(part, data_type)


def _fits_one(part: Any, data_type: pa.DataType) -> bool:
    """The same of a value, or of an element of a list."""
    message = part.message_type
    if message is None:
        return not pa_types.is_nested(data_type) and fits_plain(_KINDS.get(part.type, "long"), "", data_type)
    if pa_types.is_struct(data_type):
        # A field that is not there is null.
        found = ((message.fields_by_name.get(field.name), field.type) for field in data_type)
        return all(inner is None or _fits(inner, inner_type) for inner, inner_type in found)
    if message.full_name in WRAPPERS:
        return _fits_one(message.fields_by_name["value"], data_type)
    if message.full_name == TIMESTAMP:
        return bool(pa_types.is_timestamp(data_type) or pa_types.is_int64(data_type))
    if message.full_name == DURATION:
        return bool(pa_types.is_duration(data_type) or pa_types.is_int64(data_type))
    return False


def _shown(part: Any) -> str:
    """The type of a field as an error names it."""
    if map_value(part) is not None:
        return "a map, which needs a struct column"

    named = part.message_type or part.enum_type
    name = _TYPE_NAMES[part.type] + (f" {named.full_name}" if named is not None else "")
    return f"repeated {name}" if part.is_repeated else name


def reader_at(message: Descriptor, keys: Sequence[str], data_type: pa.DataType) -> Read:
    """What reads the field at a path of messages of a kind, as a column of this type takes it.

    Args:
        message: the kind.
        keys: the path.
        data_type: one that :func:`misfit` has nothing against.
    """
    part = _part_at(message, keys)
    if part is None:
        return _nothing
    read, outer = _reader_of(part, data_type), tuple(keys[:-1])
    if not outer:
        return read

    def read_below(whole: Any) -> object:
        for key in outer:
            if not whole.HasField(key):
                return None
            whole = getattr(whole, key)
        return read(whole)

    return read_below


def _nothing(_: Any) -> None:
    return None


def _reader_of(part: Any, data_type: pa.DataType) -> Read:
    name, get, of_map = part.name, attrgetter(part.name), map_value(part)
    if of_map is not None:
        plain_by_key = {field.name: _plain_of(of_map, field.type) for field in data_type}

        def read_map(message: Any) -> object:
            items = {str(key): item for key, item in get(message).items()}
            return {key: plain(items[key]) for key, plain in plain_by_key.items() if key in items}

        return read_map
    if part.is_repeated:
        plain_item = _plain_of(part, data_type.value_type)
        return lambda message: [plain_item(item) for item in get(message)]
    if part.type in _AS_THEY_ARE:
        return (
            (lambda message: get(message) if message.HasField(name) else None) if part.has_presence else get
        )
    plain = _plain_of(part, data_type)
    if part.has_presence:
        return lambda message: plain(get(message)) if message.HasField(name) else None
    return lambda message: plain(get(message))


def _plain_of(part: Any, data_type: pa.DataType) -> Read:
    """What makes Python's own types of a value, or of an element of a list: of enumerations their names."""
    if part.enum_type is not None:
        names = {number: value.name for number, value in part.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    message = part.message_type
    if message is None:
        return lambda value: value
    if pa_types.is_struct(data_type):
        reads = {field.name: reader_at(message, (field.name,), field.type) for field in data_type}
        return lambda value: {name: read(value) for name, read in reads.items()}
    if message.full_name in WRAPPERS:
        return attrgetter("value")
    per_second = 10**3 if pa_types.is_integer(data_type) else _PER_SECOND[data_type.unit]
    return lambda value: value.seconds * per_second + value.nanos * per_second // _NANOS
