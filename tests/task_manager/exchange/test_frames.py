"""Frames of a channel: elements come back as they were, and damage is found."""

from __future__ import annotations

import socket
import threading

import pyarrow as pa
import pytest

from task_manager.exchange.frames import SIZES, Frame, FrameDecoder, FrameEncoder, read_head
from task_manager.exchange.sockets import FrameReader, send_all
from weir.errors import HandshakeError
from weir.records import Barrier, EndOfStream, Idle, RouteMarker, Watermark
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
    elements = [batch(3), Watermark(-5), batch(2), other, Idle(), RouteMarker(9), Barrier(3), *sizes, wide]
    elements += [Watermark(time_ms) for time_ms in range(20_000)] + [batch(5), EndOfStream()]
    frames = through(ends, [encoder.encode(element) for element in elements])
    assert {frame.channel_number for frame, _ in frames} == {1}
    assert [decoder.decode(*frame) for frame in frames] == elements


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
