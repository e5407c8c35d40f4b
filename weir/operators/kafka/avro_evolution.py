"""Records of several versions of a schema, read as those of a given one: its names, aliases and defaults count.

This is what Avro calls schema resolution, for each column once and not for each record. Types are those of the columns.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.operators.kafka.avro_values import AvroDecoder, in_unit, parsed_schema
from weir.operators.kafka.coded_values import Column, MisfitError, SchemaDecoder
from weir.operators.kafka.registry import RegisteredSchema
from weir.rows.avro_fields import AvroFields

Json = Any
#: There is no default.
_NONE = object()


class EvolvedDecoder(SchemaDecoder):
    """Decodes records of a schema of a registry.

    Args:
        written: the schema of the records.
        given: as which they are read, as JSON.
        columns: of the rows; their paths are those of the given schema.

    Raises:
        MisfitError: the records lack a column that may not be null and has no default, or have it in another type.
    """

    def __init__(self, written: RegisteredSchema, given: str, columns: Sequence[Column]) -> None:
        writer, _ = parsed_schema(written, lambda schema: schema)
        names = _Names(AvroFields(json.loads(given)), AvroFields(writer))
        #: By the number of the column: its default, an array of one value.
        self._defaults: dict[int, pa.Array] = {}
        read: list[Column] = []
        for number, (field, keys) in enumerate(columns):
            path, default = names.place_of(keys)
            if default is _NONE:
                read.append((field, path))
            else:
                self._defaults[number] = _array(default, names.given, keys, field)
        self._decoder = AvroDecoder(written, read)
        self._column_count = len(columns)

    @override
    def decode(self, bodies: Sequence[bytes], bad: dict[int, str]) -> list[pa.Array]:
        read = iter(self._decoder.decode(bodies, bad))
        zeros = pa.array(np.zeros(len(bodies), dtype=np.int64))
        return [
            self._defaults[number].take(zeros) if number in self._defaults else next(read)
            for number in range(self._column_count)
        ]


class _Names:
    """What a field of the given schema is called in that of the records."""

    def __init__(self, given: AvroFields, written: AvroFields) -> None:
        self.given, self._written = given, written

    def place_of(self, keys: Sequence[str]) -> tuple[tuple[str, ...], object]:
        """The path in the records; and the default, if they do not have the field."""
        path: list[str] = []
        for number, key in enumerate(keys):
            field = self.given.field(keys[: number + 1])
            names = [key, *field.get("aliases", ())]
            found = next((name for name in names if self._written.at([*path, name])), None)
            if found is None:
                default = field.get("default", _NONE)
                for inner in keys[number + 1 :] if default is not _NONE else ():
                    default = default.get(inner) if isinstance(default, Mapping) else None
                return tuple(keys), default
            path.append(found)
        return tuple(path), _NONE


def _array(default: Any, given: AvroFields, keys: Sequence[str], field: pa.Field) -> pa.Array:
    found = given.at(keys)
    kinds = [kind.get("type") if isinstance(kind, Mapping) else kind for kind in found]
    if isinstance(default, str) and kinds and kinds[0] in ("bytes", "fixed"):
        # So JSON has bytes.
        default = default.encode("latin-1", errors="replace")
        if pa.types.is_decimal(field.type):
            number = int.from_bytes(default, "big", signed=True)
            default = decimal.Decimal(number).scaleb(-int(found[0].get("scale", 0)))
    bad: dict[int, str] = {}
    column = in_unit([default], field, given.read_times(found, field.type), bad)
    if bad:
        raise MisfitError(f"the default of its given schema for field {field.name} is no {field.type}")
    return column
