"""Memory that both ends of a link share: parts never overlap, live as long as they are referred to, and come back."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.frames import FrameDecoder, FrameEncoder, read_head
from task_manager.exchange.shared_memory import Places, ReceivedMemory, SentMemory, make_memory
from tests.effort import cases
from weir.errors import HandshakeError
from weir.keys.division import split_by_owner
from weir.operators.sources.parquet.parquet_late import LateTexts
from weir.operators.sources.parquet.parquet_pages import LaterPage, Page
from weir.rows.records import Block

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no files that live in memory only")


def test_parts_never_overlap_and_all_come_back():
    chance = random.Random(7)
    places = Places(1 << 20)
    taken: dict[int, int] = {}
    for _ in range(3000):
        if taken and chance.random() < 0.45:
            at = chance.choice(list(taken))
            places.free(at)
            del taken[at]
            continue
        size_bytes = chance.choice([0, 1, 63, 64, 65, 5000, 300_000])
        at = places.take(size_bytes)
        if at is None:
            assert size_bytes > 64
            continue
        assert at % 64 == 0
        assert at + size_bytes <= 1 << 20
        assert all(at + size_bytes <= other or other + size <= at for other, size in taken.items())
        assert at not in taken
        taken[at] = size_bytes
    for at in taken:
        places.free(at)
    assert places.taken_bytes == 0
    assert (places.take((1 << 20) + 1), places.take(1 << 20), places.take(1)) == (None, 0, None)


def test_what_was_not_taken_is_not_given_back():
    places = Places(1000)
    places.take(10)
    for at in (1, 64, -1):
        with pytest.raises(HandshakeError, match="not taken"):
            places.free(at)


@pytest.fixture
def memory():
    descriptor = make_memory(4 << 20)
    yield SentMemory(descriptor), ReceivedMemory(descriptor)
    os.close(descriptor)


def texts(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(rows)), "s": [f"text {row}" * 10 for row in range(rows)]})


def test_large_batches_lie_in_it_until_nothing_refers_to_them(memory):
    sent, received = memory
    encoder, decoder = FrameEncoder(1), FrameDecoder()
    whole = texts(10_000)
    frames = [encoder.encode(batch, batch.nbytes, sent) for batch in (whole, whole.slice(1), whole)]
    assert [len(frame) for frame in frames] == [1, 1, 1]
    assert 3 * whole.nbytes > sent.taken_bytes - 8192 > 2 * whole.nbytes
    batches = []
    for (data,) in frames:
        frame = read_head(data[8:])
        batches.append(
            decoder.decode(frame, received.part(frame.batch.shared.at, frame.batch.shared.size_bytes))
        )
    assert batches == [whole, whole.slice(1), whole]
    begin = received._bytes.ctypes.data
    assert begin < batches[0].column("s").buffers()[2].address < begin + (4 << 20)
    kept = batches[1].column("s").slice(5, 7)
    del batches
    gc.collect()
    freed = received.take_freed()
    assert len(freed) == 2
    sent.free(freed)
    assert kept.to_pylist() == whole.column("s").slice(6, 7).to_pylist()
    del kept
    sent.free(received.take_freed())
    assert sent.taken_bytes == 0


def test_without_room_a_batch_has_a_body(memory):
    sent, _ = memory
    encoder, batch = FrameEncoder(1), texts(10_000)
    frames = [encoder.encode(batch, batch.nbytes, sent) for _ in range(8)]
    kinds = [len(frame) == 1 for frame in frames]
    assert kinds == sorted(kinds, reverse=True)
    assert 2 <= sum(kinds) < 8
    assert sent.taken_bytes <= 4 << 20


def late_texts(draw: random.Random, texts: list[str], bytes_of_page: int) -> LateTexts:
    """Texts in plain pages."""
    pages, rows, data = [], 0, b""

    def end_page() -> None:
        nonlocal rows, data
        page = Page(rows, None, None, np.frombuffer(bytearray(data), dtype=np.uint8), 0)
        pages.append(LaterPage(0, rows, len(data), lambda: page))
        rows, data = 0, b""

    for text in texts:
        data += len(text.encode()).to_bytes(4, "little") + text.encode()
        rows += 1
        if len(data) > bytes_of_page:
            end_page()
    if rows:
        end_page()
    size_bytes = sum(len(text.encode()) + 4 for text in texts)
    return LateTexts(pa.field("s", pa.string()), draw.randrange(3), len(texts), size_bytes, pages, list)


def late_columns(draw: random.Random, rows: int) -> pa.RecordBatch:
    names = [None if draw.random() < 0.1 else "x" * draw.randrange(40) for _ in range(rows)]
    small = pa.array([draw.randrange(100) for _ in range(rows)], draw.choice([pa.int32(), pa.int8()]))
    return pa.record_batch({"name": pa.array(names), "small": small})


def received_rows(frame, decoder, received) -> pa.RecordBatch:
    (data,) = frame
    head = read_head(data[8:])
    part = head.batch.shared
    return decoder.decode(head, received.part(part.at, part.size_bytes))


@pytest.mark.parametrize("seed", range(cases(4)))
def test_texts_written_where_their_message_will_lie_are_those_of_the_rows(memory, seed):
    draw = random.Random(seed)
    sent, received = memory
    begin = sent._bytes.ctypes.data
    encoders, decoders = [FrameEncoder(1), FrameEncoder(2)], [FrameDecoder(), FrameDecoder()]
    in_place, place = 0, draw.randrange(3)
    for _ in range(3):
        count = draw.randrange(1500, 1700)
        rows = late_columns(draw, count)
        texts = [draw.choice("aüb") * draw.randrange(2000) for _ in range(count)]
        late = late_texts(draw, texts, draw.choice([20_000, 300_000]))
        late.place = place
        hashes = np.array([draw.getrandbits(64) for _ in range(count)], dtype=np.uint64)
        parts = split_by_owner(
            *(Block(rows, late=late), hashes, np.array([0, 1], dtype=np.int32), range(2)),
            lambda index, part, at, size_bytes: encoders[index].room_for_texts(part, at, size_bytes, sent),
        )
        expected = late.put_into(rows, pa.array(texts))
        found = []
        for index, part, *_ in parts:
            address = part.column("s").buffers()[2].address
            assert part.validate(full=True) is None
            batch = received_rows(encoders[index].encode(part, part.nbytes, sent), decoders[index], received)
            in_place += (
                batch.column("s").buffers()[2].address - received._bytes.ctypes.data == address - begin
            )
            wanted = (hashes >> np.uint64(63)) == index
            assert batch == expected.filter(pa.array(wanted))
            found.append(batch)
        del part, parts, batch, found
        gc.collect()
        sent.free(received.take_freed())
        assert sent.taken_bytes == 0
    # The first message of a schema tells how long its head is.
    assert in_place == 4


def room_with(sent: SentMemory, before: bytes, texts: bytes, after_bytes: int) -> pa.Buffer:
    """Texts in a room of the memory."""
    room = sent.reserve(len(before), len(texts) + 100, after_bytes)
    at = room.address - sent._bytes.ctypes.data
    sent._bytes[at : at + len(texts)] = np.frombuffer(texts, dtype=np.uint8)
    return room.taken(len(texts))


def test_a_message_is_put_around_texts_that_are_there(memory):
    sent, received = memory
    texts = room_with(sent, b"head", b"texts" * 100, 64)
    place = sent.put([b"head", texts, b"end"])
    assert received.part(*place).to_pybytes() == b"head" + b"texts" * 100 + b"end"
    assert sent.taken_bytes == 512
    assert texts.address == sent._bytes.ctypes.data + place[0] + 4
    del texts
    gc.collect()
    # The receiver gives it back, not who wrote the texts.
    assert sent.taken_bytes == 512
    sent.free([place[0]])
    assert sent.taken_bytes == 0


@pytest.mark.parametrize("what", ["more before", "less before", "a part", "too much after"])
def test_texts_of_another_message_than_was_expected_are_copied(memory, what):
    sent, received = memory
    texts = room_with(sent, b"head", b"texts" * 100, 64)
    before = {"more before": b"longer head", "less before": b"h"}.get(what, b"head")
    after = b"." * 500 if what == "too much after" else b"end"
    piece = texts.slice(0, 495) if what == "a part" else texts
    place = sent.put([before, piece, after])
    assert received.part(*place).to_pybytes() == before + piece.to_pybytes() + after
    sent.free([place[0]])
    assert texts.to_pybytes() == b"texts" * 100
    assert sent.taken_bytes > 0
    del texts, piece
    gc.collect()
    assert sent.taken_bytes == 0


def test_rooms_that_are_not_used_are_free_again(memory):
    sent, _ = memory
    rooms = []
    while (room := sent.reserve(100, 1 << 20, 100)) is not None:
        rooms.append(room)
    assert len(rooms) == 3
    del room, rooms
    gc.collect()
    assert sent.taken_bytes == 0
    assert sent.reserve(100, 3 << 20, 100) is not None


@pytest.mark.parametrize("place", [(0, (4 << 20) + 1), (4 << 20, 1), (1 << 40, 8)])
def test_a_part_is_within_the_memory(memory, place):
    with pytest.raises(HandshakeError, match="beyond the memory"):
        memory[1].part(*place)


def test_texts_that_end_before_they_begin_are_refused(memory):
    sent, received = memory
    batch = texts(3)
    body = bytearray(batch.serialize())
    place = body.find((0).to_bytes(4, "little") + (60).to_bytes(4, "little"))
    assert place > 0
    body[place + 4 : place + 8] = (1 << 20).to_bytes(4, "little")
    decoder = FrameDecoder()
    with pytest.raises(HandshakeError, match="damaged"):
        decoder.decode_batch(
            received.part(*sent.put([bytes(body)])), batch.schema.serialize().to_pybytes(), is_shared=True
        )


def test_a_file_that_could_shrink_is_not_mapped():
    descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, 4096)
        with pytest.raises(HandshakeError, match="not sealed"):
            ReceivedMemory(descriptor)
    finally:
        os.close(descriptor)


_SENDER = """
import socket, sys, time
from task_manager.exchange.shared_memory import SentMemory, make_memory
ours = socket.socket(fileno=int(sys.argv[1]))
descriptor = make_memory()
at, size = SentMemory(descriptor).put([b"rows" * 100_000])
socket.send_fds(ours, [f"{at} {size}".encode()], [descriptor])
time.sleep(600)
"""


def test_a_killed_sender_takes_no_row_with_it_and_leaves_nothing():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", _SENDER, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        try:
            data, descriptors, _, _ = socket.recv_fds(ours, 100, 1)
            received = ReceivedMemory(descriptors[0])
            os.close(descriptors[0])
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
    part = received.part(*map(int, data.split()))
    assert _mapped() == 1
    del received
    assert part.to_pybytes() == b"rows" * 100_000
    del part
    gc.collect()
    assert _mapped() == 0


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:weir-rows")
