"""Rows to Protobuf messages, one by one: no library encodes columns."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import EncodeError, Message

from weir.operators.kafka.coded_values import MisfitError
from weir.operators.kafka.protobuf_fields import DURATION, TIMESTAMP, WRAPPERS, map_value
from weir.operators.kafka.protobuf_values import MessageTypes
from weir.specs.kafka_values import Descriptors


class ProtobufEncoder:
    """Encodes rows as one kind of message.

    Raises:
        MisfitError: there is no such message.
    """

    def __init__(self, message: str, descriptors: Descriptors) -> None:
        self._descriptor = MessageTypes.of_descriptors(descriptors).find(message)
        self._class = message_factory.GetMessageClass(self._descriptor)

    @property
    def registered_text(self) -> str:
        """The schema as a registry takes it.

        Raises:
            MisfitError: it imports files other than Protobuf's own.
        """
        file = descriptor_pb2.FileDescriptorProto()
        self._descriptor.file.CopyToProto(file)
        foreign = [name for name in file.dependency if not name.startswith("google/protobuf/")]
        if foreign:
            raise MisfitError(f"the schema imports {foreign[0]}: give a file without imports to register it")
        return base64.b64encode(file.SerializeToString()).decode()

    @property
    def numbers(self) -> bytes:
        """Which message of its file it is, as it comes before each value."""
        places: list[int] = []
        inner: Descriptor = self._descriptor
        while inner.containing_type is not None:
            places.append(list(inner.containing_type.nested_types).index(inner))
            inner = inner.containing_type
        places.append(list(inner.file.message_types_by_name).index(inner.name))
        if places == [0]:
            return b"\0"
        return b"".join(_zigzag(number) for number in (len(places), *reversed(places)))

    def encode(self, rows: pa.RecordBatch, prefix: bytes) -> list[bytes]:
        """Return a value for each row, after ``prefix``.

        Raises:
            ValueError: a row does not fit the message.
        """
        values = []
        for row in rows.to_pylist():
            message = self._class()
            try:
                _fill(message, row)
                values.append(prefix + message.SerializeToString())
            except (TypeError, ValueError, AttributeError, EncodeError) as error:
                raise ValueError(str(error).replace("\n", " ")) from None
        return values


def _zigzag(number: int) -> bytes:
    left, parts = 2 * number, bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*parts, left])


def _fill(message: Message, row: Mapping[str, Any]) -> None:
    for name, value in row.items():
        part = message.DESCRIPTOR.fields_by_name.get(name)
        if part is None:
            raise ValueError(f"message {message.DESCRIPTOR.full_name} has no field {name}")
        if value is None:
            continue
        of_map = map_value(part)
        if of_map is not None:
            _fill_map(getattr(message, name), of_map, value)
        elif part.message_type is not None:
            if part.is_repeated:
                for item in value:
                    _put(getattr(message, name).add(), item)
            else:
                getattr(message, name).SetInParent()
                _put(getattr(message, name), value)
        elif part.is_repeated:
            getattr(message, name).extend(_stored(part, item) for item in value)
        else:
            setattr(message, name, _stored(part, value))


def _fill_map(items: Any, of_map: Any, value: Any) -> None:
    """A struct is a map of its fields that are there."""
    for key, item in value.items() if isinstance(value, Mapping) else value:
        if item is None:
            continue
        if of_map.message_type is None:
            items[key] = _stored(of_map, item)
        else:
            _put(items[key], item)


def _put(message: Any, value: Any) -> None:
    """Fill a message with a struct, or with what stands for one of Protobuf's own."""
    name = message.DESCRIPTOR.full_name
    if isinstance(value, Mapping):
        _fill(message, value)
    elif name in WRAPPERS:
        message.value = value
    elif name == TIMESTAMP and isinstance(value, dt.datetime):
        message.FromDatetime(value)
    elif name == DURATION and isinstance(value, dt.timedelta):
        message.FromTimedelta(value)
    elif name in (TIMESTAMP, DURATION) and isinstance(value, int):
        message.FromMilliseconds(value)
    else:
        raise ValueError(f"a value of type {type(value).__name__} is no {name}")


def _stored(part: Any, value: Any) -> Any:
    if part.type != FieldDescriptor.TYPE_ENUM or not isinstance(value, str):
        return value
    if value not in part.enum_type.values_by_name:
        raise ValueError(
            f"field {part.name}: {value!r} is not one of {', '.join(part.enum_type.values_by_name)}"
        )
    return part.enum_type.values_by_name[value].number
