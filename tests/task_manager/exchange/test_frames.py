"""Frames of a channel: elements come back as they were, and damage is found."""

from __future__ import annotations

import socket
import threading

import pyarrow as pa
import pytest

from task_manager.exchange.frames import SIZES, Frame, FrameDecoder, FrameEncoder, read_head
from task_manager.exchange.sockets import FrameReader, send_all
from weir.errors import HandshakeError
from weir.rows.records import Barrier, EndOfStream, Idle, RouteMarker, Watermark
from weir.rpc import data_pb2

FRAME_BYTES_MAX = 64 << 20


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(range(rows), type=pa.int64()), "s": [f"x{i}" for i in range(rows)]}
    )


@pytest.fixture
def ends():
    """Both ends of a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def through(ends, frames: list[Frame]) -> list[tuple[data_pb2.ChannelFrame, pa.Buffer | None]]:
    """What arrives of frames that are sent one after the other."""

    def send() -> None:
        send_all(ends[0], [piece for frame in frames for piece in frame])
        ends[0].shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    reader = FrameReader(ends[1], FRAME_BYTES_MAX)
    received = []
    while (frame := reader.read()) is not None:
        received.append((read_head(frame[0]), frame[1]))
    sender.join()
    return received


def test_elements_come_back_as_they_were(ends):
    encoder, decoder = FrameEncoder(1), FrameDecoder()
    other = pa.record_batch({"k": pa.array([b"1"])})
    wide = pa.record_batch({f"a column of many, number {i}": pa.array([i]) for i in range(2000)})
    sizes = [batch(rows) for rows in (1, 7, 100, 3000, 3001, 300_000, 0, 2999)]
    elements = [
        batch(3),
        Watermark(-5),
        Watermark(-5, (1, 300)),
        batch(2),
        other,
        Idle(),
        RouteMarker(9),
        Barrier(3),
        *sizes,
        wide,
    ]
    elements += [Watermark(time_ms) for time_ms in range(20_000)] + [batch(5), EndOfStream()]
    frames = through(ends, [encoder.encode(element) for element in elements])
    assert {frame.channel_number for frame, _ in frames} == {1}
    assert [decoder.decode(*frame) for frame in frames] == elements


def large_batch(rows: int) -> pa.RecordBatch:
    """Columns of all forms, nulls among them."""
    numbers = list(range(rows))
    some = [None if number % 3 else number for number in numbers]
    return pa.record_batch(
        {
            "n": pa.array(numbers, type=pa.int64()),
            "text": pa.array([None if n is None else f"text {n}" * 9 for n in some]),
            "flag": pa.array([n % 2 == 0 for n in numbers]),
            "maybe": pa.array([None if n is None else n % 2 == 0 for n in some]),
            "list": pa.array([None if n is None else [n, None] for n in some], type=pa.list_(pa.int32())),
            "struct": pa.array([None if n is None else {"a": n, "b": "x"} for n in some]),
            "large": pa.array(["ä" * 5] * rows, type=pa.large_string()),
            "fixed": pa.array([b"ab"] * rows, type=pa.binary(2)),
            "nothing": pa.nulls(rows),
        }
    )


def test_large_batches_are_sent_from_where_they_are(ends):
    whole = large_batch(20_000)
    parts = [whole, whole.slice(0, 9_000), whole.slice(5_001, 9_999), batch(100_000), whole.slice(3)]
    frames = _encoded(parts)
    assert all(len(frame) > 2 for frame in frames)
    assert [b"".join(frame[1:]) for frame in frames] == [part.serialize().to_pybytes() for part in parts]
    decoder = FrameDecoder()
    assert [decoder.decode(*frame) for frame in through(ends, frames)] == parts


def _encoded(batches: list[pa.RecordBatch]) -> list[Frame]:
    encoder = FrameEncoder(1)
    return [encoder.encode(item, item.nbytes) for item in batches]


def test_a_small_part_does_not_keep_a_large_batch(ends):
    whole = large_batch(100_000)
    part = whole.slice(70_000, 9_000)
    (frame,) = _encoded([part])
    assert part.nbytes > 512 << 10
    assert len(frame) == 2
    assert FrameDecoder().decode(*through(ends, [frame])[0]) == part


def test_a_schema_is_sent_once(ends):
    encoder = FrameEncoder(1)
    frames = through(ends, [encoder.encode(batch(rows)) for rows in (1, 2, 3)])
    assert [bool(frame.batch.arrow_schema) for frame, _ in frames] == [True, False, False]


def test_a_frame_that_claims_too_much_is_not_read(ends):
    ends[0].sendall(SIZES.pack(FRAME_BYTES_MAX, 1))
    with pytest.raises(HandshakeError, match="larger than a message may be"):
        FrameReader(ends[1], FRAME_BYTES_MAX).read()


@pytest.mark.parametrize("kept_bytes", [0, 1, 9, 100, 200_000])
def test_a_frame_that_is_cut_off_is_the_end(ends, kept_bytes):
    ends[0].sendall(b"".join(FrameEncoder(1).encode(batch(20_000)))[:kept_bytes])
    ends[0].shutdown(socket.SHUT_WR)
    assert FrameReader(ends[1], FRAME_BYTES_MAX).read() is None


def test_bytes_that_are_no_head_are_refused():
    with pytest.raises(HandshakeError, match="damaged"):
        read_head(b"\xff\xff\xff")


def test_damaged_batches_are_refused(ends):
    ((frame, received),) = through(ends, [FrameEncoder(1).encode(batch(100))])
    body = bytearray(received)
    bare = data_pb2.ChannelFrame(batch=data_pb2.BatchFrame())
    with pytest.raises(HandshakeError, match="before its schema"):
        FrameDecoder().decode(bare, received)
    with pytest.raises(HandshakeError, match="no body"):
        FrameDecoder().decode(frame, None)
    with pytest.raises(HandshakeError, match="damaged"):
        FrameDecoder().decode(frame, pa.py_buffer(bytes(body[: len(body) // 2])))
    offsets_at = bytes(body).index((4).to_bytes(4, "little") + (6).to_bytes(4, "little"))
    body[offsets_at : offsets_at + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(HandshakeError, match="damaged"):
        FrameDecoder().decode(frame, pa.py_buffer(bytes(body)))
