"""Values in Avro or Protobuf to columns: by the number of their schema, records that are no rows put aside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from weir.operators.kafka.registry import HEADER_BYTES, Registry, UnknownSchemaError, schema_id_of
from weir.rows.python_rows import checked_array
from weir.rows.utf8 import has_texts

#: A column that is asked for, and the keys that lead to its values.
Column = tuple[pa.Field, tuple[str, ...]]


class MisfitError(Exception):
    """No record of a schema can be a row; the message says why."""


class SchemaDecoder(ABC):
    """Decodes values of one schema."""

    @abstractmethod
    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        """The columns, for all values; where one is no row its number is in ``bad``, with the reason, and null here."""


class CodedValues:
    """Decodes values, each of its own schema. Not thread-safe.

    Args:
        fields: of the rows.
        registry: has the schemas; None: all values are of one schema, and nothing is before them.
        decoder_of: makes the decoder of a schema, by its number; 0 without a registry.
        takes_nulls: whether a value that is not there makes a row of nulls; else it is bad.
    """

    def __init__(
        self,
        fields: Sequence[pa.Field],
        registry: Registry | None,
        decoder_of: Callable[[int], SchemaDecoder],
        *,
        takes_nulls: bool = False,
    ) -> None:
        self._schema = pa.schema(fields)
        self._registry = registry
        self._decoder_of = decoder_of
        self._takes_nulls = takes_nulls
        self._decoders: dict[int, SchemaDecoder | str] = {}

    def decode(
        self, values: Sequence[bytes | None], bad: dict[int, str]
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """The good values as rows.

        Args:
            values: of records.
            bad: reasons by the number of the value; those found here are added.

        Returns:
            The rows, and the number of each one's value; int64, shape (rows,).

        Raises:
            InputError: the registry is away.
        """
        parts: list[pa.RecordBatch] = []
        numbers: list[np.ndarray] = []
        for schema_id, chosen in self._by_schema(values, bad).items():
            decoder = self._decoder(schema_id)
            if isinstance(decoder, str):
                bad.update(dict.fromkeys(chosen, decoder))
                continue
            skip = 0 if self._registry is None else HEADER_BYTES
            found: dict[int, str] = {}
            columns = decoder.decode([(values[number] or b"")[skip:] for number in chosen], found)
            self._check_nulls(columns, found)
            good = np.ones(len(chosen), dtype=np.bool_)
            good[list(found)] = False
            bad.update({chosen[place]: reason for place, reason in found.items()})
            if found:
                columns = [column.filter(pa.array(good)) for column in columns]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            numbers.append(np.array(chosen, dtype=np.int64)[good])
        if self._takes_nulls and (absent := [n for n, value in enumerate(values) if value is None]):
            nulls = [pa.nulls(len(absent), field.type) for field in self._schema]
            parts.append(pa.RecordBatch.from_arrays(nulls, schema=self._schema))
            numbers.append(np.array(absent, dtype=np.int64))
        if len(parts) == 1:
            return parts[0], numbers[0]
        if not parts:
            return pa.RecordBatch.from_pylist([], schema=self._schema), np.empty(0, dtype=np.int64)
        order = np.argsort(np.concatenate(numbers), kind="stable")
        table = pa.Table.from_batches(parts).take(pa.array(order)).combine_chunks()
        return table.to_batches()[0] if len(order) else parts[0], np.concatenate(numbers)[order]

    def _by_schema(self, values: Sequence[bytes | None], bad: dict[int, str]) -> Mapping[int, list[int]]:
        chosen: dict[int, list[int]] = {}
        for number, value in enumerate(values):
            if value is None:
                if not self._takes_nulls:
                    bad[number] = "the record has no value"
                continue
            schema_id = 0 if self._registry is None else schema_id_of(value)
            if schema_id is None:
                bad[number] = "the value does not begin with the number of a schema"
            else:
                chosen.setdefault(schema_id, []).append(number)
        return chosen

    def _decoder(self, schema_id: int) -> SchemaDecoder | str:
        if schema_id not in self._decoders:
            try:
                self._decoders[schema_id] = self._decoder_of(schema_id)
            except UnknownSchemaError as error:
                # It may be there later.
                return str(error)
            except MisfitError as error:
                self._decoders[schema_id] = str(error)
        return self._decoders[schema_id]

    def _check_nulls(self, columns: Sequence[pa.Array], bad: dict[int, str]) -> None:
        for field, column in zip(self._schema, columns, strict=True):
            if not field.nullable and column.null_count:
                for number in np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False)).tolist():
                    bad.setdefault(number, f"field {field.name} is null")


def column_of(values: Sequence[object], field: pa.Field, bad: dict[int, str]) -> pa.Array:
    """Values of any kind as a column; what is of another type than the field is noted in ``bad``, and null."""
    try:
        return checked_array(values, field.name, field.type)
    except pa.ArrowInvalid:
        kept: list[object] = []
        for number, value in enumerate(values):
            try:
                checked_array([value], field.name, field.type)
                kept.append(value)
            except pa.ArrowInvalid:
                path = _path_of_wrong_text(value, field.type, field.name)
                reason = f"field {field.name}: a value of type {type(value).__name__} is no {field.type}"
                bad.setdefault(number, reason if path is None else f"field {path} is not UTF-8")
                kept.append(None)
        return pa.array(kept, type=field.type)


def _path_of_wrong_text(value: object, dtype: pa.DataType, path: str) -> str | None:
    """Where in a value a text is not UTF-8: the parser of proto2 gives its bytes. None: nowhere."""
    found: list[str | None] = []
    if pat.is_struct(dtype) and isinstance(value, Mapping):
        found = [
            _path_of_wrong_text(value.get(field.name), field.type, f"{path}.{field.name}") for field in dtype
        ]
    elif (pat.is_list(dtype) or pat.is_large_list(dtype)) and isinstance(value, list):
        found = [_path_of_wrong_text(item, dtype.value_type, path) for item in value]
    elif has_texts(dtype) and isinstance(value, bytes):
        return path
    return next(filter(None, found), None)


def at(row: object, keys: Sequence[str]) -> object:
    """What lies at a path of nested mappings; None: nothing does."""
    for key in keys:
        if not isinstance(row, Mapping):
            return None
        row = row.get(key)
    return row
