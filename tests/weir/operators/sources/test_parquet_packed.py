"""Pages that are divided while they are read: the texts of each consumer, whatever a compressor made of them."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.effort import cases
from tests.weir.operators.sources.guarded_memory import guarded
from tests.weir.operators.sources.snappy_tags import as_specified, damaged, tags
from tests.weir.operators.sources.varints import varint
from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.parquet.parquet_division import Targets
from weir.operators.sources.parquet.parquet_groups import direct_batches
from weir.operators.sources.parquet.parquet_late import LateRows
from weir.operators.sources.parquet.parquet_packed import PackedPage, divide_packed
from weir.operators.sources.parquet.parquet_pages import Page
from weir.operators.sources.parquet.parquet_rows import open_parquet
from weir.operators.sources.parquet.parquet_window import HAS_LEVELS, IS_SNAPPY, Windows

BLOCK_BYTES = 1 << 16


def plain(texts: Sequence[bytes]) -> bytes:
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def levels(rows: int) -> bytes:
    """All rows have a value: a run of 1."""
    run = varint(rows << 1) + b"\x01"
    return len(run).to_bytes(4, "little") + run


def literal(data: bytes, draw: random.Random) -> bytes:
    """With its length in as few bytes as it takes, or in more."""
    last = len(data) - 1
    extra = draw.choice([size for size in range(5) if last < (1 << (8 * size) if size else 60)])
    tag = (59 + extra if extra else last) << 2
    return bytes([tag]) + (last.to_bytes(extra, "little") if extra else b"") + data


def copy(offset: int, length: int, draw: random.Random) -> bytes:
    forms = [3]
    if offset < 1 << 16:
        forms.append(2)
    if offset < 1 << 11 and 4 <= length <= 11:
        forms.append(1)
    form = draw.choice(forms)
    if form == 1:
        return bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 0xFF])
    return bytes([length - 1 << 2 | form]) + offset.to_bytes(2 if form == 2 else 4, "little")


def snappy(data: bytes, draw: random.Random) -> bytes:
    """Compressed at random: every repetition may be a copy, and every piece a literal, however long."""
    out = bytearray(varint(len(data)))
    for begin in range(0, len(data), BLOCK_BYTES):
        end = min(len(data), begin + BLOCK_BYTES)
        at = begin
        while at < end:
            offset = draw.choice([1, 2, 3, 7, 8, 31, 32, 33, 40, 64, 200, 40_000])
            length = 0
            while (
                offset <= at - begin and length < 64 and at + length < end
                and data[at + length] == data[at + length - offset]
            ):  # fmt: skip
                length += 1
            if length:
                length = draw.randint(1, length)
                out += copy(offset, length, draw)
            else:
                length = min(end - at, draw.choice([1, 5, 30, 60, 61, 300, 5_000, 70_000]))
                out += literal(data[at : at + length], draw)
            at += length
    return bytes(out)


def guarded_windows(descriptor: int) -> tuple[Windows, list[tuple[np.ndarray, np.ndarray]]]:
    """Windows after whose memory nobody may read or write, and the memory with what is before it, all 0."""
    windows = Windows(descriptor)
    memory = []
    for name in ("window", "packed"):
        kept, used = guarded(len(getattr(windows, name)))
        setattr(windows, name, used)
        whole = np.frombuffer(kept, dtype=np.uint8)[mmap.PAGESIZE : -mmap.PAGESIZE]
        assert len(whole) > len(used)
        memory.append((whole, used))
    return windows, memory


def divided(
    path: Path,
    bodies: Sequence[tuple[bytes, int, int, int]],
    owners: Sequence[int],
    room_bytes: int,
    cuts: Sequence[int] = (),
    goes_on: bool = True,
) -> list[list[bytes]] | None:
    """The texts of two consumers, of pages given as their bytes in the file, those decompressed, rows and form.

    Nothing is written beyond what they have. ``cuts``: rows at which a call ends, and the next one goes on from where
    it stands, or reads the page again.
    """
    pages, at = [], 5
    with path.open("wb") as file:
        file.write(b"x" * at)
        for packed, size_bytes, rows, form in bodies:
            file.write(packed)
            pages.append((at, len(packed), size_bytes, rows, form))
            at += len(packed)
    memory = np.full(2 * (room_bytes + PADDING_BYTES) + PADDING_BYTES, 170, dtype=np.uint8)
    starts = memory.ctypes.data + np.array([0, room_bytes + PADDING_BYTES])
    to, stops = starts.copy(), starts + room_bytes
    offsets = np.zeros(2 * len(owners) + 2, dtype=np.int32)
    nexts = np.array([1, len(owners) + 2])
    descriptor = os.open(path, os.O_RDONLY)
    try:
        windows, keep = guarded_windows(descriptor)
        row = 0
        edges = np.cumsum([0, *(page[3] for page in pages)]).tolist()
        for begin, end in itertools.pairwise([0, *cuts, edges[-1]]):
            if not goes_on:
                windows, keep = guarded_windows(descriptor)
            touched = [
                number for number in range(len(pages)) if edges[number] < end and begin < edges[number + 1]
            ]
            row = divide_packed(
                [PackedPage(windows, pages[number]) for number in touched],
                row,
                Targets(np.array(owners, dtype=np.int32), starts, to, stops, offsets, nexts),
                begin - edges[touched[0]],
                edges[touched[-1] + 1] - end,
            )
            assert all((data[: -len(used)] == 0).all() for data, used in keep)
            if row < 0:
                break
    finally:
        os.close(descriptor)
    assert (memory[-PADDING_BYTES:] == 170).all()
    assert (to <= stops).all()
    if row < 0:
        return None
    assert row == len(owners)
    ends = nexts.tolist()
    texts = []
    for owner, first in enumerate([0, len(owners) + 1]):
        begin = int(starts[owner] - memory.ctypes.data)
        edges = offsets[first : ends[owner]].tolist()
        texts.append([memory[begin + a : begin + b].tobytes() for a, b in itertools.pairwise(edges)])
    return texts


def expected(texts: Sequence[bytes], owners: Sequence[int]) -> list[list[bytes]]:
    return [[text for text, of in zip(texts, owners, strict=True) if of == owner] for owner in range(2)]


def some_texts(draw: random.Random, count: int, longest: int) -> list[bytes]:
    """Some repeat themselves or earlier ones, some do not."""
    texts: list[bytes] = []
    for _ in range(count):
        size = draw.choice([0, 1, 3, draw.randrange(longest + 1)])
        unit = draw.randbytes(draw.choice([1, 2, 3, 31, 33, size + 1]))
        made = (unit * (size // len(unit) + 1))[:size]
        texts.append(draw.choice(texts) if texts and draw.random() < 0.3 else made)
    return texts


@pytest.mark.parametrize("longest", [30, 3_000, 200_000])
@pytest.mark.parametrize("seed", range(cases(6)))
def test_each_consumer_has_its_texts(tmp_path, seed, longest):
    draw = random.Random(seed)
    is_snappy, has_levels = draw.random() < 0.7, draw.random() < 0.5
    texts: list[bytes] = []
    bodies = []
    for _ in range(draw.choice([1, 3])):
        page = some_texts(draw, draw.choice([1, 40]), longest)
        body = (levels(len(page)) if has_levels else b"") + plain(page)
        packed = snappy(body, draw) if is_snappy else body
        form = (IS_SNAPPY if is_snappy else 0) | (HAS_LEVELS if has_levels else 0)
        bodies.append((packed, len(body), len(page), form))
        texts += page
    owners = [draw.randrange(2) for _ in texts]
    room_bytes = sum(map(len, texts))
    assert divided(tmp_path / "pages", bodies, owners, room_bytes) == expected(texts, owners)
    cuts = sorted(draw.sample(range(1, len(texts)), min(len(texts) - 1, 3)))
    for goes_on in (True, False):
        assert divided(tmp_path / "pages", bodies, owners, room_bytes, cuts, goes_on) == expected(
            texts, owners
        )


def written_texts(draw: random.Random) -> Iterator[list[bytes]]:
    """What is written by people and programs: words, JSON, the same again and again, and runs of a byte."""
    words = [draw.randbytes(draw.randrange(1, 6)).hex() for _ in range(100)]
    yield [" ".join(draw.choices(words, k=draw.randrange(60))).encode() for _ in range(1_500)]
    yield [
        json.dumps(
            {"ts": draw.randrange(10**12), "user": f"user-{draw.randrange(1000)}", "agent": "Firefox" * 12}
        ).encode()
        for _ in range(1_500)
    ]
    yield [b"the same " * draw.randrange(20) for _ in range(1_500)]
    yield [bytes([draw.randrange(3)]) * draw.randrange(400) for _ in range(1_500)]


@pytest.mark.parametrize("seed", range(3))
def test_each_consumer_has_what_a_writer_compressed(tmp_path, seed):
    draw = random.Random(seed)
    for texts in written_texts(draw):
        body = plain(texts)
        packed = pa.Codec("snappy").compress(body, asbytes=True)
        owners = [draw.randrange(2) for _ in texts]
        page = packed, len(body), len(texts), IS_SNAPPY
        found = divided(tmp_path / "pages", [page], owners, len(body), [draw.randrange(1, 1_500)])
        assert found == expected(texts, owners)


def one_text(draw: random.Random, size: int) -> bytes:
    """A page of one text, in all so many bytes, of tags as no writer sets them."""
    out = varint(size) + bytes([3 << 2]) + (size - 4).to_bytes(4, "little")
    block = BLOCK_BYTES - 4
    while size > 4:
        block = min(block, size - 4)
        out += tags(draw, block, draw.choice([61, 300, 9_000]))
        size -= block
        block = BLOCK_BYTES
    return out


@pytest.mark.parametrize("seed", range(cases(6)))
def test_tags_of_every_kind_follow_each_other(tmp_path, seed):
    """Whole, damaged and cut short: what each tag says, or nothing. Ends of windows and pieces are at all places."""
    draw = random.Random(seed)
    for size in (
        3_000,
        draw.randrange(50_000, BLOCK_BYTES),
        draw.randrange(BLOCK_BYTES, 2 * BLOCK_BYTES + 200),
    ):
        packed = one_text(draw, size)
        whole = as_specified(packed, size)
        assert whole is not None
        path, room_bytes = tmp_path / "pages", size - 4
        assert divided(path, [(packed, size, 1, IS_SNAPPY)], [0], room_bytes) == [[whole[4:]], []]
        for _ in range(15):
            # What damages the length of the text is another test's.
            other = packed[:8] + damaged(packed[8:], draw)
            said = as_specified(other, size)
            found = divided(path, [(other, size, 1, IS_SNAPPY)], [0], room_bytes)
            made = None if said is None or said[:4] != whole[:4] else [[said[4:]], []]
            # Another offset may reach back to before the window.
            assert found == made or (found is None and size > BLOCK_BYTES)
        for stop in [*draw.sample(range(len(packed)), 10), *range(len(packed) - 8, len(packed))]:
            assert divided(path, [(packed[:stop], size, 1, IS_SNAPPY)], [0], room_bytes) is None
        # The last tag makes more than there may be.
        rest = packed[len(varint(size)) + 5 :] + bytes([59 << 2]) + bytes(60)
        for said in range(size, size + 60, 7):
            other = varint(said) + bytes([3 << 2]) + (said - 4).to_bytes(4, "little") + rest
            assert divided(path, [(other, said, 1, IS_SNAPPY)], [0], room_bytes) is None


@pytest.mark.parametrize("form", [0, IS_SNAPPY])
def test_the_end_of_a_page_is_not_read_again(tmp_path, form):
    """What was read stays, though the file is empty by then."""
    path = tmp_path / "pages"
    texts = [bytes([row]) * 500 for row in range(100)]
    body = plain(texts)
    packed = snappy(body, random.Random(1)) if form else body
    path.write_bytes(b"x" + packed)
    descriptor = os.open(path, os.O_RDONLY)
    page = PackedPage(Windows(descriptor), (1, len(packed), len(body), len(texts), form))
    memory = np.empty(50_000 + PADDING_BYTES, dtype=np.uint8)
    starts = np.array([memory.ctypes.data])
    owners, offsets = np.zeros(100, dtype=np.int32), np.zeros(101, dtype=np.int32)
    targets = Targets(owners, starts, starts.copy(), starts + 50_000, offsets, np.ones(1, dtype=np.int64))
    assert divide_packed([page], 0, targets, 0, 60) == 40
    path.write_bytes(b"")
    assert divide_packed([page], 40, targets, 40) == 100
    assert divide_packed([page], 40, targets, 40) == -1
    os.close(descriptor)
    assert memory[:50_000].tobytes() == b"".join(texts)


def test_what_refers_to_bytes_before_a_window_is_left_to_others(tmp_path):
    draw = random.Random(1)
    unit = draw.randbytes(39_996)
    texts = [unit, unit, unit]
    body = plain(texts)
    path = tmp_path / "pages"
    repeated = b"".join(copy(40_000, 64, draw) for _ in range(1_250))
    as_one = varint(len(body)) + literal(body[:40_000], draw) + repeated
    assert divided(path, [(as_one, len(body), 3, IS_SNAPPY)], [0, 1, 0], len(body)) is None
    by_windows = (snappy(body, draw), len(body), 3, IS_SNAPPY)
    assert divided(path, [by_windows], [0, 1, 0], len(body)) == [[unit, unit], [unit]]


def test_without_room_nothing_is_divided(tmp_path):
    texts = [b"a" * 1_000, b"b" * 100_000]
    body = plain(texts)
    for packed, form in ((snappy(body, random.Random(1)), IS_SNAPPY), (body, 0)):
        page = packed, len(body), 2, form
        assert divided(tmp_path / "pages", [page], [0, 1], 100_000) == [[texts[0]], [texts[1]]]
        assert divided(tmp_path / "pages", [page], [0, 1], 99_999) is None


def damaged_pages(draw: random.Random) -> Iterator[tuple[bytes, int, int, int]]:
    texts = some_texts(draw, 30, 9_000)
    rows = len(texts)
    body = levels(rows) + plain(texts)
    packed = snappy(body, draw)
    for _ in range(30):
        data = bytearray(draw.choice([packed, body]))
        form = (IS_SNAPPY if data == packed else 0) | HAS_LEVELS
        for _ in range(draw.choice([1, 5])):
            place = draw.choice([draw.randrange(20), draw.randrange(len(data))])
            data[place] = draw.choice([0, 255, draw.randrange(256)])
        yield bytes(data), len(body), rows, form
        # What its header says is wrong, or its end is not there.
        yield packed, len(body) + draw.choice([-1, 1, 100_000]), rows, IS_SNAPPY | HAS_LEVELS
        yield packed[: draw.randrange(len(packed))], len(body), rows, IS_SNAPPY | HAS_LEVELS
        yield packed, len(body), rows + draw.choice([1, 1000]), IS_SNAPPY | HAS_LEVELS


@pytest.mark.parametrize("seed", range(cases(6)))
def test_damaged_pages_write_nothing_where_they_must_not(tmp_path, seed):
    draw = random.Random(seed)
    for page in damaged_pages(draw):
        owners = [draw.randrange(2) for _ in range(page[2])]
        divided(tmp_path / "pages", [page], owners, 60_000)
        divided(tmp_path / "pages", [page], owners, 60_000, [draw.randrange(1, 30)], draw.random() < 0.5)


def test_a_file_that_ends_within_a_page_is_left_to_others(tmp_path):
    path = tmp_path / "pages"
    body = plain([b"a" * 200_000])
    assert divided(path, [(body, len(body) + 10, 1, 0)], [0], 1 << 20) is None
    packed = snappy(plain([random.Random(1).randbytes(200_000)]), random.Random(2))
    for size in (0, 1, 3, 100, 70_000, len(packed) - 1):
        # More are said to be there than there are.
        pages, descriptor = (0, len(packed), 200_004, 1, IS_SNAPPY), -1
        path.write_bytes(packed[:size])
        targets = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
        descriptor = os.open(path, os.O_RDONLY)
        memory = np.empty(200_000 + PADDING_BYTES, dtype=np.uint8)
        starts, to, stops = (target + memory.ctypes.data for target in targets)
        nexts = np.ones(1, dtype=np.int64)
        owners, offsets = np.zeros(1, dtype=np.int32), np.zeros(2, dtype=np.int32)
        row = divide_packed(
            [PackedPage(Windows(descriptor), pages)],
            0,
            Targets(owners, starts, to, stops + 200_000, offsets, nexts),
        )
        os.close(descriptor)
        assert row == -1


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("may_be_null", [True, False])
def test_pages_of_a_file_are_divided_while_they_are_read(tmp_path, compression, may_be_null):
    """None of them is read as a whole."""

    def refuse() -> Page:
        raise AssertionError("a page is read as a whole")

    path = str(tmp_path / "a.parquet")
    draw = random.Random(3)
    texts = [draw.randbytes(draw.choice([20, 400])).hex() + "again" * 30 for _ in range(1200)]
    fields = [pa.field("id", pa.int64()), pa.field("payload", pa.string(), nullable=may_be_null)]
    table = pa.table([list(range(1200)), texts], schema=pa.schema(fields))
    pq.write_table(
        table,
        path,
        compression=compression,
        use_dictionary=False,
        data_page_size=200_000,
        write_batch_size=64,
    )
    names = ["id", "payload"]
    batches = direct_batches(path, open_parquet(path, names), 0, names, 0, 1200, 8 << 20, ["id"])
    rows = next(batches)
    assert isinstance(rows, LateRows)
    assert len(rows.late.pages) > 1
    assert all(page.packed is not None for page in rows.late.pages)
    rows.late.pages = [replace(page, read=refuse) for page in rows.late.pages]

    order = np.array(sorted(range(1200), key=lambda row: row % 2), dtype=np.uint32)
    parts = rows.late.divided(order, [0, 600, 1200])
    assert parts is not None
    assert [part.to_pylist() for part in parts] == [texts[0::2], texts[1::2]]
