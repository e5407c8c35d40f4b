"""The way from the description of values in Avro or Protobuf to what decodes and encodes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from weir.errors import InputError
from weir.operators.kafka.avro_encoding import AvroEncoder, avro_schema_of
from weir.operators.kafka.avro_evolution import EvolvedDecoder
from weir.operators.kafka.avro_values import AvroDecoder
from weir.operators.kafka.coded_values import CodedValues, Column, MisfitError, SchemaDecoder
from weir.operators.kafka.protobuf_encoding import ProtobufEncoder
from weir.operators.kafka.protobuf_values import MessageTypes, ProtobufDecoder
from weir.operators.kafka.registry import RegisteredSchema, Registry, header
from weir.specs.kafka_values import AvroSpec, ValueSpec

#: From rows to values.
Encode = Callable[[pa.RecordBatch], list[Any]]


def decoder_of_values(
    spec: ValueSpec, columns: Sequence[Column], who: str, *, takes_nulls: bool = False
) -> CodedValues:
    """What decodes the values of a source.

    Args:
        spec: what they are.
        columns: of the rows.
        who: the step, for messages.
        takes_nulls: whether a value that is not there makes a row of nulls; else its record is bad.

    Raises:
        InputError: a given schema cannot be used, or lacks a column.
    """
    registry = None if spec.registry is None else Registry(spec.registry, who)
    fields = [field for field, _ in columns]
    given: SchemaDecoder | None = None
    if registry is None:
        try:
            given = _given_decoder(spec, columns)
        except MisfitError as error:
            raise InputError(f"{who}: {error}; correct the schema of the values, or the columns") from None

    def find(schema_id: int) -> SchemaDecoder:
        if registry is None:
            assert given is not None
            return given
        try:
            return _registered_decoder(spec, registry.schema(schema_id), columns)
        except MisfitError as error:
            raise MisfitError(f"schema {schema_id}: {error}") from None

    return CodedValues(fields, registry, find, takes_nulls=takes_nulls)


def _given_decoder(spec: ValueSpec, columns: Sequence[Column]) -> SchemaDecoder:
    if isinstance(spec, AvroSpec):
        return AvroDecoder(RegisteredSchema(spec.schema, "AVRO"), columns)
    message = MessageTypes.of_descriptors(spec.descriptors).find(spec.message)
    return ProtobufDecoder(message, None, columns, has_numbers=False)


def _registered_decoder(
    spec: ValueSpec, schema: RegisteredSchema, columns: Sequence[Column]
) -> SchemaDecoder:
    if isinstance(spec, AvroSpec):
        return EvolvedDecoder(schema, spec.schema, columns) if spec.schema else AvroDecoder(schema, columns)
    if spec.descriptors.data:
        message = MessageTypes.of_descriptors(spec.descriptors).find(spec.message)
        return ProtobufDecoder(message, None, columns, has_numbers=True)
    types, file = MessageTypes.of_registered(schema)
    named = types.find(spec.message) if spec.message else None
    return ProtobufDecoder(named, file, columns, has_numbers=True)


class ValueEncoder:
    """Encodes the rows of a sink; the schema is registered with the first ones.

    Args:
        spec: what the values are.
        topic: to which they go.
        who: the step, for messages.
    """

    def __init__(self, spec: ValueSpec, topic: str, who: str) -> None:
        self._spec, self._who = spec, who
        self._subject = spec.subject or f"{topic}-value"
        self._encoder: AvroEncoder | ProtobufEncoder | None = None
        self._prefix = b""

    def encode(self, rows: pa.RecordBatch) -> list[bytes]:
        """Return a value for each row.

        Raises:
            InputError: a row does not fit the schema; or the registry is away, or refuses the schema.
        """
        if self._encoder is None:
            try:
                self._begin(rows.schema)
            except MisfitError as error:
                raise InputError(
                    f"{self._who}: {error}; correct the schema of the values, or the columns"
                ) from None
        assert self._encoder is not None
        try:
            return self._encoder.encode(rows, self._prefix)
        except ValueError as error:
            raise InputError(
                f"{self._who}: a row does not fit the schema of the values ({error}); correct either"
            ) from None

    def _begin(self, columns: pa.Schema) -> None:
        spec = self._spec
        registry = None if spec.registry is None else Registry(spec.registry, self._who)
        if isinstance(spec, AvroSpec):
            text = spec.schema or avro_schema_of(columns, "Row")
            encoder = AvroEncoder(text)
            if registry is not None:
                self._prefix = header(registry.register(self._subject, text, "AVRO"))
            self._encoder = encoder
            return
        messages = ProtobufEncoder(spec.message, spec.descriptors)
        if registry is not None:
            schema_id = registry.register(self._subject, messages.registered_text, "PROTOBUF")
            self._prefix = header(schema_id) + messages.numbers
        self._encoder = messages
