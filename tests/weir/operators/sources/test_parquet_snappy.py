"""Pages decompressed by a kernel: what pyarrow makes of them, and nothing beyond its memory where they are damaged.

What a page is, is told by :func:`as_specified` as well, which takes one tag after the other.
"""

from __future__ import annotations

import ctypes
import mmap
import random

import numpy as np
import pyarrow as pa
import pytest

from tests.weir.operators.sources.varints import varint
from weir.kernel_bytes import PADDING_BYTES
from weir.operators.sources.parquet_snappy import decompress_snappy

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


def as_specified(packed: bytes, size: int) -> bytes | None:
    """Decompressed tag by tag; None: it cannot be."""
    at = next((place for place, byte in enumerate(packed[:5]) if byte < 0x80), 5) + 1
    said = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(packed[:at]))
    if at > min(5, len(packed)) or said != size:
        return None
    out = made_by(packed, at, size)
    return out if out is not None and len(out) == size else None


def made_by(packed: bytes, at: int, size: int) -> bytes | None:
    """What the tags from a place on make; None: there are none such, or they make more."""
    out = bytearray()
    while at < len(packed):
        kind, number = packed[at] & 3, packed[at] >> 2
        extra = max(0, number - 59) if kind == 0 else (1, 2, 4)[kind - 1]
        operand = int.from_bytes(packed[at + 1 : at + 1 + extra], "little")
        at += 1 + extra
        if at > len(packed):
            return None
        if kind == 0:
            length = operand + 1 if extra else number + 1
            if length > len(packed) - at or length > size - len(out):
                return None
            out += packed[at : at + length]
            at += length
            continue
        length, offset = number + 1, operand
        if kind == 1:
            length, offset = 4 + (number & 7), number >> 3 << 8 | operand
        if not 0 < offset <= len(out) or length > size - len(out):
            return None
        for _ in range(length):
            out.append(out[-offset])
    return bytes(out)


def stream(draw: random.Random) -> tuple[bytes, int]:
    """Tags as a writer may set them but none does, and the bytes that they make.

    Literals of a few bytes and copies follow each other, some of them many times in the same form.
    """
    out, size = bytearray(), 0
    near = [*range(1, 10), 8, 8, 8, 15, 16, 17, 31, 32, 33, 64, 100]
    while size < 3000:
        literal = draw.choice([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 31, 32, 33, 60, 61, 300]) or (not size)
        length = draw.choice([0, 8 - literal, 4, 7, 8, 11, 12, 15, 16, 17, 31, 32, 33, 48, 64])
        kind, wanted = draw.choice([1, 2, 3]), draw.choice([*near, draw.randrange(1, 3000)])
        for _ in range(draw.choice([1, 1, 2, 40])):
            if literal:
                last, extra = literal - 1, 0 if literal <= 60 else draw.choice([2, 3, 4])
                out.append((59 + extra if extra else last) << 2)
                out += (last.to_bytes(extra, "little") if extra else b"") + draw.randbytes(literal)
                size += literal
            offset = min(wanted, size)
            if length < 1:
                continue
            if kind == 1 and 4 <= length <= 11 and offset < 1 << 11:
                out += bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 0xFF])
            else:
                form = max(2, kind)
                out += bytes([length - 1 << 2 | form]) + offset.to_bytes(2 * (form - 1), "little")
            size += length
    return bytes(varint(size)) + bytes(out), size


def damaged(packed: bytes, draw: random.Random) -> bytes:
    """Some bytes are others."""
    data = bytearray(packed)
    for _ in range(draw.choice([1, 4])):
        place = draw.choice([draw.randrange(min(12, len(data))), draw.randrange(len(data))])
        data[place] = draw.choice([0, 255, data[place] ^ 1 << draw.randrange(8), draw.randrange(256)])
    return bytes(data)


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
            decompressed(damaged(packed, draw), size)


@pytest.mark.parametrize("seed", range(40))
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


def guarded(size: int) -> tuple[mmap.mmap, np.ndarray]:
    """So many bytes, uint8, before a page of memory that nobody may read; the first keeps it."""
    pages = -(-size // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    data = np.frombuffer(memory, dtype=np.uint8)
    protect = ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(data.ctypes.data + pages * mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    return memory, data[pages * mmap.PAGESIZE - size : pages * mmap.PAGESIZE]


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
