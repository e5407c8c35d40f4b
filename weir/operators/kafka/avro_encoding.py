"""Rows to Avro records, one by one: no library encodes columns."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from weir.operators.kafka.avro_values import parsed_schema, without_logical_types
from weir.operators.kafka.coded_values import MisfitError
from weir.operators.kafka.registry import RegisteredSchema
from weir.rows.avro_fields import AvroFields, decimals_in, logical_of, plain_numbers

Json = Any


def _with_decimals(schema: Json) -> Json:
    return without_logical_types(schema, {id(kind) for kind in decimals_in(schema)})


class AvroEncoder:
    """Encodes rows as records of one schema.

    Raises:
        MisfitError: it is no schema of a record.
    """

    def __init__(self, schema: str) -> None:
        self._parsed = parsed_schema(RegisteredSchema(schema, "AVRO"), _with_decimals)[1]
        self._fields = AvroFields(json.loads(schema))

    def encode(self, rows: pa.RecordBatch, prefix: bytes) -> list[bytes]:
        """Return a value for each row, after ``prefix``.

        Raises:
            ValueError: a row does not fit the schema.
        """
        values = []
        for row in self._with_numbers(rows).to_pylist():
            file = io.BytesIO()
            file.write(prefix)
            try:
                fastavro.schemaless_writer(file, self._parsed, row, strict_allow_default=True)
            except Exception as error:
                # Of many types.
                raise ValueError(f"{type(error).__name__}: {error}") from None
            values.append(file.getvalue())
        return values

    def _with_numbers(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with their times as the numbers that are stored: the library takes those without a zone for local ones.

        Raises:
            ValueError: a time has finer digits than the schema has.
        """
        columns = []
        for field, column in zip(rows.schema, rows.columns, strict=True):
            stored = self._fields.stored_times(self._fields.at((field.name,)), field.type)
            numbers = plain_numbers(stored)
            columns.append(column if numbers == field.type else column.cast(stored).cast(numbers))
        return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def avro_schema_of(schema: pa.Schema, name: str) -> str:
    """The Avro schema of columns: each may be null, as any column of rows may.

    Raises:
        MisfitError: a column's type has no form in Avro.
    """
    fields = [
        {"name": field.name, "type": ["null", _avro_type(field.type, field.name)], "default": None}
        for field in schema
    ]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def _avro_type(kind: pa.DataType, name: str) -> Json:
    types = pa.types
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if types.is_floating(kind):
        return "double" if types.is_float64(kind) else "float"
    if types.is_string(kind) or types.is_large_string(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return "bytes"
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    logical = logical_of(kind)
    if logical is not None:
        return {"type": "int" if kind.bit_width == 32 else "long", "logicalType": logical}
    if types.is_list(kind) or types.is_large_list(kind):
        return {"type": "array", "items": ["null", _avro_type(kind.value_type, name)]}
    if types.is_struct(kind):
        inner = [
            {
                "name": item.name,
                "type": ["null", _avro_type(item.type, f"{name}_{item.name}")],
                "default": None,
            }
            for item in kind
        ]
        return {"type": "record", "name": f"{name}_record", "fields": inner}
    raise MisfitError(f"column {name} of type {kind} has no form in Avro; cast it")
