"""Schemas by their numbers, from a registry over HTTP; each is asked for once in a process.

The protocol is that of Confluent's registry, which Karapace and Apicurio serve, too: a value begins with a zero byte
and the number of its schema, four bytes, the highest first.
"""

from __future__ import annotations

import base64
import json
import struct
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weir.errors import FailureKind, InputError
from weir.specs.kafka_values import RegistrySpec

HEADER_BYTES = 5
_HEADER = struct.Struct(">bI")
_TIMEOUT_S = 10.0
_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND = 404


class UnknownSchemaError(Exception):
    """The registry does not have a schema; the message says which."""


@dataclass(frozen=True)
class RegisteredSchema:
    """What a registry has: ``text`` of Avro is JSON, of Protobuf a serialised file descriptor in base64."""

    text: str
    kind: str
    #: Names, and the schemas that this one refers to by them.
    references: tuple[tuple[str, RegisteredSchema], ...] = ()


def header(schema_id: int) -> bytes:
    """What comes before a value of this schema."""
    return _HEADER.pack(0, schema_id)


def schema_id_of(value: bytes) -> int | None:
    """The number before a value; None: the value has none."""
    if len(value) < HEADER_BYTES or value[0] != 0:
        return None
    return int(_HEADER.unpack_from(value)[1])


class Registry:
    """One registry. Safe for several threads.

    Args:
        spec: where it is, and the user.
        who: the step, for messages.
    """

    def __init__(self, spec: RegistrySpec, who: str) -> None:
        self._spec, self._who = spec, who
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}
        self._unknown: set[int] = set()

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of this number.

        Raises:
            UnknownSchemaError: there is none; a registry never gives a number again, so that this stays so for long.
            InputError: the registry is away, or refuses.
        """
        with self._lock:
            if schema_id in self._unknown:
                raise UnknownSchemaError(f"schema {schema_id} is not in the registry")
            if schema_id not in self._by_id:
                try:
                    found = self._ask(f"/schemas/ids/{schema_id}")
                    if found.get("schemaType") == "PROTOBUF":
                        found = self._ask(f"/schemas/ids/{schema_id}?format=serialized")
                except UnknownSchemaError:
                    self._unknown.add(schema_id)
                    raise UnknownSchemaError(f"schema {schema_id} is not in the registry") from None
                self._by_id[schema_id] = self._resolved(found)
            return self._by_id[schema_id]

    def register(self, subject: str, text: str, kind: str) -> int:
        """Register a schema under a subject, if it is not there yet; returns its number.

        Raises:
            InputError: the registry is away or refuses it, for instance because readers could not read both.
        """
        body: dict[str, object] = {"schema": text}
        if kind != "AVRO":
            body["schemaType"] = kind
        return int(self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)["id"])

    def _resolved(self, found: Mapping[str, Any]) -> RegisteredSchema:
        kind = found.get("schemaType", "AVRO")
        references = []
        for reference in found.get("references") or ():
            subject = urllib.parse.quote(reference["subject"], safe="")
            path = f"/subjects/{subject}/versions/{reference['version']}"
            suffix = "?format=serialized" if kind == "PROTOBUF" else ""
            references.append((reference["name"], self._resolved(self._ask(path + suffix))))
        return RegisteredSchema(str(found["schema"]), kind, tuple(references))

    def _ask(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self._spec.url + path, headers={"Accept": _MEDIA_TYPE})
        user = self._spec.properties.get("basic.auth.user.info", "")
        if user:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", _MEDIA_TYPE)
        where = f"{self._who}: the schema registry at {self._spec.url}"
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                answer: dict[str, Any] = json.loads(reply.read())
                return answer
        except urllib.error.HTTPError as error:
            with error:
                told = _told(error.read())
            if error.code == _NOT_FOUND and body is None:
                raise UnknownSchemaError(told) from None
            if error.code in (401, 403):
                raise InputError(f"{where} refuses ({error.code}): {told}; correct auth") from None
            if error.code < 500 and error.code not in (408, 429):
                raise InputError(
                    f"{where} refuses ({error.code}): {told}; correct the schema or the subject"
                ) from None
            raise self._away(where, f"{error.code} {told}") from None
        except json.JSONDecodeError:
            raise InputError(f"{where} does not answer in JSON; correct the URL") from None
        except OSError as error:
            raise self._away(where, str(getattr(error, "reason", error))) from None

    @staticmethod
    def _away(where: str, what: str) -> InputError:
        failure = InputError(f"{where} does not answer: {what}; check the URL, and that it runs")
        failure.failure_kind = FailureKind.OUTAGE
        return failure


def _told(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").replace("\n", " ")
