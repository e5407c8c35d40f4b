"""Columns that lie in nested objects of JSON: their paths, and the schema of the whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pa_types

from weir.errors import GraphError


def column_paths(
    schema: pa.Schema, given: Mapping[str, str | Sequence[str]]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns that are not fields of the line itself, with the keys that lead to their values.

    Args:
        schema: the columns; a name with dots is a path.
        given: paths of columns by their names: text with dots between keys, or a list of keys, which may have dots.

    Raises:
        GraphError: an unknown column, an empty key, or columns that do not go together.
    """
    unknown = [name for name in given if name not in schema.names]
    if unknown:
        raise GraphError(f"paths: there is no column {unknown[0]!r} in the schema")
    paths = {}
    for name in schema.names:
        path = given.get(name, name)
        keys = tuple(path.split(".")) if isinstance(path, str) else tuple(path)
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise GraphError(f"paths: column {name!r}: {path!r} is not a path; put one dot between two keys")
        paths[name] = keys
    tree_schema(schema, list(paths.values()))
    return tuple((name, keys) for name, keys in paths.items() if keys != (name,))


def check_json_types(schema: pa.Schema) -> None:
    """Refuse columns of types that values of JSON are not read as.

    Raises:
        GraphError: names the column; the message has no step.
    """
    for field in schema:
        wrong = _unread_type(field.type)
        if wrong is not None:
            raise GraphError(
                f"schema: column {field.name!r}: a value of JSON cannot be {wrong}; read it as str, int or a list, and "
                "convert it"
            )


def _unread_type(data_type: pa.DataType) -> pa.DataType | None:
    """The type, or one within it, that is not read; None: all are."""
    if pa_types.is_list(data_type):
        return _unread_type(data_type.value_type)
    if pa_types.is_struct(data_type):
        return next(filter(None, (_unread_type(field.type) for field in data_type)), None)
    number = pa_types.is_integer(data_type) or data_type in (pa.float32(), pa.float64())
    text = (
        pa_types.is_string(data_type) or pa_types.is_large_string(data_type) or pa_types.is_binary(data_type)
    )
    time = pa_types.is_timestamp(data_type) or pa_types.is_date(data_type)
    known = number or text or time or pa_types.is_boolean(data_type) or pa_types.is_decimal(data_type)
    return None if known else data_type


def tree_schema(schema: pa.Schema, paths: Sequence[Sequence[str]]) -> pa.Schema:
    """The nested form of columns that lie at these paths: an object of each key that leads to some.

    Raises:
        GraphError: two columns do not go together: one is an object and the other one is no object, or of another type.
    """
    wanted: dict[str, Any] = {}
    for field, path in zip(schema, paths, strict=True):
        _plant(wanted, tuple(path), field.type, field.name)
    return pa.schema(_fields(wanted))


def _plant(wanted: dict[str, Any], path: tuple[str, ...], data_type: pa.DataType, column: str) -> None:
    key = path[0]
    if len(path) == 1 and pa_types.is_struct(data_type) and data_type.num_fields:
        for field in data_type:
            _plant(wanted, (key, field.name), field.type, column)
    elif len(path) > 1:
        inner = wanted.setdefault(key, {})
        if not isinstance(inner, dict):
            raise GraphError(
                f"schema: column {column!r} lies in {key!r}, which by another column is {inner}, not an object"
            )
        _plant(inner, path[1:], data_type, column)
    elif wanted.setdefault(key, data_type) != data_type:
        other = "an object" if isinstance(wanted[key], dict) else str(wanted[key])
        raise GraphError(
            f"schema: column {column!r} is {data_type}, but another column says that {key!r} is {other}"
        )


def _fields(wanted: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(key, pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for key, inner in wanted.items()
    ]
