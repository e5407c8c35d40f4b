"""Avro records to columns and back.

Most schemas are decoded by Polars, all records of a batch at once: they are put one after the other into one block of
an Avro file in memory. The file's schema has one field more, and each record a mark behind it, so that a record of a
wrong length is noticed at the mark after it. Then, and for schemas that Polars cannot read (maps, unions of several
types, records that may be null), fastavro decodes record by record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa

from weir.operators.kafka.coded_values import Column, MisfitError, SchemaDecoder, at, column_of
from weir.operators.kafka.registry import RegisteredSchema

_SYNC = b"weir-avro-blocks"
_MARK = "weir_mark"
#: Marks are numbers from here on, of nine bytes each: nothing looks like one by chance.
_FIRST_MARK = 0x5BD1E9955BD1E99
_FLAT = frozenset({"boolean", "int", "long", "float", "double", "string", "bytes"})
#: After a batch with a bad record so many batches are decoded record by record at most: Polars tells of each on stderr.
_SLOW_BATCHES_MAX = 64

Json = Any


def without_logical_types(schema: Json) -> Json:
    """The schema of what is stored."""
    if isinstance(schema, Mapping):
        return {
            key: without_logical_types(item)
            for key, item in schema.items()
            if key not in ("logicalType", "doc")
        }
    return [without_logical_types(item) for item in schema] if isinstance(schema, list) else schema


def parsed_schema(schema: RegisteredSchema) -> tuple[Json, Json]:
    """As JSON, and as fastavro wants it.

    Raises:
        MisfitError: it is no schema of an Avro record.
    """
    if schema.kind != "AVRO":
        raise MisfitError(f"its schema is of type {schema.kind}, not Avro")
    named: dict[str, Any] = {}
    try:
        for reference in _all_references(schema):
            fastavro.parse_schema(without_logical_types(json.loads(reference.text)), named_schemas=named)
        plain = without_logical_types(json.loads(schema.text))
        parsed = fastavro.parse_schema(plain, named_schemas=named)
    except Exception as error:
        # Of many types.
        raise MisfitError(f"its schema cannot be used: {error}") from None
    if not isinstance(plain, dict) or plain.get("type") != "record":
        raise MisfitError("its schema is not of a record")
    return plain, parsed


def _all_references(schema: RegisteredSchema) -> list[RegisteredSchema]:
    found: list[RegisteredSchema] = []
    for _, reference in schema.references:
        found += [*_all_references(reference), reference]
    return found


class AvroDecoder(SchemaDecoder):
    """Decodes records of one schema.

    Raises:
        MisfitError: the schema lacks a column that may not be null, or has it in another type.
    """

    def __init__(self, schema: RegisteredSchema, columns: Sequence[Column]) -> None:
        plain, self._parsed = parsed_schema(schema)
        self._columns = columns
        for field, keys in columns:
            if not field.nullable and not _has(plain, keys):
                raise MisfitError(f"its schema has no field {'.'.join(keys)}")
        self._flat = _flat_fields(plain)
        self._header = _file_header(self._flat) if self._flat is not None else b""
        names = {name for name, _ in self._flat or ()}
        self._read = [".".join(keys) for _, keys in columns if ".".join(keys) in names]
        # A record that is asked for as a whole.
        if any(".".join(keys) not in names and _has(plain, keys) for _, keys in columns):
            self._flat = None
        self._slow_batches = self._slow_left = 0

    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        """See the base class."""
        if self._flat is not None and not self._slow_left:
            columns = self._at_once(bodies)
            if columns is not None:
                self._slow_batches = 0
                return columns
            self._slow_batches = min(2 * self._slow_batches + 1, _SLOW_BATCHES_MAX)
            self._slow_left = self._slow_batches
        else:
            self._slow_left = max(0, self._slow_left - 1)
        rows = [self._row(number, body, bad) for number, body in enumerate(bodies)]
        return [column_of([at(row, keys) for row in rows], field, bad) for field, keys in self._columns]

    def _row(self, number: int, body: bytes, bad: dict[int, str]) -> Json:
        file = io.BytesIO(body)
        try:
            row = fastavro.schemaless_reader(file, self._parsed, None)
        except Exception as error:
            # Whatever bytes make it raise: EOFError, IndexError, UnicodeDecodeError and others.
            bad.setdefault(number, f"not an Avro record of its schema: {type(error).__name__}: {error}")
            return None
        if file.tell() < len(body):
            bad.setdefault(number, f"{len(body) - file.tell()} bytes after the Avro record")
            return None
        return row

    def _at_once(self, bodies: Sequence[bytes]) -> list[pa.Array] | None:
        """The columns; None: a record is bad, or a value of a type that it must not have."""
        marks = _marks(len(bodies))
        data = b"".join([part for pair in zip(bodies, marks, strict=False) for part in pair])
        file = b"".join((self._header, _varint(len(bodies)), _varint(len(data)), data, _SYNC))
        try:
            frame = pl.read_avro(io.BytesIO(file), columns=[*self._read, _MARK])
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return None
        wanted = np.arange(_FIRST_MARK, _FIRST_MARK + len(bodies))
        if not np.array_equal(frame[_MARK].to_numpy(), wanted):
            return None
        try:
            return [_cast(frame, ".".join(keys), field) for field, keys in self._columns]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, _OtherTypeError):
            return None


class _OtherTypeError(Exception):
    pass


def _cast(frame: pl.DataFrame, name: str, field: pa.Field) -> pa.Array:
    if name not in frame.columns:
        return pa.nulls(frame.height, field.type)
    series = frame[name]
    if series.dtype == pl.Categorical or isinstance(series.dtype, pl.Enum):
        series = series.cast(pl.String)
    column = series.to_arrow(compat_level=pl.CompatLevel.oldest())
    if pa.types.is_string(field.type) != (
        pa.types.is_large_string(column.type) or pa.types.is_string(column.type)
    ) or pa.types.is_boolean(field.type) != pa.types.is_boolean(column.type):
        # Arrow would make texts of numbers, and numbers of texts.
        raise _OtherTypeError
    return column.cast(field.type)


def _has(schema: Json, keys: Sequence[str]) -> bool:
    """Whether there is something at the path, as far as this is known without looking names up."""
    for key in keys:
        if not isinstance(schema, Mapping) or schema.get("type") != "record":
            return True
        found = [item["type"] for item in schema["fields"] if item["name"] == key]
        if not found:
            return False
        schema = found[0]
    return True


def _flat_fields(schema: Json, prefix: str = "") -> list[tuple[str, Json]] | None:
    """Fields with those of inner records in their places, which is how they are stored; None: not for Polars."""
    fields: list[tuple[str, Json]] = []
    for item in schema["fields"]:
        name, kind = prefix + item["name"], item["type"]
        if isinstance(kind, Mapping) and kind.get("type") == "record":
            inner = _flat_fields(kind, f"{name}.")
            if inner is None:
                return None
            fields += inner
        elif _is_for_polars(kind):
            fields.append((name, kind))
        else:
            return None
    return fields


def _is_for_polars(kind: Json) -> bool:
    if isinstance(kind, Mapping):
        inner = kind.get("type")
        if inner == "array":
            return _is_flat(kind["items"])
        return inner in ("enum", "fixed") or inner in _FLAT
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind:
        other = kind[1 - kind.index("null")]
        is_array = isinstance(other, Mapping) and other.get("type") == "array"
        return _is_flat(other["items"] if is_array else other)
    return _is_flat(kind)


def _is_flat(kind: Json) -> bool:
    return (
        (kind.get("type") if isinstance(kind, Mapping) else kind) in _FLAT
        if not isinstance(kind, list)
        else False
    )


def _file_header(fields: Sequence[tuple[str, Json]]) -> bytes:
    schema = {
        "type": "record",
        "name": "Weir",
        "fields": [*({"name": name, "type": kind} for name, kind in fields), {"name": _MARK, "type": "long"}],
    }
    facts = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": b"null"}
    told = b"".join(_varint(len(part)) + part for pair in facts.items() for part in pair)
    return b"Obj\x01" + _varint(len(facts)) + told + _varint(0) + _SYNC


def _varint(number: int) -> bytes:
    """As Avro stores a number that is not negative."""
    left, parts = 2 * number, bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*parts, left])


_made_marks: list[bytes] = []


def _marks(count: int) -> list[bytes]:
    """At least so many, in order."""
    for number in range(len(_made_marks), count):
        _made_marks.append(_varint(_FIRST_MARK + number))
    return _made_marks


class AvroEncoder:
    """Encodes rows as records of one schema.

    Raises:
        MisfitError: it is no schema of a record.
    """

    def __init__(self, schema: str) -> None:
        self._parsed = parsed_schema(RegisteredSchema(schema, "AVRO"))[1]

    def encode(self, rows: pa.RecordBatch, prefix: bytes) -> list[bytes]:
        """One value for each row, after ``prefix``.

        Raises:
            ValueError: a row does not fit the schema.
        """
        values = []
        for row in rows.to_pylist():
            file = io.BytesIO()
            file.write(prefix)
            try:
                fastavro.schemaless_writer(file, self._parsed, row, strict_allow_default=True)
            except Exception as error:
                # Of many types.
                raise ValueError(f"{type(error).__name__}: {error}") from None
            values.append(file.getvalue())
        return values


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
