"""Texts in JSON lines: what is well formed is taken wherever it stands, and the room for them is bounded."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from tests.effort import cases
from tests.weir.operators.sources.json_paths_compared import padded
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.json.json_decode import JsonDecoder, ScanColumns

#: Ends of the ranges that UTF-8 allows, and what lies just outside them.
_SEQUENCES = [
    *(chr(code).encode() for code in (0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000)),
    *(text.encode() for text in ("é", "я", "中", "語", "가", "\U0010ffff", "a", " ")),
    *(b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80"),
    *(b"\x80", b"\xbf", b"\xff", b"\xe4\xb8", b"\xd0", b"\xe4\xb8\xc3", b"\xf5\x80\x80\x80"),
]


@pytest.mark.parametrize("seed", range(cases(2)))
def test_text_beyond_ascii_is_taken_if_it_is_well_formed_wherever_it_stands(seed):
    rng = random.Random(seed)
    schema = pa.schema([pa.field("name", pa.string(), nullable=False)])
    lines, good = [], []
    for _ in range(700):
        well_formed = _SEQUENCES[:17] if rng.random() < 0.6 else _SEQUENCES
        run = [rng.choice(well_formed)] * rng.randrange(5) if rng.random() < 0.5 else []
        text = b"a" * rng.randrange(40) + b"".join(
            [*run, *rng.choices(well_formed, k=rng.randrange(12)), *run]
        )
        wanted, other = (text, b"x") if rng.random() < 0.5 else (b"x", text)
        lines.append(b'{"other \xd1\x8f": "' + other + b'", "name": "' + wanted + b'"}')
        try:
            good.append({"name": json.loads(lines[-1].decode())["name"]})
        except UnicodeDecodeError:
            continue
    data, stop = padded(lines)
    scanned = JsonDecoder(schema, lines_max=2000)
    found = scanned.decode(data, 0, stop)
    assert found.batch.to_pylist() == good
    assert len(found.rejections) == len(lines) - len(good)
    # Only what is not well formed is left to the strict parsers.
    kept = [line for line in lines if _is_utf8(line)]
    scanned._strict = None
    data, stop = padded(kept)
    assert scanned.decode(data, 0, stop).batch.to_pylist() == good


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("strings", [60, 160, 500])
def test_room_for_the_texts_of_many_columns_is_bounded(strings):
    schema = pa.schema([(f"c{number}", pa.string()) for number in range(strings)])
    row = {name: f"value of {name}" for name in schema.names}
    text = (json.dumps(row).encode() + b"\n") * 300
    data = np.frombuffer(bytearray(text + bytes(PADDING_BYTES)), dtype=np.uint8)
    decoder, at, rows = JsonDecoder(schema), 0, []
    while at < len(text):
        decoded = decoder.decode(data, at, len(text))
        rows += decoded.batch.to_pylist()
        at = decoded.next_start
    assert rows == [row] * 300
    columns = ScanColumns.make(schema, [], {}, 32_768)
    assert (columns is None) == (strings > 160)
    if columns is not None:
        stop = columns.fitting(np.full(4 << 20, 10, dtype=np.uint8), 0, 4 << 20)
        columns.reserve(stop)
        assert columns.cells.texts.nbytes <= 65 << 20
