"""Decodes lines in every way that the JSON source has, for tests that compare them."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.json.json_decode import JsonDecoder

FLAT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("load", pa.float64(), nullable=False),
        pa.field("up", pa.bool_(), nullable=False),
        pa.field("port", pa.uint16(), nullable=False),
        pa.field("long_name", pa.large_string()),
    ]
)


def padded(lines: list[bytes]) -> tuple[np.ndarray, int]:
    raw = b"".join(line + b"\n" for line in lines)
    return np.frombuffer(bytearray(raw + bytes(PADDING_BYTES)), dtype=np.uint8), len(raw)


def decode(lines: list[bytes], schema: pa.Schema = FLAT, **options: object):
    """All rows as dictionaries, and (line start, reason) of what was rejected."""
    return _decoded(JsonDecoder(schema, lines_max=700, **options), lines, schema)


def decode_singly(lines: list[bytes], schema: pa.Schema = FLAT, **options: object):
    """The same of each line alone, by the strict parser only; starts are those in the line."""
    decoder = JsonDecoder(schema, lines_max=700, use_scanner=False, **options)
    return [_decoded(decoder, [line], schema) for line in lines]


def _decoded(decoder: JsonDecoder, lines: list[bytes], schema: pa.Schema):
    data, stop = padded(lines)
    at, rows, rejected = 0, [], []
    while at < stop:
        result = decoder.decode(data, at, stop)
        result.batch.validate(full=True)
        assert result.batch.schema == schema
        rows += result.batch.to_pylist()
        rejected += [(rejection.start, rejection.reason) for rejection in result.rejections]
        assert result.next_start > at
        at = result.next_start
    return rows, rejected


def decode_each(lines: list[bytes], schema: pa.Schema = FLAT):
    """The reference: every line alone, by the strict parser only."""
    rows, rejected, at = [], [], 0
    for line, (got, bad) in zip(lines, decode_singly(lines, schema), strict=True):
        rows += got
        rejected += [(at + start, reason) for start, reason in bad]
        at += len(line) + 1
    return rows, rejected


def assert_paths_agree(lines: list[bytes], schema: pa.Schema = FLAT) -> None:
    expected = decode_each(lines, schema)
    assert decode(lines, schema) == expected
    assert decode(lines, schema, use_scanner=False) == expected


def mutate(line: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, or splice in something nasty."""
    out = bytearray(line)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = bytes(
                    [rng.choice(b'{}[]",:\\0123456789.-+eEtrufalsn \t\r\x00\x1f\x7f\x80\xc3\xff')]
                )
            case 1:
                out[at : at + rng.randrange(4)] = b""
            case 2:
                out[at:at] = rng.choice(
                    [b"\\u00e9", b"\\ud83d", "é€😀".encode(), b'"', b"1e5", b"null", b"0", b"NaN"]
                )
            case 3:
                other = rng.randrange(len(out) + 1)
                out[at:at] = out[min(at, other) : max(at, other)]
            case _:
                out[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(out).replace(b"\n", b" ")
