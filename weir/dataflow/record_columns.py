"""Columns of records that brokers keep, as authors give them: those of the value, and those of what is around it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeVar

import pyarrow as pa

from weir.errors import GraphError
from weir.rows.avro_fields import misfit
from weir.rows.nested_paths import GivenPath, Path, check_json_types, column_paths
from weir.specs.kafka_values import AvroSpec, ProtobufSpec

Part = TypeVar("Part", bound=str)

_RAW_TYPES = (pa.string(), pa.large_string(), pa.binary())


def check_topic(topic: object) -> None:
    """Refuse what is no name of a topic.

    Raises:
        GraphError: it is not.
    """
    if not isinstance(topic, str) or not topic:
        raise GraphError(f"topic is {topic!r}; give a name")


def sink_coding(value: object) -> AvroSpec | ProtobufSpec | None:
    """Return how a sink encodes its values; None: as JSON, or as a column has them.

    Raises:
        GraphError: Protobuf without descriptors.
    """
    coding = value if isinstance(value, AvroSpec | ProtobufSpec) else None
    if isinstance(coding, ProtobufSpec) and not coding.descriptors.data:
        raise GraphError("a sink in Protobuf needs descriptors, and the message's name")
    return coding


def check_parts(
    schema: pa.Schema,
    parts: Mapping[str, Part],
    part_types: Mapping[str, tuple[pa.DataType, ...]],
    value: object,
) -> dict[str, Part]:
    """Columns with something else than the value.

    Args:
        schema: all columns.
        parts: column, and what it has.
        part_types: what there is, and the types that a column of it may have.
        value: what the values are: "json", "raw" or a description.

    Raises:
        GraphError: one is wrong, or the others do not fit the value.
    """
    if not isinstance(parts, Mapping):
        raise GraphError(f'parts is {parts!r}; it is a mapping of columns, such as {{"user": "key"}}')
    for name, part in parts.items():
        if name not in schema.names:
            raise GraphError(f"parts: there is no column {name!r} in the schema")
        if part not in part_types:
            raise GraphError(f"parts: {name!r} is {part!r}; it is one of {', '.join(part_types)}")
        if schema.field(name).type not in part_types[part]:
            known = " or ".join(map(str, part_types[part]))
            raise GraphError(
                f"parts: column {name!r} with the {part} is {known}, not {schema.field(name).type}"
            )
    if value not in ("json", "raw") and not isinstance(value, AvroSpec | ProtobufSpec):
        raise GraphError(f"value is {value!r}; it is 'json', 'raw', weir.Avro(...) or weir.Protobuf(...)")
    rest = [column for column in schema if column.name not in parts]
    if value == "raw" and (len(rest) != 1 or rest[0].type not in _RAW_TYPES):
        raise GraphError(
            'value="raw" needs one column of bytes or text for the value, besides those in parts; the schema has '
            + (", ".join(f"{column.name}: {column.type}" for column in rest) or "none")
        )
    return dict(parts)


def value_paths(
    values: pa.Schema, value: object, given: Mapping[str, GivenPath]
) -> tuple[tuple[str, Path], ...]:
    """What leads to the columns of the value that lie within it.

    Args:
        values: the columns of the value.
        value: what the values are, as in :func:`check_parts`.
        given: paths of columns, as the author gave them.

    Raises:
        GraphError: a type or a path is not possible in such values.
    """
    has_paths = value != "raw" and len(values) > 0
    if value == "json":
        check_json_types(values)
    if given and not has_paths:
        raise GraphError('paths are for what is in the values, and not for value="raw"; leave them out')
    if isinstance(value, AvroSpec) and not (value.schema or value.registry):
        raise GraphError("Avro: give a registry, or a schema")
    paths = column_paths(values, given, has_lists=value == "json") if has_paths else ()
    if isinstance(value, AvroSpec) and value.schema:
        _check_fields(value.schema, values, dict(paths))
    return paths


def _check_fields(avro_schema: str, values: pa.Schema, paths: Mapping[str, Path]) -> None:
    """Refuse a given schema of Avro no record of which could be a row.

    Raises:
        GraphError: it is none, or lacks a column, or has it in another type.
    """
    try:
        wrong = misfit(
            json.loads(avro_schema),
            [(column, tuple(map(str, paths.get(column.name, (column.name,))))) for column in values],
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise GraphError(f"Avro: the schema is no schema of a record: {error!r}; correct it") from None
    if wrong is not None:
        raise GraphError(f"Avro: {wrong}; correct the schema of the values, or the columns")


def check_bootstrap(bootstrap: object) -> str:
    """Addresses of brokers.

    Raises:
        GraphError: they have another form.
    """
    hosts = bootstrap.split(",") if isinstance(bootstrap, str) else []
    if not hosts or not all(re.fullmatch(r"[^\s:]+:\d+|\[[^\s\]]+\]:\d+", host.strip()) for host in hosts):
        raise GraphError(f"bootstrap is {bootstrap!r}; give addresses of brokers: 'host:9092,host:9092'")
    return ",".join(host.strip() for host in hosts)
