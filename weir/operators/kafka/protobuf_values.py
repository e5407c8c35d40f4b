"""Protobuf messages to columns and back, by the library's own parser, message by message: it has no columnar one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from weir.operators.kafka.coded_values import Column, MisfitError, SchemaDecoder, column_of
from weir.operators.kafka.registry import RegisteredSchema
from weir.specs.kafka_values import Descriptors

_OWN_FILE = "weir-value.proto"


class MessageTypes:
    """Messages of one schema, apart from those of other schemas with the same names."""

    def __init__(self) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._known: set[str] = set()

    @classmethod
    def of_descriptors(cls, descriptors: Descriptors) -> MessageTypes:
        """Those of a ``FileDescriptorSet``.

        Raises:
            MisfitError: it is none, or lacks files that others import.
        """
        types = cls()
        files = descriptor_pb2.FileDescriptorSet()
        try:
            files.ParseFromString(descriptors.data)
        except DecodeError:
            raise MisfitError("descriptors are not what protoc --descriptor_set_out writes") from None
        given = {file.name: file for file in files.file}
        for file in files.file:
            types._add(file, given)
        return types

    @classmethod
    def of_registered(cls, schema: RegisteredSchema) -> tuple[MessageTypes, FileDescriptor]:
        """Those of a registry's schema, and its file.

        Raises:
            MisfitError: it is not Protobuf, or cannot be used.
        """
        if schema.kind != "PROTOBUF":
            raise MisfitError(f"its schema is of type {schema.kind}, not Protobuf")
        types = cls()
        own = _file(schema, _OWN_FILE)
        types._add(own, dict(_references(schema)))
        return types, types._pool.FindFileByName(own.name)

    def find(self, name: str) -> Descriptor:
        """A message by its full name.

        Raises:
            MisfitError: there is none.
        """
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise MisfitError(f"the descriptors have no message {name}") from None

    def _add(
        self,
        file: descriptor_pb2.FileDescriptorProto,
        given: Mapping[str, descriptor_pb2.FileDescriptorProto],
    ) -> None:
        if file.name in self._known:
            return
        self._known.add(file.name)
        for name in file.dependency:
            if name in given:
                self._add(given[name], given)
            elif name.startswith("google/protobuf/"):
                self._add(_well_known(name), given)
            else:
                raise MisfitError(
                    f"its schema imports {name}, which is not there; protoc has --include_imports"
                )
        try:
            self._pool.Add(file)
            self._pool.FindFileByName(file.name)
        except (TypeError, KeyError) as error:
            raise MisfitError(f"its schema cannot be used: {error}") from None


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    try:
        descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
    except KeyError:
        module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
        raise MisfitError(f"its schema imports {name}; the library has no {module} loaded") from None
    return file


def _references(schema: RegisteredSchema) -> list[tuple[str, descriptor_pb2.FileDescriptorProto]]:
    found = []
    for name, reference in schema.references:
        found += [*_references(reference), (name, _file(reference, name))]
    return found


def _file(schema: RegisteredSchema, name: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(schema.text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise MisfitError(
            "the registry does not give Protobuf schemas in the serialised form; give descriptors instead"
        ) from None
    file.name = name
    return file


class ProtobufDecoder(SchemaDecoder):
    """Decodes messages.

    Args:
        types: of the schema.
        message: which one each value is; None: the numbers before it say that.
        file: to which those numbers belong.
        has_numbers: whether they are there.
        columns: what to take of the messages.

    Raises:
        MisfitError: ``message`` lacks a column that may not be null.
    """

    def __init__(
        self,
        message: Descriptor | None,
        file: FileDescriptor | None,
        columns: Sequence[Column],
        *,
        has_numbers: bool,
    ) -> None:
        self._message, self._file, self._columns, self._has_numbers = message, file, columns, has_numbers
        self._classes: dict[str, type[Message]] = {}
        if message is not None:
            self._check(message)

    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        """See the base class."""
        messages: list[Message | None] = []
        for number, body in enumerate(bodies):
            try:
                messages.append(self._parsed(body))
            except (DecodeError, MisfitError, IndexError) as error:
                bad.setdefault(number, f"not a Protobuf message of its schema: {error}")
                messages.append(None)
        return [
            column_of([None if m is None else _value(m, keys) for m in messages], field, bad)
            for field, keys in self._columns
        ]

    def _parsed(self, body: bytes) -> Message:
        place, chosen = 0, self._message
        if self._has_numbers:
            place, numbers = _numbers(body)
            if chosen is None:
                chosen = self._numbered(numbers)
        assert chosen is not None
        name = chosen.full_name
        if name not in self._classes:
            self._classes[name] = message_factory.GetMessageClass(chosen)
        return self._classes[name].FromString(body[place:] if place else body)

    def _numbered(self, numbers: Sequence[int]) -> Descriptor:
        assert self._file is not None
        found = list(self._file.message_types_by_name.values())[numbers[0]]
        for number in numbers[1:]:
            found = found.nested_types[number]
        if found.full_name not in self._classes:
            self._check(found)
        return found

    def _check(self, message: Descriptor) -> None:
        for field, keys in self._columns:
            inner: Descriptor | None = message
            for key in keys:
                part = None if inner is None else inner.fields_by_name.get(key)
                if part is None:
                    if not field.nullable:
                        raise MisfitError(f"message {message.full_name} has no field {'.'.join(keys)}")
                    break
                inner = part.message_type


def _numbers(body: bytes) -> tuple[int, list[int]]:
    """Where the message begins, and which one of its file it is: of each level the place, from 0."""
    place, count = _varint(body, 0)
    if count == 0:
        return place, [0]
    numbers = []
    for _ in range(count):
        place, number = _varint(body, place)
        numbers.append(number)
    return place, numbers


def _varint(body: bytes, place: int) -> tuple[int, int]:
    """The place after a number in zigzag form, and the number.

    Raises:
        IndexError: the value ends before.
        DecodeError: it is no place in a file.
    """
    number = shift = 0
    while True:
        byte = body[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise DecodeError("the numbers of its message are too large")
    number = (number >> 1) ^ -(number & 1)
    if number < 0:
        raise DecodeError("the numbers of its message are below 0")
    return place, number


def _value(message: Message, keys: Sequence[str]) -> object:
    for key in keys[:-1]:
        if key not in message.DESCRIPTOR.fields_by_name or not message.HasField(key):
            return None
        message = getattr(message, key)
    part = message.DESCRIPTOR.fields_by_name.get(keys[-1])
    if part is None or (part.has_presence and not message.HasField(part.name)):
        return None
    return _plain(getattr(message, part.name), part)


def _plain(value: Any, part: Any) -> object:
    """A field's value as Python's own types: enumerations by name, messages and maps as mappings."""
    if part.type == FieldDescriptor.TYPE_ENUM:
        return [_name(part, item) for item in value] if part.is_repeated else _name(part, value)
    if part.type == FieldDescriptor.TYPE_MESSAGE:
        entry = part.message_type
        if entry.GetOptions().map_entry:
            inner = entry.fields_by_name["value"]
            return {key: _plain(item, inner) for key, item in value.items()}
        return [_fields(item) for item in value] if part.is_repeated else _fields(value)
    return list(value) if part.is_repeated else value


def _fields(message: Message) -> dict[str, object]:
    return {part.name: _value(message, (part.name,)) for part in message.DESCRIPTOR.fields}


def _name(part: Any, number: int) -> str:
    known = part.enum_type.values_by_number.get(number)
    return str(number) if known is None else known.name


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
        """One value for each row, after ``prefix``.

        Raises:
            ValueError: a row does not fit the message.
        """
        values = []
        for row in rows.to_pylist():
            message = self._class()
            try:
                _fill(message, row)
                values.append(prefix + message.SerializeToString())
            except (TypeError, ValueError, AttributeError, EncodeError, json_format.ParseError) as error:
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
        if part.type == FieldDescriptor.TYPE_MESSAGE:
            if part.is_repeated:
                for item in value:
                    _fill(getattr(message, name).add(), item)
            else:
                getattr(message, name).SetInParent()
                _fill(getattr(message, name), value)
        elif part.is_repeated:
            getattr(message, name).extend(_stored(part, item) for item in value)
        else:
            setattr(message, name, _stored(part, value))


def _stored(part: Any, value: Any) -> Any:
    if part.type != FieldDescriptor.TYPE_ENUM or not isinstance(value, str):
        return value
    if value not in part.enum_type.values_by_name:
        raise ValueError(
            f"field {part.name}: {value!r} is not one of {', '.join(part.enum_type.values_by_name)}"
        )
    return part.enum_type.values_by_name[value].number
