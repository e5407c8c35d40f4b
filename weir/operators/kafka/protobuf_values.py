"""Protobuf messages to columns, by the library's own parser, message by message: it has no columnar one.

``protobuf_encoding`` has the way back.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from importlib import import_module

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message
from typing_extensions import override

from weir.operators.kafka.coded_values import Column, MisfitError, SchemaDecoder, column_of
from weir.operators.kafka.protobuf_fields import Read, misfit, reader_at
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
        """Return the types of a ``FileDescriptorSet``.

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
        """Return the types of a registry's schema, and its file.

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
    """A file that comes with Protobuf; it is known once its module is loaded."""
    file = descriptor_pb2.FileDescriptorProto()
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:
        import_module(module)
        descriptor_pool.Default().FindFileByName(name).CopyToProto(file)
    except (ImportError, KeyError):
        raise MisfitError(f"its schema imports {name}, and the library has no {module}") from None
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
        MisfitError: ``message`` lacks a column that may not be null, or has it in another type.
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
        #: Of each kind of message by its name: its class, and what reads each column.
        self._known: dict[str, tuple[type[Message], list[Read]]] = {}
        if message is not None:
            self._check(message)

    @override
    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        messages: list[tuple[Message, list[Read]] | None] = []
        for number, body in enumerate(bodies):
            try:
                messages.append(self._parsed(body))
            except (DecodeError, MisfitError, IndexError) as error:
                bad.setdefault(number, f"not a Protobuf message of its schema: {error}")
                messages.append(None)
        return [
            column_of(_values(messages, place, field, bad), field, bad)
            for place, (field, _) in enumerate(self._columns)
        ]

    def _parsed(self, body: bytes) -> tuple[Message, list[Read]]:
        place, chosen = 0, self._message
        if self._has_numbers:
            place, numbers = _numbers(body)
            if chosen is None:
                chosen = self._numbered(numbers)
        assert chosen is not None
        name = chosen.full_name
        if name not in self._known:
            reads = [reader_at(chosen, keys, field.type) for field, keys in self._columns]
            self._known[name] = message_factory.GetMessageClass(chosen), reads
        kind, reads = self._known[name]
        return kind.FromString(body[place:] if place else body), reads

    def _numbered(self, numbers: Sequence[int]) -> Descriptor:
        assert self._file is not None
        found = list(self._file.message_types_by_name.values())[numbers[0]]
        for number in numbers[1:]:
            found = found.nested_types[number]
        if found.full_name not in self._known:
            self._check(found)
        return found

    def _check(self, message: Descriptor) -> None:
        wrong = misfit(message, self._columns)
        if wrong is not None:
            raise MisfitError(wrong)


def _values(
    messages: Sequence[tuple[Message, list[Read]] | None], place: int, field: pa.Field, bad: dict[int, str]
) -> list[object]:
    """What each message has of one column; what cannot be read is noted in ``bad``, and null."""
    try:
        return [None if m is None else m[1][place](m[0]) for m in messages]
    except UnicodeDecodeError:
        # In a map of proto2, whose texts the parser takes as they are.
        found: list[object] = []
        for number, message in enumerate(messages):
            try:
                found.append(None if message is None else message[1][place](message[0]))
            except UnicodeDecodeError:
                bad.setdefault(number, f"field {field.name} is not UTF-8")
                found.append(None)
        return found


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
