"""Elements of a channel on the wire: frames of ``data.proto`` around Arrow IPC messages.

A frame is encoded as an entry of a ``LinkMessage``, so that several frames, one after the other, are a message.
"""

from __future__ import annotations

import pyarrow as pa

from weir.errors import HandshakeError
from weir.records import Barrier, ControlElement, Element, EndOfStream, Idle, RouteMarker, Watermark
from weir.rpc import data_pb2
from weir.rpc.wire import JobIdentity, channel_to_proto, handshake_to_proto
from weir.types import ChannelId


class FrameEncoder:
    """Elements of one channel to frames; sends the schema only when it changes."""

    def __init__(self, channel_number: int) -> None:
        """``channel_number``: of the channel in its link."""
        self._number = channel_number
        self._numbered = _NUMBER_TAG + _varint(channel_number)
        self._schema: pa.Schema | None = None

    def encode(self, element: Element) -> bytes:
        """One serialised frame for one element."""
        if isinstance(element, pa.RecordBatch):
            schema: pa.Buffer | bytes = b""
            if self._schema is None or not self._schema.equals(element.schema):
                self._schema = element.schema
                schema = element.schema.serialize()
            return _batch_frame(self._numbered, schema, element.serialize())
        return _entry(_control_frame(element), self._number)


def handshake_frame(identity: JobIdentity, channel: ChannelId, channel_number: int) -> bytes:
    """The first frame of a channel: what it is, and its number in the link."""
    handshake = data_pb2.ChannelHandshake(
        handshake=handshake_to_proto(identity), channel=channel_to_proto(channel)
    )
    return _entry(data_pb2.ChannelFrame(handshake=handshake), channel_number)


def closed_frame(channel_number: int) -> bytes:
    """The last frame of a channel whose stream did not end."""
    return _entry(data_pb2.ChannelFrame(closed=data_pb2.ClosedFrame()), channel_number)


def _entry(frame: data_pb2.ChannelFrame, channel_number: int) -> bytes:
    frame.channel_number = channel_number
    return data_pb2.LinkMessage(frames=[frame]).SerializeToString()


def _batch_frame(numbered: bytes, arrow_schema: pa.Buffer | bytes, arrow_batch: pa.Buffer) -> bytes:
    """A ``LinkMessage`` with one ``ChannelFrame`` with a ``BatchFrame``, as protobuf writes it.

    By hand, because protobuf copies nested bytes several times: 3 ms instead of 0.1 for 32,768 rows.
    """
    parts: list[pa.Buffer | bytes] = []
    if len(arrow_schema):
        parts += [_SCHEMA_TAG, _varint(len(arrow_schema)), arrow_schema]
    parts += [_ARROW_BATCH_TAG, _varint(len(arrow_batch)), arrow_batch]
    size_bytes = sum(map(len, parts))
    batch_head = _BATCH_TAG + _varint(size_bytes)
    frame_bytes = len(batch_head) + size_bytes + len(numbered)
    return b"".join((_FRAME_TAG, _varint(frame_bytes), batch_head, *parts, numbered))


def _varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(
    message: type[data_pb2.LinkMessage | data_pb2.ChannelFrame | data_pb2.BatchFrame],
    field: str,
    wire_type: int,
) -> bytes:
    """What stands before the value of a field, or before its length."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | wire_type)


_VARINT, _LENGTH_DELIMITED = 0, 2
_FRAME_TAG = _tag(data_pb2.LinkMessage, "frames", _LENGTH_DELIMITED)
_NUMBER_TAG = _tag(data_pb2.ChannelFrame, "channel_number", _VARINT)
_BATCH_TAG = _tag(data_pb2.ChannelFrame, "batch", _LENGTH_DELIMITED)
_SCHEMA_TAG = _tag(data_pb2.BatchFrame, "arrow_schema", _LENGTH_DELIMITED)
_ARROW_BATCH_TAG = _tag(data_pb2.BatchFrame, "arrow_batch", _LENGTH_DELIMITED)


def _control_frame(element: ControlElement) -> data_pb2.ChannelFrame:
    if isinstance(element, Watermark):
        return data_pb2.ChannelFrame(watermark=data_pb2.WatermarkFrame(time_ms=element.time_ms))
    if isinstance(element, RouteMarker):
        marker = data_pb2.RouteMarkerFrame(routing_version=element.routing_version)
        return data_pb2.ChannelFrame(route_marker=marker)
    if isinstance(element, Barrier):
        return data_pb2.ChannelFrame(barrier=data_pb2.BarrierFrame(checkpoint_id=element.checkpoint_id))
    if isinstance(element, Idle):
        return data_pb2.ChannelFrame(idle=data_pb2.IdleFrame())
    return data_pb2.ChannelFrame(end_of_stream=data_pb2.EndOfStreamFrame())


class FrameDecoder:
    """Frames to elements; batches are validated, because they come from a socket."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def decode(self, frame: data_pb2.ChannelFrame) -> Element:
        """One element from one frame.

        Raises:
            HandshakeError: the frame is not valid Arrow, or comes before its schema.
        """
        kind = frame.WhichOneof("element")
        if kind == "batch":
            return self._decode_batch(frame.batch)
        if kind == "watermark":
            return Watermark(frame.watermark.time_ms)
        if kind == "idle":
            return Idle()
        if kind == "route_marker":
            return RouteMarker(frame.route_marker.routing_version)
        if kind == "barrier":
            return Barrier(frame.barrier.checkpoint_id)
        if kind == "end_of_stream":
            return EndOfStream()
        raise HandshakeError(f"unexpected frame {kind} on a data channel")

    def _decode_batch(self, frame: data_pb2.BatchFrame) -> pa.RecordBatch:
        try:
            if frame.arrow_schema:
                self._schema = pa.ipc.read_schema(pa.py_buffer(frame.arrow_schema))
            if self._schema is None:
                raise HandshakeError("a record batch came before its schema")
            batch = pa.ipc.read_record_batch(pa.py_buffer(frame.arrow_batch), self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise HandshakeError(f"a record batch on a data channel is damaged: {error}") from error
        return batch
