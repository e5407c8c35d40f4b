"""Elements of a channel on the wire: frames of ``data.proto`` around Arrow IPC messages."""

from __future__ import annotations

import pyarrow as pa

from weir.errors import HandshakeError
from weir.records import Barrier, ControlElement, Element, EndOfStream, Idle, RouteMarker, Watermark
from weir.rpc import data_pb2


class FrameEncoder:
    """Elements to frames; sends the schema only when it changes."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def encode(self, element: Element) -> bytes:
        """One serialised ``ChannelFrame`` for one element."""
        if isinstance(element, pa.RecordBatch):
            schema: pa.Buffer | bytes = b""
            if self._schema is None or not self._schema.equals(element.schema):
                self._schema = element.schema
                schema = element.schema.serialize()
            return _batch_frame(schema, element.serialize())
        return _control_frame(element).SerializeToString()


def _batch_frame(arrow_schema: pa.Buffer | bytes, arrow_batch: pa.Buffer) -> bytes:
    """A ``ChannelFrame`` with a ``BatchFrame``, as protobuf writes it.

    By hand, because protobuf copies nested bytes several times: 3 ms instead of 0.1 for 32,768 rows.
    """
    parts: list[pa.Buffer | bytes] = []
    if len(arrow_schema):
        parts += [_SCHEMA_TAG, _varint(len(arrow_schema)), arrow_schema]
    parts += [_ARROW_BATCH_TAG, _varint(len(arrow_batch)), arrow_batch]
    return b"".join((_BATCH_TAG, _varint(sum(map(len, parts))), *parts))


def _varint(number: int) -> bytes:
    """Base 128, least significant group first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes_tag(message: type[data_pb2.ChannelFrame | data_pb2.BatchFrame], field: str) -> bytes:
    """What stands before the length of a field of bytes or of a message."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED)


_LENGTH_DELIMITED = 2
_BATCH_TAG = _bytes_tag(data_pb2.ChannelFrame, "batch")
_SCHEMA_TAG = _bytes_tag(data_pb2.BatchFrame, "arrow_schema")
_ARROW_BATCH_TAG = _bytes_tag(data_pb2.BatchFrame, "arrow_batch")


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
