"""Avro and Protobuf as job authors write them, for :class:`weir.Kafka` and :func:`weir.KafkaSink`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.errors import GraphError
from weir.specs.kafka_properties import ClientProperties
from weir.specs.kafka_values import AvroSpec, Descriptors, ProtobufSpec, RegistrySpec


def Avro(
    *,
    registry: str = "",
    schema: str | Path | Mapping[str, Any] | None = None,
    subject: str = "",
    auth: str = "",
) -> AvroSpec:
    """Values in Avro. Needs ``pip install 'weir[kafka]'``.

    Logical types are read as what the column is: a ``decimal`` as ``pl.Decimal`` or as its bytes, ``timestamp-millis``
    as ``pl.Datetime`` or as an integer of ms.

    Args:
        registry: URL of a schema registry, whose numbers are before the values: ``"http://localhost:8081"``. Empty:
            a value is a record alone, and ``schema`` says which.
        schema: of the records: a mapping, JSON text, or the path of a file. A source with a registry needs none; if it
            has one, records of all versions are read as records of this one: fields by its names or aliases, and where
            a record has none its default. A sink without one makes it of its columns.
        subject: under which a sink registers its schema; by default ``TOPIC-value``.
        auth: ``"user:password"`` for the registry.

    Raises:
        GraphError: a setting is wrong.
    """
    if schema is None:
        text = ""
    elif isinstance(schema, Mapping):
        text = json.dumps(schema)
    else:
        is_path = isinstance(schema, Path) or not schema.lstrip().startswith("{")
        text = _read(Path(schema), "Avro: schema").decode() if is_path else str(schema)
    if text:
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            raise GraphError(f"Avro: schema is no JSON: {error}") from None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise GraphError("Avro: schema is not of a record")
    return AvroSpec(text, _registry("Avro", registry, auth), subject)


def Protobuf(
    message: str = "",
    *,
    registry: str = "",
    descriptors: str | Path | bytes | None = None,
    subject: str = "",
    auth: str = "",
) -> ProtobufSpec:
    """Values in Protobuf. Needs ``pip install 'weir[kafka]'``.

    Args:
        message: full name of the message: ``"shop.Order"``. A source with a registry needs none.
        registry: URL of a schema registry, whose numbers are before the values. Empty: a value is a message alone.
        descriptors: what ``protoc --include_imports --descriptor_set_out=FILE`` writes: the path, or the bytes. A
            source with a registry needs none.
        subject: under which a sink registers its schema; by default ``TOPIC-value``.
        auth: ``"user:password"`` for the registry.

    Raises:
        GraphError: a setting is wrong.
    """
    if not (registry or descriptors):
        raise GraphError("Protobuf: give a registry, or descriptors")
    if descriptors and not message:
        raise GraphError("Protobuf: message is missing; give its full name: 'shop.Order'")
    data = b""
    if descriptors:
        data = (
            descriptors
            if isinstance(descriptors, bytes)
            else _read(Path(descriptors), "Protobuf: descriptors")
        )
    return ProtobufSpec(message, Descriptors(data), _registry("Protobuf", registry, auth), subject)


def _registry(who: str, url: str, auth: str) -> RegistrySpec | None:
    if not url:
        if auth:
            raise GraphError(f"{who}: auth is for a registry; give its URL, or leave auth out")
        return None
    if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", url):
        raise GraphError(
            f"{who}: registry must be like 'http://localhost:8081', and auth has user and password"
        )
    if auth and ":" not in auth:
        raise GraphError(f"{who}: auth must be 'user:password'")
    return RegistrySpec(url.rstrip("/"), ClientProperties({"basic.auth.user.info": auth} if auth else {}))


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise GraphError(f"{what}: cannot read {path}: {error.strerror}; correct the path") from None
