"""Blocks of LZ4 decompressed by a kernel: what pyarrow makes of them, and nothing beyond its memory if one is damaged.

What a block is, is told by :func:`as_specified` as well, which takes one sequence after the other.
"""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from tests.effort import cases
from tests.weir.operators.sources.guarded_memory import guarded
from tests.weir.operators.sources.test_parquet_snappy import damaged, pages
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_lz4 import decompress_lz4

CODEC = pa.Codec("lz4_raw")
#: Of literals and of matches: around where the token's length ends, and each byte after it.
LENGTHS = [
    14,
    15,
    16,
    18,
    19,
    20,
    31,
    32,
    33,
    63,
    64,
    65,
    269,
    270,
    271,
    272,
    273,
    274,
    275,
    524,
    525,
    529,
    530,
    1100,
]


def decompressed(packed: bytes, size: int) -> bytes | None:
    """None: it cannot be. Nothing is written before the block or after the padding, and no byte beside it counts."""
    guard, begin = 96, 3
    found: list[bytes | None] = []
    for beside in (b"\xfe", b"\x00"):
        around = beside * begin, beside * PADDING_BYTES
        data = np.frombuffer(packed.join(around), dtype=np.uint8).copy()
        out = np.full(guard + max(0, size) + PADDING_BYTES + guard, 170, dtype=np.uint8)
        memory = out[guard : len(out) - guard]
        is_whole = decompress_lz4(data, begin, begin + len(packed), memory, size)
        assert (out[:guard] == 170).all()
        assert (out[-guard:] == 170).all()
        assert data.tobytes() == packed.join(around)
        found.append(memory[: max(0, size)].tobytes() if is_whole else None)
    assert found[0] == found[1]
    return found[0]


def as_specified(packed: bytes, size: int) -> bytes | None:
    """Decompressed sequence by sequence; None: it cannot be."""
    out, at = bytearray(), 0
    while at < len(packed):
        token = packed[at]
        literal, at = length_at(packed, at + 1, token >> 4)
        if at + literal > len(packed) or literal > size - len(out):
            return None
        out += packed[at : at + literal]
        at += literal
        if at == len(packed):
            return bytes(out) if len(out) == size else None
        offset = int.from_bytes(packed[at : at + 2], "little")
        length, after = length_at(packed, at + 2, token & 15)
        # The last match begins twelve bytes before the end, and ends five before it.
        if at + 2 > len(packed) or after > len(packed) or len(out) > size - 12:
            return None
        if not 0 < offset <= len(out) or length + 4 > size - 5 - len(out):
            return None
        for _ in range(length + 4):
            out.append(out[-offset])
        at = after
    return None


def length_at(packed: bytes, at: int, length: int) -> tuple[int, int]:
    """A length, and where it ends: after the block, if it goes on there."""
    if length < 15:
        return length, at
    while at < len(packed) and packed[at] == 255:
        length, at = length + 255, at + 1
    return (length + packed[at], at + 1) if at < len(packed) else (length, at + 1)


def sequence(literal: bytes, match: int, offset: int) -> bytes:
    """A literal and a match of so many bytes; 0: the last literal."""
    token, rest = min(15, len(literal)), max(0, match - 4)
    more = [
        bytes([255] * ((size - 15) // 255) + [(size - 15) % 255])
        for size in (len(literal), rest)
        if size >= 15
    ]
    out = bytes([token << 4 | min(15, rest)]) + (more.pop(0) if len(literal) >= 15 else b"") + literal
    return out + offset.to_bytes(2, "little") + b"".join(more) if match else out


def block(draw: random.Random, wanted: int = 3000) -> tuple[bytes, int]:
    """Sequences as a writer may set them but none does, and the bytes that they make; some forms come many times."""
    out, size = bytearray(), 0
    near = [*range(1, 10), 8, 8, 8, 8, 15, 16, 17, 31, 32, 33, 64, 100]
    while size < wanted:
        literal = draw.choice([0, 0, 1, 1, 2, 3, 4, 5, 7, 8, draw.choice(LENGTHS)]) or int(not size)
        match = draw.choice([8 - literal, 7, 8, 15, 16, draw.choice(LENGTHS), draw.choice(LENGTHS)])
        offset = draw.choice([*near, draw.randrange(1, 3000)])
        for _ in range(draw.choice([1, 1, 2, 40])):
            size += literal
            out += sequence(draw.randbytes(literal), max(4, match), min(offset, size))
            size += max(4, match)
    last = draw.choice([8, 12, 14, 15, 300])
    return bytes(out) + sequence(draw.randbytes(last), 0, 0), size + last


def texts(draw: random.Random, size: int) -> list[bytes]:
    """Of so many bytes: runs, short periods, random bytes, words, JSON."""
    words = [bytes(draw.choices(b"abcdefgh", k=draw.randrange(1, 9))) for _ in range(200)]
    count = size // 40 + 1
    rows = [json.dumps({"id": n, "name": f"server-{draw.randrange(99)}", "ok": True}) for n in range(count)]
    period = draw.randbytes(draw.randrange(1, 40))
    whole = [
        bytes([draw.randrange(256)]) * size,
        period * (size // len(period) + 1),
        draw.randbytes(size),
        b" ".join(draw.choices(words, k=size)),
        "\n".join(rows).encode(),
    ]
    return [text[:size] for text in whole]


@pytest.mark.parametrize("seed", range(cases(10)))
def test_it_is_what_was_compressed(seed):
    draw = random.Random(seed)
    for page in [*pages(draw), *texts(draw, draw.choice([1000, 70_000, 1_000_000]))]:
        assert decompressed(CODEC.compress(page, asbytes=True), len(page)) == page


@pytest.mark.parametrize("first", range(0, 700, 100))
def test_blocks_of_every_size(first):
    draw = random.Random(first)
    for size in range(first, first + 100):
        for text in texts(draw, size):
            assert decompressed(CODEC.compress(text, asbytes=True), size) == text


@pytest.mark.parametrize("before", [0, 400])
@pytest.mark.parametrize("literal", [0, 1, 4, 5, 14, 15])
def test_matches_of_every_length_and_distance(literal, before):
    """Both where bytes enough are left for steps, and at the end."""
    unit = bytes(range(1, 101))
    for length in [*range(4, 40), *LENGTHS]:
        for offset in [*range(1, 40), 63, 64, 65, 100]:
            rest = bytes(range(100)) * 4 + bytes(12)
            packed = sequence(unit, 4, 50) + sequence(b"\xf0" * literal, length, offset)
            start = bytearray(unit)
            for _ in range(4):
                start.append(start[-50])
            start += b"\xf0" * literal
            for _ in range(length):
                start.append(start[-offset])
            packed += sequence(rest[len(rest) - 12 - before :], 0, 0)
            start += rest[len(rest) - 12 - before :]
            assert decompressed(packed, len(start)) == bytes(start)
            assert CODEC.decompress(packed, len(start), asbytes=True) == bytes(start)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_blocks_are_refused_or_have_their_size(seed):
    """What is not refused, pyarrow reads as the same; but for one byte of no text, in which it looks at unused bits."""
    draw = random.Random(seed)
    for page in [*pages(draw), *texts(draw, 5000)]:
        packed = CODEC.compress(page, asbytes=True)
        size = len(page)
        assert decompressed(packed, size + 1) is None
        assert decompressed(packed, size - 1) is None
        assert decompressed(packed[: draw.randrange(len(packed))], size) is None
        assert decompressed(packed + b"\0", size) is None
        for _ in range(20):
            other = damaged(packed, draw)
            found = decompressed(other, size)
            assert found is None or not size or CODEC.decompress(other, size, asbytes=True) == found


@pytest.mark.parametrize("seed", range(cases(20)))
def test_sequences_of_every_kind_follow_each_other(seed):
    """Whole, damaged and cut short: what each sequence says, or nothing."""
    draw = random.Random(seed)
    packed, size = block(draw)
    whole = as_specified(packed, size)
    assert whole is not None
    assert CODEC.decompress(packed, size, asbytes=True) == whole
    assert decompressed(packed, size) == whole
    for _ in range(30):
        other = damaged(packed, draw)
        assert decompressed(other, size) == as_specified(other, size)
    for stop in [*draw.sample(range(len(packed)), 20), *range(len(packed) - 40, len(packed))]:
        assert decompressed(packed[:stop], size) is None
    for said in [*range(size - 20, size), *draw.sample(range(size), 20), size + 1, size + 400]:
        assert decompressed(packed, said) is None


@pytest.mark.parametrize("literal", [1, 2, 3, 4])
def test_numbers_that_follow_each_other_end_where_a_sequence_is_another(literal):
    """Each bit of a token and a distance in a row of the same ones ends it."""
    one = sequence(bytes(range(201, 201 + literal)), 8 - literal, 8)
    for bit in range(8 * len(one)):
        other = bytearray(one)
        other[bit >> 3] ^= 1 << (bit & 7)
        packed = (
            sequence(bytes(range(8)), 4, 8) + one * 20 + bytes(other) + one * 60 + sequence(bytes(400), 0, 0)
        )
        for size in range(12 + 8 * 81 + 400 - 20, 12 + 8 * 81 + 400 + 20):
            assert decompressed(packed, size) == as_specified(packed, size)


@pytest.mark.parametrize("tail", range(14))
@pytest.mark.parametrize("match", [4, 9, 30, 273, 274])
@pytest.mark.parametrize("literal", [8, 14, 15])
def test_the_end_of_a_block_is_a_literal(tail, match, literal):
    """As pyarrow has it: no match in the last bytes."""
    for before in (0, 1000):
        packed = sequence(bytes(before), 4, 1) if before else b""
        packed += sequence(b"abcdefghijklmno"[:literal], match, 4) + (
            sequence(bytes(tail), 0, 0) if tail else b""
        )
        size = (before and before + 4) + literal + match + tail
        found = decompressed(packed, size)
        assert (found is None) == (tail < 5 or match + tail < 12)
        assert found == as_specified(packed, size)
        if found is None:
            with pytest.raises(OSError, match="Corrupt Lz4"):
                CODEC.decompress(packed, size)
        else:
            assert CODEC.decompress(packed, size, asbytes=True) == found


@pytest.mark.parametrize("is_at_begin", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_read_beside_the_arrays(seed, is_at_begin):
    """It would end the process."""
    draw = random.Random(seed)
    packed, size = block(draw)
    keep = []
    for stop in draw.sample(range(5, len(packed)), 50):
        data = damaged(packed[:stop], draw) if is_at_begin else packed[:stop]
        inner = guarded(stop + PADDING_BYTES, is_at_begin=is_at_begin)
        outer = guarded(size + PADDING_BYTES, is_at_begin=is_at_begin)
        keep += [inner, outer]
        inner[1][:stop] = np.frombuffer(data, dtype=np.uint8)
        assert decompress_lz4(inner[1], 0, stop, outer[1], size) == (as_specified(data, size) is not None)


def test_lengths_without_end_are_refused():
    for packed in (b"\xf0" + b"\xff" * 100_000, b"\x1fa\x01\0" + b"\xff" * 100_000, b"\xff" * 3):
        for size in (0, 100, 30_000):
            assert decompressed(packed, size) is None


def test_what_is_not_there_is_not_copied():
    rest = sequence(bytes(600), 0, 0)
    for first, match, offset in ((b"a", 4, 2), (b"a", 4, 0), (b"", 4, 1), (b"", 4, 0), (b"abc", 300, 65535)):
        for end in (rest, sequence(bytes(12), 0, 0)):
            packed = sequence(first, match, offset) + end
            made = len(first) + match + (600 if end is rest else 12)
            assert decompressed(packed, made) is None


@pytest.mark.parametrize(
    ("packed", "size", "found"),
    [
        (b"\0", 0, b""),
        (b"", 0, None),
        (b"\0", -1, None),
        (b"\0", 1, None),
        (b"\0\0", 0, None),
        (b"\x10a", 1, b"a"),
        (b"\x10a\0", 1, None),
        (b"\x1f", 1, None),
    ],
)
def test_the_smallest_blocks(packed, size, found):
    assert decompressed(packed, size) == found
