"""Schemas by their numbers, from a registry over HTTP; each is asked for once in a process.

The protocol is that of Confluent's registry, which Karapace and Apicurio serve, too: a value begins with a zero byte
and the number of its schema, four bytes, the highest first.
"""

from __future__ import annotations

import base64
import http.client
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
    """A schema registry. Safe for several threads.

    Args:
        spec: where it is, and the user.
        who: the step, for messages.
    """

    def __init__(self, spec: RegistrySpec, who: str) -> None:
        self._spec, self._who = spec, who
        self._lock = threading.Lock()
        self._by_id: dict[int, RegisteredSchema] = {}
        #: What is said of the numbers that it does not have.
        self._unknown: dict[int, str] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of this number.

        Raises:
            UnknownSchemaError: there is none; a registry never gives a number again, so that this stays so for long.
            InputError: the registry is away, or refuses.
        """
        with self._lock:
            if schema_id in self._unknown:
                raise UnknownSchemaError(self._unknown[schema_id])
            if schema_id not in self._by_id:
                try:
                    self._by_id[schema_id] = self._asked(schema_id)
                except UnknownSchemaError as error:
                    self._unknown[schema_id] = str(error)
                    raise
            return self._by_id[schema_id]

    def _asked(self, schema_id: int) -> RegisteredSchema:
        try:
            found = self._ask(f"/schemas/ids/{schema_id}")
            if found.get("schemaType") == "PROTOBUF":
                found = self._ask(f"/schemas/ids/{schema_id}?format=serialized")
        except UnknownSchemaError:
            raise UnknownSchemaError(f"schema {schema_id} is not in the registry") from None
        try:
            return self._resolved(found)
        except UnknownSchemaError as error:
            raise UnknownSchemaError(f"schema {schema_id} refers to one that is not there: {error}") from None

    def register(self, subject: str, text: str, kind: str) -> int:
        """Register a schema under a subject, if it is not there yet; returns its number.

        Raises:
            InputError: the registry is away or refuses it, for instance because readers could not read both.
        """
        body: dict[str, object] = {"schema": text}
        if kind != "AVRO":
            body["schemaType"] = kind
        answer = self._ask(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions", body)
        return int(self._part(answer, "id"))

    def _resolved(self, found: Mapping[str, Any]) -> RegisteredSchema:
        kind = found.get("schemaType", "AVRO")
        references = []
        for reference in found.get("references") or ():
            subject = urllib.parse.quote(reference["subject"], safe="")
            path = f"/subjects/{subject}/versions/{reference['version']}"
            suffix = "?format=serialized" if kind == "PROTOBUF" else ""
            references.append((reference["name"], self._resolved(self._ask(path + suffix))))
        return RegisteredSchema(str(self._part(found, "schema")), kind, tuple(references))

    def _part(self, answer: Mapping[str, Any], name: str) -> Any:
        if name not in answer:
            raise self._no_registry(f"without {name!r}")
        return answer[name]

    def _ask(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self._spec.url + path, headers={"Accept": _MEDIA_TYPE})
        user = self._spec.properties.get("basic.auth.user.info", "")
        if user:
            request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", _MEDIA_TYPE)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, _read(error), is_question=body is None) from None
        except ValueError:
            raise self._no_registry("not in JSON") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._away(str(getattr(error, "reason", error)) or type(error).__name__) from None
        if not isinstance(answer, dict):
            raise self._no_registry("not with a JSON object")
        return answer

    def _refusal(self, code: int, body: bytes, *, is_question: bool) -> UnknownSchemaError | InputError:
        told, is_own = _told(body)
        if code == _NOT_FOUND and is_question:
            # Registries say with a number of their own what they do not have; others answer 404 to any path.
            return UnknownSchemaError(told) if is_own else self._no_registry(f"404 {told}")
        if code in (401, 403):
            return InputError(f"{self._where} refuses ({code}): {told}; correct auth")
        if code < 500 and code not in (408, 429):
            return InputError(f"{self._where} refuses ({code}): {told}; correct the schema or the subject")
        return self._away(f"{code} {told}")

    @property
    def _where(self) -> str:
        return f"{self._who}: the schema registry at {self._spec.url}"

    def _no_registry(self, how: str) -> InputError:
        return InputError(f"{self._where} answers {how}, as no schema registry does; correct the URL")

    def _away(self, what: str) -> InputError:
        failure = InputError(f"{self._where} does not answer: {what}; check the URL, and that it runs")
        failure.failure_kind = FailureKind.OUTAGE
        return failure


def _read(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read()
    except (OSError, http.client.HTTPException):
        return b""


def _told(body: bytes) -> tuple[str, bool]:
    """What a refusal says, and whether it is one of a registry: for paths that are none it says "HTTP 404"."""
    try:
        answer = json.loads(body)
        message = str(answer["message"])
        return message, "error_code" in answer and not message.startswith("HTTP 404")
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").replace("\n", " "), False
