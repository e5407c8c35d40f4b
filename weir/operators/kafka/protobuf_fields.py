"""Fields of Protobuf messages as columns: which types they can be, and what their values are there.

Of the messages that come with Protobuf a ``Timestamp`` is a time or an integer of ms, a ``Duration`` a duration or an
integer of ms, and a wrapper such as ``StringValue`` the value that it wraps, where the column is not a struct.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from weir.avro_fields import fits_plain
from weir.operators.kafka.coded_values import Column

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
_NANOS = 10**9
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
        return pa_types.is_timestamp(data_type) or pa_types.is_int64(data_type)
    if message.full_name == DURATION:
        return pa_types.is_duration(data_type) or pa_types.is_int64(data_type)
    return False


def _shown(part: Any) -> str:
    """The type of a field as an error names it."""
    if map_value(part) is not None:
        return "a map, which needs a struct column"

    named = part.message_type or part.enum_type
    name = _TYPE_NAMES[part.type] + (f" {named.full_name}" if named is not None else "")
    return f"repeated {name}" if part.is_repeated else name


def value_at(message: Message, keys: Sequence[str], data_type: pa.DataType) -> object:
    """What lies at a path, as a column of this type takes it; None: nothing does."""
    for key in keys[:-1]:
        part = message.DESCRIPTOR.fields_by_name.get(key)
        if part is None or part.is_repeated or part.message_type is None or not message.HasField(key):
            return None
        message = getattr(message, key)
    part = message.DESCRIPTOR.fields_by_name.get(keys[-1])
    if part is None or (part.has_presence and not message.HasField(part.name)):
        return None
    value, of_map = getattr(message, part.name), map_value(part)
    if of_map is not None:
        items = {str(key): item for key, item in value.items()}
        return {
            field.name: _plain(items[field.name], of_map, field.type)
            for field in data_type
            if field.name in items
        }
    if part.is_repeated:
        return [_plain(item, part, data_type.value_type) for item in value]
    return _plain(value, part, data_type)


def _plain(value: Any, part: Any, data_type: pa.DataType) -> object:
    """A value, or an element of a list, as Python's own types: enumerations by name, messages as mappings."""
    if part.type == FieldDescriptor.TYPE_ENUM:
        known = part.enum_type.values_by_number.get(value)
        return str(value) if known is None else known.name
    message = part.message_type
    if message is None:
        return value
    if pa_types.is_struct(data_type):
        return {field.name: value_at(value, (field.name,), field.type) for field in data_type}
    if message.full_name in WRAPPERS:
        return value.value
    per_second = 10**3 if pa_types.is_integer(data_type) else _PER_SECOND[data_type.unit]
    return value.seconds * per_second + value.nanos * per_second // _NANOS
