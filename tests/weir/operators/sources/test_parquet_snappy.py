"""Pages decompressed by a kernel: what pyarrow makes of them, and nothing beyond its memory where they are damaged.

What a page is, is told by ``as_specified`` as well, which takes one tag after the other.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from tests.effort import cases
from tests.weir.operators.sources.guarded_memory import guarded
from tests.weir.operators.sources.snappy_tags import as_specified, damaged, made_by, stream
from tests.weir.operators.sources.varints import varint
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_snappy import decompress_snappy

CODEC = pa.Codec("snappy")


def decompressed(packed: bytes, size: int) -> bytes | None:
    """None: it cannot be. Nothing is written before the page or after the padding, and no byte beside it counts."""
    guard, begin = 96, 3
    found: list[bytes | None] = []
    for beside in (b"\xfe", b"\x00"):
        around = beside * begin, beside * PADDING_BYTES
        data = np.frombuffer(packed.join(around), dtype=np.uint8).copy()
        out = np.full(guard + size + PADDING_BYTES + guard, 170, dtype=np.uint8)
        memory = out[guard : guard + size + PADDING_BYTES]
        is_whole = decompress_snappy(data, begin, begin + len(packed), memory, size)
        assert (out[:guard] == 170).all()
        assert (out[-guard:] == 170).all()
        assert data.tobytes() == packed.join(around)
        found.append(memory[:size].tobytes() if is_whole else None)
    assert found[0] == found[1]
    return found[0]


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
        np.cumsum([draw.choice([1, 1, 300, 70_000]) for _ in range(count)], dtype=np.int64).tobytes(),
        np.arange(count, dtype=np.float64).tobytes(),
        b"".join(len(name).to_bytes(4, "little") + name for name in names),
        mixed,
        draw.randbytes(draw.randrange(200_000)),
        bytes(draw.randrange(70_000)),
        b"",
    ]


@pytest.mark.parametrize("seed", range(cases(10)))
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
            decompressed(damaged(packed, draw), size)


@pytest.mark.parametrize("seed", range(cases(20)))
def test_tags_of_every_kind_follow_each_other(seed):
    """Whole, damaged and cut short: what each tag says, or nothing."""
    draw = random.Random(seed)
    packed, size = stream(draw)
    whole = as_specified(packed, size)
    assert whole is not None
    assert CODEC.decompress(packed, size, asbytes=True) == whole
    assert decompressed(packed, size) == whole
    for _ in range(30):
        other = damaged(packed, draw)
        assert decompressed(other, size) == as_specified(other, size)
    for stop in [*draw.sample(range(len(packed)), 20), *range(len(packed) - 40, len(packed))]:
        assert decompressed(packed[:stop], size) == as_specified(packed[:stop], size)
    for said in [*range(size - 20, size), *draw.sample(range(size), 20), size + 1]:
        assert decompressed(varint(said) + packed[len(varint(size)) :], said) is None


@pytest.mark.parametrize(
    ("kind", "literal"), [*((1, size) for size in range(1, 5)), *((2, size) for size in range(1, 7))]
)
def test_numbers_that_follow_each_other_end_where_a_tag_is_another(kind, literal):
    """Each bit of a pair of tags in a row of the same ones, but for those of the literal itself, ends it."""
    length = 8 - literal
    tag = bytes([length - 4 << 2 | 1, 8]) if kind == 1 else bytes([length - 1 << 2 | 2, 8, 0])
    begin = bytes([7 << 2]) + bytes(range(8))
    one = bytes([literal - 1 << 2]) + bytes(range(201, 201 + literal)) + tag
    for bit in range(8 * len(one)):
        other = bytearray(one)
        other[bit >> 3] ^= 1 << (bit & 7)
        body = begin + one * 20 + bytes(other) + one * 30
        whole = made_by(body, 0, 1 << 20)
        size = 8 * 52 if whole is None else len(whole)
        assert decompressed(varint(size) + body, size) == whole


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_read_after_the_padding(seed):
    """It would end the process."""
    draw = random.Random(seed)
    packed, size = stream(draw)
    keep = []
    for stop in draw.sample(range(5, len(packed)), 50):
        inner = guarded(stop + PADDING_BYTES)
        outer = guarded(size + PADDING_BYTES)
        keep += [inner, outer]
        inner[1][:stop] = np.frombuffer(packed[:stop], dtype=np.uint8)
        assert not decompress_snappy(inner[1], 0, stop, outer[1], size)


def test_what_is_not_there_is_not_copied():
    for packed in (
        b"\x04\x00a\x02\x02\x00",
        b"\x04\x00a\x0a\x00\x00",
        b"\x04\x0a\x01\x00",
        b"\x02\x00a",
        b"",
    ):
        assert decompressed(packed, packed[0] if packed else 0) is None
