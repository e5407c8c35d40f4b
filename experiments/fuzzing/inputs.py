"""Inputs: bytes and JSON that were right and are damaged, messages of protobuf with any values, requests of HTTP."""

from __future__ import annotations

import json
import random
from typing import Any

from google.protobuf.message import Message

_EDGES = (0, 1, 2, 127, 128, 255, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)
_TEXTS = (
    "",
    "x",
    "../../etc/passwd",
    "/",
    "127.0.0.1:1",
    "unix:/tmp/x",
    "[::1]:99999",
    "a\0b",
    "\x1b[2J\r\nforged line",
    "ä" * 50,
    "z" * 5_000,
    "%00%ff%",
    "jobs.server_count",
    "{}",
    "null",
    '{"a":',
)
_FIELDS_MAX = 4
_DEPTH_MAX = 3


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return bytes with a few flips, cuts, copies or insertions."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(5), rng.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + rng.randint(1, 16)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        elif kind == 3:
            data[at:at] = data[: rng.randint(0, 64)]
        else:
            del data[at:]
    return bytes(data)


def any_json(rng: random.Random, depth: int = 0) -> Any:
    """Return any value of JSON."""
    kind = rng.randrange(8 if depth < _DEPTH_MAX else 6)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind == 2:
        return rng.choice(_EDGES) * rng.choice((1, -1)) % 2**63
    if kind == 3:
        return rng.choice((0.5, -1e300, 1e-300, 3.0))
    if kind in (4, 5):
        return rng.choice(_TEXTS)
    if kind == 6:
        return [any_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(_TEXTS): any_json(rng, depth + 1) for _ in range(rng.randrange(4))}


def damaged_json(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Return a document with another value at one place, or without one."""
    if depth and rng.random() < 0.2:
        return any_json(rng)
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.2:
            del changed[key]
        else:
            changed[key] = damaged_json(rng, value[key], depth + 1)
        return changed
    if isinstance(value, list) and value:
        changed_list = list(value)
        index = rng.randrange(len(value))
        changed_list[index] = damaged_json(rng, value[index], depth + 1)
        return changed_list
    return any_json(rng)


def json_bytes(rng: random.Random, document: Any) -> bytes:
    """Return a document damaged as a document, or as bytes."""
    if rng.random() < 0.3:
        return damaged(rng, json.dumps(document).encode())
    return json.dumps(damaged_json(rng, document)).encode()


def fill(rng: random.Random, message: Message, depth: int = 0) -> Message:
    """Set some fields of a message to any values of their types; returns it."""
    fields = message.DESCRIPTOR.fields
    for field in rng.sample(list(fields), min(len(fields), rng.randint(0, _FIELDS_MAX))):
        _set(rng, message, field, depth)
    return message


def _set(rng: random.Random, message: Message, field: Any, depth: int) -> None:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return
    if entry is not None:
        if depth < _DEPTH_MAX:
            there = getattr(message, field.name)
            for _ in range(rng.randrange(4) if field.is_repeated else 1):
                if field.is_repeated:
                    fill(rng, there.add(), depth + 1)
                else:
                    there.SetInParent()
                    fill(rng, there, depth + 1)
        return
    if field.is_repeated:
        getattr(message, field.name).extend(_value(rng, field) for _ in range(rng.randrange(5)))
    else:
        setattr(message, field.name, _value(rng, field))


def _value(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 2, 4, 43, 300)))
        return rng.choice(_TEXTS)
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.5, 1e30, float("nan")))
    if kind == field.CPPTYPE_ENUM:
        return rng.randrange(7)
    number = rng.choice(_EDGES)
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return number % 2**bits
    return number % 2 ** (bits - 1) * rng.choice((1, -1))


def http_request(rng: random.Random, paths: tuple[str, ...]) -> bytes:
    """Return a request of HTTP that is right, nearly right, or none."""
    method = rng.choice(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "gEt", "", "X" * 300))
    path = rng.choice(paths)
    path = path.replace("{}", rng.choice(("a", "%00", "..", "%2e%2e%2f", "1", "-1", "999999999999999999999")))
    if rng.random() < 0.5:
        name = rng.choice(("stage", "parallelism", "path", "savepoint", "from", "limit", "continuation", "x"))
        path += f"?{name}={rng.choice(('', '1', '-1', '0x1', '1e999', '%ff', 'a' * 3_000, '[]', '{'))}"
    lines = [f"{method} {path} HTTP/1.1"]
    lines.append(f"Host: {rng.choice(('127.0.0.1', 'evil.example', '', '[::1', 'localhost:x'))}")
    for _ in range(rng.randrange(3)):
        name = rng.choice(
            ("Origin", "Accept", "Content-Length", "Transfer-Encoding", "Cookie", "Authorization")
        )
        lines.append(f"{name}: {rng.choice(('', '-1', 'chunked', 'null', 'a=b;;=', 'Bearer ', '5', '*/*'))}")
    request = "\r\n".join([*lines, "Connection: close", "", "body"]).encode()
    return damaged(rng, request) if rng.random() < 0.3 else request
