"""Columns that lie within nested values of JSON, Parquet and Arrow: their paths, and the schema of the whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as pa_types

from weir.errors import GraphError

#: What leads to a value: keys of objects, and places in lists, from 0 on.
Path: TypeAlias = "tuple[str | int, ...]"
#: As a job author gives it.
GivenPath: TypeAlias = "str | Sequence[str | int]"
#: A key and the places after it: ``commits[0]``.
_STEP = re.compile(r"(?!\[[0-9]+\])(.+?)((?:\[[0-9]{1,7}\])*)", re.DOTALL)
#: Nobody wants one of more values than this of a list.
_PLACES_MAX = 1_000_000


def column_paths(
    schema: pa.Schema, given: Mapping[str, GivenPath], *, has_lists: bool = True
) -> tuple[tuple[str, Path], ...]:
    """The columns that are not fields of the line itself, or were given, with what leads to their values.

    Args:
        schema: the columns; a name with dots, or with a place in brackets, is a path.
        given: paths of columns by their names, see :func:`given_paths`.
        has_lists: whether a path may lead into a list.

    Raises:
        GraphError: an unknown column, an empty key, or columns that do not go together.
    """
    paths = {name: parsed_path(name, name) for name in schema.names if name not in given}
    paths |= dict(given_paths(schema, given))
    in_list = next((name for name, path in paths.items() if any(isinstance(key, int) for key in path)), None)
    if in_list is not None and not has_lists:
        raise GraphError(
            f"paths: column {in_list!r} is a value of a list, which is for JSON; read the list, and take the value by "
            "a step"
        )
    tree_schema(schema, [paths[name] for name in schema.names])
    return tuple((name, paths[name]) for name in schema.names if name in given or paths[name] != (name,))


def given_paths(schema: pa.Schema, given: Mapping[str, GivenPath]) -> tuple[tuple[str, Path], ...]:
    """The paths that were given, in the order of the columns.

    Args:
        schema: the columns.
        given: by the names of columns: text with dots between keys and places in brackets, ``commits[0].author``, or a
            list of keys (which may have dots) and places: ``["commits", 0, "author"]``.

    Raises:
        GraphError: an unknown column, or no path.
    """
    unknown = [name for name in given if name not in schema.names]
    if unknown:
        raise GraphError(f"paths: there is no column {unknown[0]!r} in the schema")
    return tuple((name, parsed_path(name, given[name])) for name in schema.names if name in given)


def parsed_path(column: str, path: GivenPath) -> Path:
    """The keys and places of a path.

    Raises:
        GraphError: it is none; names the column.
    """
    keys: list[str | int] = []
    if isinstance(path, str):
        for part in path.split("."):
            step = _STEP.fullmatch(part)
            keys += ["", part] if step is None else [step[1], *map(int, re.findall("[0-9]+", step[2]))]
    else:
        keys += path
    are_right = all(
        bool(key) if isinstance(key, str) else type(key) is int and 0 <= key < _PLACES_MAX for key in keys
    )
    if not keys or not are_right or not isinstance(keys[0], str):
        raise GraphError(
            f"paths: column {column!r}: {path!r} is not a path; put one dot between two keys, and places in lists in "
            "brackets: commits[0].author.name"
        )
    return tuple(keys)


def path_text(path: Path) -> str:
    """As messages name it."""
    first, *rest = path
    return str(first) + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in rest)


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


#: Of wanted values: by key of an object, or by place in a list, what is wanted there; or the type of a value.
Tree: TypeAlias = "dict[str | int, Tree | pa.DataType]"


def path_tree(schema: pa.Schema, paths: Sequence[Path]) -> Tree:
    """What is wanted of each object and list, for columns that lie at these paths.

    Raises:
        GraphError: two columns do not go together: one is an object and the other one is no object, or of another type.
    """
    wanted: Tree = {}
    for field, path in zip(schema, paths, strict=True):
        _plant(wanted, path, field.type, field.name)
    return wanted


def tree_schema(schema: pa.Schema, paths: Sequence[Path]) -> pa.Schema:
    """The nested form of these columns: an object of each key that leads to some; lists as :func:`object_key` says.

    Raises:
        GraphError: see :func:`path_tree`.
    """
    return pa.schema(_fields(path_tree(schema, paths)))


def has_places(wanted: Tree) -> bool:
    """Whether single values of a list are wanted, not of an object."""
    return any(isinstance(key, int) for key in wanted)


def object_key(key: str | int) -> str:
    """Its name where a list of which single values are wanted is an object of them."""
    return f"[{key}]" if isinstance(key, int) else key


def _plant(wanted: Tree, path: Path, data_type: pa.DataType, column: str) -> None:
    key = path[0]
    if any(type(other) is not type(key) for other in wanted):
        what = "a list" if isinstance(key, int) else "an object"
        raise GraphError(f"schema: column {column!r} is in {what}, which by another column is something else")
    if len(path) == 1 and pa_types.is_struct(data_type) and data_type.num_fields:
        for field in data_type:
            _plant(wanted, (key, field.name), field.type, column)
    elif len(path) > 1:
        inner = wanted.setdefault(key, {})
        if not isinstance(inner, dict):
            what = "a list" if isinstance(path[1], int) else "an object"
            raise GraphError(
                f"schema: column {column!r} lies in {key!r}, which by another column is {inner}, not {what} of which "
                "single values are read"
            )
        _plant(inner, path[1:], data_type, column)
    elif wanted.setdefault(key, data_type) != data_type:
        other = wanted[key]
        told = str(other) if not isinstance(other, dict) else "a list" if has_places(other) else "an object"
        raise GraphError(
            f"schema: column {column!r} is {data_type}, but another column says that {key!r} is {told}"
        )


def _fields(wanted: Tree) -> list[pa.Field]:
    return [
        pa.field(object_key(key), pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for key, inner in wanted.items()
    ]
