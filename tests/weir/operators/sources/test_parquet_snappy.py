"""Pages decompressed by a kernel: what pyarrow makes of them, and nothing beyond its memory where they are damaged."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tests.weir.operators.sources.varints import varint
from weir.kernel_bytes import PADDING_BYTES
from weir.operators.sources.parquet_snappy import decompress_snappy

CODEC = pa.Codec("snappy")


def decompressed(packed: bytes, size: int) -> bytes | None:
    """None: it cannot be. Nothing is written after the padding."""
    guard = 64
    begin = 3
    data = np.frombuffer(b"\x01" * begin + packed + b"\xfe" * PADDING_BYTES, dtype=np.uint8).copy()
    out = np.full(size + PADDING_BYTES + guard, 170, dtype=np.uint8)
    memory = out[: size + PADDING_BYTES]
    is_whole = decompress_snappy(data, begin, begin + len(packed), memory, size)
    assert (out[size + PADDING_BYTES :] == 170).all()
    return out[:size].tobytes() if is_whole else None


def pages(draw: random.Random) -> list[bytes]:
    """Numbers and names as dictionaries have them, repetitions of every distance, and what does not repeat."""
    count = draw.randrange(1, 3000)
    first, step = draw.randrange(1 << 40), draw.choice([1, 1, 7, 300])
    names = [f"server-{draw.randrange(100_000)}".encode() for _ in range(count)]
    units = [draw.randbytes(size) for size in range(1, 70)]
    mixed = b"".join(
        draw.choice(units) * draw.choice([1, 2, 9]) + draw.randbytes(draw.randrange(12)) for _ in range(200)
    )
    return [
        np.arange(first, first + step * count, step, dtype=np.int64).tobytes(),
        np.arange(first % 1000, first % 1000 + count, dtype=np.int32).tobytes(),
        b"".join(len(name).to_bytes(4, "little") + name for name in names),
        mixed,
        draw.randbytes(draw.randrange(200_000)),
        bytes(draw.randrange(70_000)),
        b"",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_what_was_compressed(seed):
    for page in pages(random.Random(seed)):
        assert decompressed(CODEC.compress(page, asbytes=True), len(page)) == page


@pytest.mark.parametrize("literal", [1, 5, 8])
@pytest.mark.parametrize("length", range(1, 65))
def test_copies_of_every_length_and_distance(literal, length):
    """Also such as no writer makes."""
    unit = bytes(range(1, 101))
    for offset in range(1, 101 + literal):
        whole = bytearray(unit) + b"\xf0" * literal
        for _ in range(length):
            whole.append(whole[-offset])
        whole += bytes(whole[-8:])
        size = len(whole)
        packed = bytes([*varint(size), 60 << 2, 99]) + unit + bytes([literal - 1 << 2]) + b"\xf0" * literal
        packed += bytes([length - 1 << 2 | 2, offset, 0, 7 << 2 | 3, 8, 0, 0, 0])
        assert decompressed(packed, size) == bytes(whole)
        assert CODEC.decompress(packed, size, asbytes=True) == bytes(whole)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_pages_are_refused_or_have_their_size(seed):
    draw = random.Random(seed)
    for page in pages(draw):
        packed = CODEC.compress(page, asbytes=True)
        size = len(page)
        assert decompressed(packed, size + 1) is None
        assert decompressed(packed[: draw.randrange(len(packed))], size) is None
        for _ in range(20):
            data = bytearray(packed)
            for _ in range(draw.choice([1, 4])):
                place = draw.choice([draw.randrange(min(12, len(data))), draw.randrange(len(data))])
                data[place] = draw.choice([0, 255, draw.randrange(256)])
            decompressed(bytes(data), size)


def test_what_is_not_there_is_not_copied():
    for packed in (
        b"\x04\x00a\x02\x02\x00",
        b"\x04\x00a\x0a\x00\x00",
        b"\x04\x0a\x01\x00",
        b"\x02\x00a",
        b"",
    ):
        assert decompressed(packed, packed[0] if packed else 0) is None
