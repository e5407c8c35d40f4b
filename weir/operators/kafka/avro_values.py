"""Avro records to columns; ``avro_encoding`` has the way back.

Most schemas are decoded by Polars, all records of a batch at once: they are put one after the other into one block of
an Avro file in memory. The file's schema has one field more, and each record a mark behind it, so that a record of a
wrong length is noticed at the mark after it. Then, and for schemas that Polars cannot read (maps, unions of several
types, records that may be null), fastavro decodes record by record.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from weir.operators.kafka.coded_values import Column, MisfitError, SchemaDecoder, at, column_of
from weir.operators.kafka.registry import RegisteredSchema
from weir.operators.sources.user.source_rows import became_infinite
from weir.rows.avro_fields import AvroFields, misfit, plain_numbers
from weir.rows.decimals import has_decimals, wide
from weir.rows.python_rows import has_singles
from weir.rows.time_digits import lost_digits

_SYNC = b"weir-avro-blocks"
_MARK = "weir_mark"
#: Marks are numbers from here on, of nine bytes each: nothing looks like one by chance.
_FIRST_MARK = 0x5BD1E9955BD1E99
_FLAT = frozenset({"boolean", "int", "long", "float", "double", "string", "bytes"})
#: After a batch with a bad record so many batches are decoded record by record at most: Polars tells of each on stderr.
_SLOW_BATCHES_MAX = 64

Json = Any


def without_logical_types(schema: Json, kept: Collection[int] = ()) -> Json:
    """The schema of what is stored; those types stay logical whose identities are in ``kept``."""
    if isinstance(schema, Mapping):
        left_out = ("doc",) if id(schema) in kept else ("logicalType", "doc")
        return {key: without_logical_types(item, kept) for key, item in schema.items() if key not in left_out}
    return [without_logical_types(item, kept) for item in schema] if isinstance(schema, list) else schema


def parsed_schema(schema: RegisteredSchema, stored: Callable[[Json], Json]) -> tuple[Json, Json]:
    """Return a schema as JSON, and as fastavro wants it.

    Args:
        schema: of a record.
        stored: leaves out what is not to be read by itself; of what a record refers to, all logical types are.

    Raises:
        MisfitError: it is no schema of an Avro record.
    """
    if schema.kind != "AVRO":
        raise MisfitError(f"its schema is of type {schema.kind}, not Avro")
    named: dict[str, Any] = {}
    try:
        for reference in _all_references(schema):
            fastavro.parse_schema(without_logical_types(json.loads(reference.text)), named_schemas=named)
        plain = json.loads(schema.text)
        # What it refers to may be anything for ``stored``; what is no schema is told here.
        fastavro.parse_schema(without_logical_types(plain), named_schemas=dict(named))
        if not isinstance(plain, dict) or plain.get("type") != "record":
            raise MisfitError("its schema is not of a record")
        plain = stored(plain)
        parsed = fastavro.parse_schema(plain, named_schemas=named)
    except MisfitError:
        raise
    except Exception as error:
        # Of many types.
        raise MisfitError(f"its schema cannot be used: {error}") from None
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
        self._columns = columns
        #: What a column with times, also within it, is read as at first: its numbers may be in other units.
        self._times: list[pa.DataType | None] = [None] * len(columns)
        plain, self._parsed = parsed_schema(schema, self._stored)
        fields = AvroFields(plain)
        self._flat = _flat_fields(plain)
        self._header = _file_header(self._flat) if self._flat is not None else b""
        names = {name for name, _ in self._flat or ()}
        self._read = [".".join(keys) for _, keys in columns if ".".join(keys) in names]
        # A record that is asked for as a whole.
        if any(".".join(keys) not in names and fields.at(keys) for _, keys in columns):
            self._flat = None
        self._slow_batches = self._slow_left = 0

    def _stored(self, schema: Json) -> Json:
        """The schema of what is decoded: decimals stay where columns are decimals."""
        wrong = misfit(schema, self._columns)
        if wrong is not None:
            raise MisfitError(wrong)
        fields, decimals = AvroFields(schema), list[Json]()
        for number, (field, keys) in enumerate(self._columns):
            found = fields.at(keys)
            fields.fits(found, field.type, decimals)
            self._times[number] = fields.read_times(found, field.type)
        return without_logical_types(schema, {id(kind) for kind in decimals})

    @override
    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
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
        return [
            in_unit([at(row, keys) for row in rows], field, time, bad)
            for (field, keys), time in zip(self._columns, self._times, strict=True)
        ]

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
            return [
                _cast(frame, ".".join(keys), field, time)
                for (field, keys), time in zip(self._columns, self._times, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, _OtherTypeError):
            return None


class _OtherTypeError(Exception):
    pass


def in_unit(
    values: Sequence[object], field: pa.Field, time: pa.DataType | None, bad: dict[int, str]
) -> pa.Array:
    """Do :func:`column_of`; numbers of times are those of another type, unless that is None."""
    if time is None:
        return column_of(values, field, bad)
    column = column_of(values, field.with_type(time), bad)
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        lost = lost_digits(column, field.type, field.name)
        for number, reason in lost.items():
            bad.setdefault(number, reason)
        good = np.ones(len(column), dtype=np.bool_)
        good[list(lost)] = False
        return pc.if_else(pa.array(good), column, pa.scalar(None, column.type)).cast(field.type)


def _cast(frame: pl.DataFrame, name: str, field: pa.Field, time: pa.DataType | None) -> pa.Array:
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
    if time is not None:
        column = column.cast(plain_numbers(time)).cast(time)
    # By 256 bits, where no overflow passes unseen.
    found = (
        column.cast(wide(field.type)).cast(field.type)
        if has_decimals(field.type)
        else column.cast(field.type)
    )
    if has_singles(field.type) and became_infinite(column, found).any():
        raise _OtherTypeError
    return found


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
    """Return a number that is not negative as Avro stores it."""
    left, parts = 2 * number, bytearray()
    while left > 0x7F:
        parts.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*parts, left])


_made_marks: list[bytes] = []


def _marks(count: int) -> list[bytes]:
    """Return at least so many marks, in order."""
    for number in range(len(_made_marks), count):
        _made_marks.append(_varint(_FIRST_MARK + number))
    return _made_marks
