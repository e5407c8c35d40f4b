"""Frames of a channel: what is encoded is what protobuf would write, and damage is found."""

from __future__ import annotations

import pyarrow as pa
import pytest

from task_manager.exchange.frames import FrameDecoder, FrameEncoder
from weir.errors import HandshakeError
from weir.records import EndOfStream, Idle, RouteMarker, Watermark
from weir.rpc import data_pb2


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"n": pa.array(range(rows), type=pa.int64()), "s": [f"x{i}" for i in range(rows)]}
    )


@pytest.mark.parametrize("rows", [0, 1, 7, 100, 3000, 300_000])
def test_batch_frames_are_what_protobuf_writes(rows):
    encoder = FrameEncoder(300)
    for schema in (batch(rows).schema.serialize().to_pybytes(), b""):
        body = batch(rows).serialize().to_pybytes()
        frame = data_pb2.ChannelFrame(
            batch=data_pb2.BatchFrame(arrow_schema=schema, arrow_batch=body), channel_number=300
        )
        assert encoder.encode(batch(rows)) == data_pb2.LinkMessage(frames=[frame]).SerializeToString()


def test_elements_come_back_as_they_were():
    encoder, decoder = FrameEncoder(1), FrameDecoder()
    other = pa.record_batch({"k": pa.array([b"1"])})
    elements = [batch(3), Watermark(-5), batch(2), other, Idle(), RouteMarker(9), batch(0), EndOfStream()]
    message = data_pb2.LinkMessage.FromString(b"".join(map(encoder.encode, elements)))
    assert {frame.channel_number for frame in message.frames} == {1}
    assert [decoder.decode(frame) for frame in message.frames] == elements


def test_damaged_batches_are_refused():
    (frame,) = data_pb2.LinkMessage.FromString(FrameEncoder(1).encode(batch(100))).frames
    body = bytearray(frame.batch.arrow_batch)
    with pytest.raises(HandshakeError, match="before its schema"):
        FrameDecoder().decode(data_pb2.ChannelFrame(batch=data_pb2.BatchFrame(arrow_batch=bytes(body))))
    with pytest.raises(HandshakeError, match="damaged"):
        FrameDecoder().decode(
            data_pb2.ChannelFrame(
                batch=data_pb2.BatchFrame(
                    arrow_schema=frame.batch.arrow_schema, arrow_batch=bytes(body[: len(body) // 2])
                )
            )
        )
    offsets_at = bytes(body).index((4).to_bytes(4, "little") + (6).to_bytes(4, "little"))
    body[offsets_at : offsets_at + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(HandshakeError, match="damaged"):
        FrameDecoder().decode(
            data_pb2.ChannelFrame(
                batch=data_pb2.BatchFrame(arrow_schema=frame.batch.arrow_schema, arrow_batch=bytes(body))
            )
        )
