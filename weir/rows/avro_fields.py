"""Which columns the fields of an Avro schema can be, from its JSON alone: no library of Avro is loaded for that.

Called where a job with a given schema is built, and by the decoder of values for schemas of a registry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types

#: A schema, or a type within one.
Json = Any

_NUMBERS = frozenset({"int", "long", "float", "double"})
_TEXTS = frozenset({"string", "enum", "bytes", "fixed"})
_NAMED = frozenset({"record", "enum", "fixed"})
_KNOWN = _NUMBERS | _TEXTS | _NAMED | {"null", "boolean", "array", "map"}
#: Units of times that are stored as numbers, by logical type.
_UNITS = {
    f"{local}timestamp-{name}": unit
    for local in ("", "local-")
    for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
}


class AvroFields:
    """What may be at the paths of a schema.

    Args:
        schema: of a record, as JSON. Names of types that it does not define may be anything.
    """

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._named: dict[str, Json] = {}
        self._note_names(schema, "")

    def _note_names(self, kind: Json, namespace: str) -> None:
        if isinstance(kind, list):
            for branch in kind:
                self._note_names(branch, namespace)
        elif isinstance(kind, Mapping):
            if kind.get("type") in _NAMED and "name" in kind:
                space, _, short = str(kind["name"]).rpartition(".")
                namespace = space or kind.get("namespace", namespace)
                self._named.setdefault(short, kind)
                self._named[f"{namespace}.{short}"] = kind
            for inner in (kind.get("type"), kind.get("items"), kind.get("values")):
                self._note_names(inner, namespace)
            for field in kind.get("fields", ()):
                self._note_names(field.get("type"), namespace)

    def at(self, keys: Sequence[str]) -> list[Json]:
        """The types that a value at this path may have, nulls left out; none: the schema has no such field."""
        found = [self._schema]
        for key in keys:
            found = [inner for kind in found for inner in self.below(kind, key)]
        return found

    def field(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """What a schema says of the field at a path, its default and its aliases too; empty: it has none."""
        for kind in self.at(keys[:-1]):
            for field in kind["fields"] if _name(kind) == "record" else ():
                if field["name"] == keys[-1]:
                    return dict(field)
        return {}

    def below(self, kind: Json, key: str) -> Iterator[Json]:
        """The types of a field of one type; none: it has no such field."""
        name = _name(kind)
        if name == "record":
            for field in kind["fields"]:
                if field["name"] == key:
                    yield from self._branches(field["type"])
        elif name == "map":
            yield from self._branches(kind["values"])
        elif name not in _KNOWN:
            yield kind

    def stored_times(self, found: Sequence[Json], data_type: pa.DataType) -> pa.DataType:
        """The type of a column with its times, also inside lists and structs, in the units of these types."""
        if pa_types.is_struct(data_type):
            return pa.struct(
                [
                    field.with_type(
                        self.stored_times(
                            [inner for kind in found for inner in self.below(kind, field.name)], field.type
                        )
                    )
                    for field in data_type
                ]
            )
        if pa_types.is_list(data_type) or pa_types.is_large_list(data_type):
            items = [
                inner for kind in found if _name(kind) == "array" for inner in self._branches(kind["items"])
            ]
            return pa.list_(self.stored_times(items, data_type.value_type))
        return time_of(found, data_type) or data_type

    def read_times(self, found: Sequence[Json], data_type: pa.DataType) -> pa.DataType | None:
        """Return as what :meth:`stored_times` are to be read; None: the column has no times."""
        return None if plain_numbers(data_type) == data_type else self.stored_times(found, data_type)

    def _branches(self, kind: Json) -> list[Json]:
        if isinstance(kind, list):
            found = [inner for branch in kind for inner in self._branches(branch)]
            return [inner for inner in found if _name(inner) != "null"] or found
        if isinstance(kind, Mapping) and not isinstance(kind.get("type"), str):
            return self._branches(kind.get("type"))
        return [self._named.get(_name(kind), kind) if _name(kind) not in _KNOWN else kind]

    def fits(self, found: Sequence[Json], data_type: pa.DataType, decimals: list[Json]) -> bool:
        """Return whether a value of one of these types, not null, can be a value of the column.

        Args:
            found: from :meth:`at`.
            data_type: of the column.
            decimals: those of logical type "decimal" that are read as decimals are added.
        """
        # All are looked at, since each may have decimals.
        return any([self._fits(kind, data_type, decimals) for kind in found])

    def _fits(self, kind: Json, data_type: pa.DataType, decimals: list[Json]) -> bool:
        name = _name(kind)
        if name == "null" or name not in _KNOWN:
            return True
        if pa_types.is_struct(data_type):
            # A field that is not there is null.
            inner = [(field.type, list(self.below(kind, field.name))) for field in data_type]
            is_object = name in ("record", "map")
            return is_object and all([self.fits(each, to, decimals) for to, each in inner if each])
        if pa_types.is_list(data_type) or pa_types.is_large_list(data_type):
            return name == "array" and self.fits(
                self._branches(kind["items"]), data_type.value_type, decimals
            )
        if pa_types.is_decimal(data_type) and name in ("bytes", "fixed"):
            if _logical(kind) != "decimal":
                return False
            decimals.append(kind)
            return True
        return fits_plain(name, _logical(kind), data_type)


def fits_plain(name: str, logical: str, data_type: pa.DataType) -> bool:
    """Return whether a value of a type of Avro that has no others within it can be a value of a column."""
    is_number = pa_types.is_integer(data_type) or pa_types.is_floating(data_type)
    if pa_types.is_boolean(data_type):
        return name == "boolean"
    if pa_types.is_decimal(data_type):
        # Digits of a float are not those that somebody wrote.
        return name in ("int", "long")
    if is_number:
        return name in _NUMBERS
    if pa_types.is_temporal(data_type):
        given = stored_time(logical, None)
        return name in ("int", "long") and (given is None or _same_sort(given, data_type))
    is_text = pa_types.is_string(data_type) or pa_types.is_large_string(data_type)
    if is_text or pa_types.is_binary(data_type) or pa_types.is_large_binary(data_type):
        return name in _TEXTS
    return True


def stored_time(logical: str, zone: str | None) -> pa.DataType | None:
    """What a number of this logical type is a time of; None: it is no time."""
    if logical in _UNITS:
        return pa.timestamp(_UNITS[logical], zone)
    return {"date": pa.date32(), "time-millis": pa.time32("ms"), "time-micros": pa.time64("us")}.get(logical)


def time_of(found: Sequence[Json], data_type: pa.DataType) -> pa.DataType | None:
    """Return as what times the numbers of a column of times are to be read; None: as those of the column itself."""
    if not pa_types.is_temporal(data_type):
        return None
    zone = data_type.tz if pa_types.is_timestamp(data_type) else None
    given = {stored_time(_logical(kind), zone) for kind in found}
    return given.pop() if len(given) == 1 else None


def plain_numbers(data_type: pa.DataType) -> pa.DataType:
    """A type with its times, also inside lists and structs, as the integers that Avro stores."""
    if pa_types.is_struct(data_type):
        return pa.struct([field.with_type(plain_numbers(field.type)) for field in data_type])
    if pa_types.is_list(data_type) or pa_types.is_large_list(data_type):
        return pa.list_(plain_numbers(data_type.value_type))
    if pa_types.is_temporal(data_type):
        return pa.int32() if data_type.bit_width == 32 else pa.int64()
    return data_type


def logical_of(data_type: pa.DataType) -> str | None:
    """The logical type of a column of times; None: it is none, or has no such type. Of times of a day it has no ns."""
    if pa_types.is_timestamp(data_type):
        local = "" if data_type.tz else "local-"
        unit = {"s": "millis", "ms": "millis", "us": "micros", "ns": "nanos"}[data_type.unit]
        return f"{local}timestamp-{unit}"
    if pa_types.is_time(data_type):
        return "time-millis" if data_type.bit_width == 32 else "time-micros"
    return "date" if pa_types.is_date32(data_type) else None


def _same_sort(given: pa.DataType, data_type: pa.DataType) -> bool:
    return any(
        is_sort(given) and is_sort(data_type)
        for is_sort in (pa_types.is_timestamp, pa_types.is_date, pa_types.is_time)
    )


def _name(kind: Json) -> str:
    return str(kind.get("type") if isinstance(kind, Mapping) else kind)


def _logical(kind: Json) -> str:
    return str(kind.get("logicalType", "")) if isinstance(kind, Mapping) else ""


def decimals_in(kind: Json) -> list[Json]:
    """Return all types of logical type "decimal"."""
    if isinstance(kind, list):
        return [found for inner in kind for found in decimals_in(inner)]
    if not isinstance(kind, Mapping):
        return []
    inner = [kind.get("type"), kind.get("items"), kind.get("values"), *kind.get("fields", ())]
    return ([kind] if _logical(kind) == "decimal" else []) + decimals_in(inner)


def shown(found: Sequence[Json]) -> str:
    """Types as an error names them."""
    return " or ".join(dict.fromkeys(_shown(kind) for kind in found))


def _shown(kind: Json) -> str:
    if isinstance(kind, list):
        return shown(kind)
    if not isinstance(kind, Mapping):
        return str(kind)
    inner = kind.get("type")
    if inner == "array":
        return f"array of {_shown(kind['items'])}"
    if inner == "map":
        return f"map of {_shown(kind['values'])}"
    if inner == "record":
        fields = [f"{field['name']}: {_shown(field['type'])}" for field in kind["fields"]]
        return f"record of {', '.join(fields)}"
    return _shown(inner) + (f" of logical type {_logical(kind)}" if _logical(kind) else "")


def misfit(schema: Json, columns: Sequence[tuple[pa.Field, Sequence[str]]]) -> str | None:
    """Why no record of a schema can be a row; None: some may.

    Args:
        schema: of a record, as JSON.
        columns: and the keys that lead to their values.
    """
    fields = AvroFields(schema)
    for column, keys in columns:
        path = ".".join(keys)
        found = fields.at(keys)
        if not found and not column.nullable:
            return f"its schema has no field {path}"
        if found and not fields.fits(found, column.type, []):
            where = "" if path == column.name else f" at {path}"
            return f"column {column.name!r} is {column.type}, but its schema has {shown(found)}{where}"
    return None
