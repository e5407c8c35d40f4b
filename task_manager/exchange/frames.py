"""Elements of a channel on the wire: frames of a head (``data.proto``) and a body, which is an Arrow IPC message.

Frames follow each other without anything between them. A batch is not inside the protobuf message, because protobuf
copies nested bytes several times.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
from google.protobuf.message import DecodeError

from task_manager.exchange.shared_memory import SentMemory, SharedRoom
from weir.errors import HandshakeError
from weir.rows.records import (
    Barrier,
    ControlElement,
    Element,
    EndOfStream,
    Idle,
    RouteMarker,
    Watermark,
    batch_bytes,
)
from weir.rpc import data_pb2
from weir.rpc.wire import JobIdentity, channel_to_proto, handshake_to_proto
from weir.types import ChannelId

#: Bytes of the head and of the body, before both.
SIZES = struct.Struct("<II")
#: A body of so many bytes is sent from where it is; smaller ones are copied next to their head.
_APART_BYTES = 64 << 10
#: A batch of so many bytes is sent from where its columns are: to copy it costs as much as the way through the kernel.
#: Not a small part of a larger batch, which would live as long.
_PIECES_BYTES, _PIECES_SHARE = 512 << 10, 4

#: A column has no more bytes in a message than in memory, but for what each of its buffers is filled up with.
_COLUMN_BYTES_MAX = 64

#: Of an offset of a text, in a message.
_OFFSET_BYTES = 4

#: A frame as it is sent: pieces, one after the other.
Frame = tuple[bytes | pa.Buffer, ...]


class _Written:
    """What is written to a file that keeps the pieces as they come."""

    #: What pyarrow asks of a file.
    closed = False

    def __init__(self) -> None:
        self.pieces: list[bytes | pa.Buffer] = []

    def write(self, piece: bytes | pa.Buffer) -> int:
        """Called by pyarrow, with columns where they are."""
        self.pieces.append(piece)
        return len(piece)

    def flush(self) -> None:
        """Called by pyarrow."""

    def close(self) -> None:
        """Called by pyarrow."""


class _IpcPieces:
    """Arrow IPC messages as the pieces that they consist of; whole columns are not copied.

    ``RecordBatch.serialize`` makes the same bytes in memory of their own. A message begins with four bytes of its form,
    four with the length of its head, and that head; the buffers of its columns follow, each filled up to eight bytes.
    """

    def __init__(self, schema: pa.Schema) -> None:
        # An object of its own, because Python does not see that the stream refers to it.
        self._file = _Written()
        #: Before the buffers of a message; 0: not known.
        self.head_bytes = 0
        #: Messages of the first columns only, and how many these are.
        self._before: _IpcPieces | None = None
        self._before_place = 0
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), schema)
        # The first batch comes after the schema, which has its place in the head of a frame.
        self.of(pa.RecordBatch.from_pylist([], schema=schema))

    def of(self, batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
        """The message of a batch."""
        self._stream.write_batch(batch)
        pieces, self._file.pieces = self._file.pieces, []
        if batch.num_rows and len(pieces) > 1:
            # The same for all batches of a schema.
            self.head_bytes = 8 + int.from_bytes(pieces[1], "little")
        return pieces

    def bytes_before_texts(self, rows: pa.RecordBatch, place: int) -> int | None:
        """Bytes of a message before the texts of a column that the rows lack yet; None: that is not known.

        What it says is not relied on: where it is wrong, texts are copied once more.
        """
        if not self.head_bytes:
            return None
        before_bytes = 0
        if place:
            before = rows.select(range(place))
            if self._before is None or self._before_place != place:
                self._before, self._before_place = _IpcPieces(before.schema), place
                self._before.of(before)
            before_bytes = pa.ipc.get_record_batch_size(before) - self._before.head_bytes
        return self.head_bytes + before_bytes + _filled_up(_OFFSET_BYTES * (rows.num_rows + 1))


def _filled_up(size_bytes: int) -> int:
    return -(-size_bytes // 8) * 8


class FrameEncoder:
    """Elements of one channel to frames; sends the schema only when it changes."""

    def __init__(self, channel_number: int) -> None:
        """``channel_number``: of the channel in its link."""
        self._number = channel_number
        self._schema: pa.Schema | None = None
        #: Of a batch whose schema the other side knows.
        self._batch_head = self._head(b"")
        self._pieces: _IpcPieces | None = None

    def encode(self, element: Element, size_bytes: int = 0, shared: SentMemory | None = None) -> Frame:
        """The frame of one element; it may share memory with the batch.

        Args:
            element: what to send.
            size_bytes: ``batch_bytes`` of a batch, or nearly; 0: it is small.
            shared: a large batch goes there if there is room; None: the other end cannot read any memory of this one.
        """
        if not isinstance(element, pa.RecordBatch):
            return control_frame(_control_head(element), self._number)
        head, schema, arrow_schema = self._batch_head, element.schema, b""
        if schema is not self._schema and (self._schema is None or not self._schema.equals(schema)):
            arrow_schema = schema.serialize().to_pybytes()
            head = self._head(arrow_schema)
            self._pieces = None
        self._schema = schema
        if size_bytes >= _PIECES_BYTES:
            self._pieces = self._pieces or _IpcPieces(schema)
            pieces = self._pieces.of(element)
            place = None if shared is None else shared.put(pieces)
            if place is not None:
                head = self._head(arrow_schema, data_pb2.SharedPart(at=place[0], size_bytes=place[1]))
                return (SIZES.pack(len(head), 0) + head,)
            if element.get_total_buffer_size() <= _PIECES_SHARE * size_bytes:
                return (SIZES.pack(len(head), sum(map(len, pieces))) + head, *pieces)
        body = element.serialize()
        sizes = SIZES.pack(len(head), body.size)
        return (b"".join((sizes, head, body)),) if body.size < _APART_BYTES else (sizes + head, body)

    def room_for_texts(
        self, rows: pa.RecordBatch, place: int, size_bytes: int, shared: SentMemory
    ) -> SharedRoom | None:
        """Room for texts where the message of their batch will have them; None: there is none, or they are few.

        Args:
            rows: without their column.
            place: of that column.
            size_bytes: room for them.
            shared: where the message will lie.
        """
        if size_bytes < _PIECES_BYTES or self._pieces is None:
            return None
        before_bytes = self._pieces.bytes_before_texts(rows, place)
        if before_bytes is None:
            return None
        after_bytes = batch_bytes(rows) + rows.num_columns * _COLUMN_BYTES_MAX
        return shared.reserve(before_bytes, size_bytes, after_bytes)

    def _head(self, arrow_schema: bytes, shared: data_pb2.SharedPart | None = None) -> bytes:
        batch = data_pb2.BatchFrame(arrow_schema=arrow_schema, shared=shared)
        return data_pb2.ChannelFrame(batch=batch, channel_number=self._number).SerializeToString()


def handshake_frame(identity: JobIdentity, channel: ChannelId, channel_number: int) -> Frame:
    """The first frame of a channel: what it is, and its number in the link."""
    handshake = data_pb2.ChannelHandshake(
        handshake=handshake_to_proto(identity), channel=channel_to_proto(channel)
    )
    return control_frame(data_pb2.ChannelFrame(handshake=handshake), channel_number)


def closed_frame(channel_number: int) -> Frame:
    """The last frame of a channel whose stream did not end."""
    return control_frame(data_pb2.ChannelFrame(closed=data_pb2.ClosedFrame()), channel_number)


def reply_frame(replies: Sequence[data_pb2.ChannelReply], freed: Sequence[int] = ()) -> bytes:
    """News of the receiving side: of some channels, and of parts of the shared memory that it reads no more."""
    head = data_pb2.LinkReply(channels=replies, freed=freed).SerializeToString()
    return SIZES.pack(len(head), 0) + head


def control_frame(frame: data_pb2.ChannelFrame, channel_number: int) -> Frame:
    """A frame without a body."""
    frame.channel_number = channel_number
    head = frame.SerializeToString()
    return (SIZES.pack(len(head), 0) + head,)


def _control_head(element: ControlElement) -> data_pb2.ChannelFrame:
    if isinstance(element, Watermark):
        return data_pb2.ChannelFrame(
            watermark=data_pb2.WatermarkFrame(time_ms=element.time_ms, without=element.without)
        )
    if isinstance(element, RouteMarker):
        marker = data_pb2.RouteMarkerFrame(routing_version=element.routing_version)
        return data_pb2.ChannelFrame(route_marker=marker)
    if isinstance(element, Barrier):
        return data_pb2.ChannelFrame(barrier=data_pb2.BarrierFrame(checkpoint_id=element.checkpoint_id))
    if isinstance(element, Idle):
        return data_pb2.ChannelFrame(idle=data_pb2.IdleFrame())
    return data_pb2.ChannelFrame(end_of_stream=data_pb2.EndOfStreamFrame())


def read_head(head: bytes) -> data_pb2.ChannelFrame:
    """What a frame is, and of which channel.

    Raises:
        HandshakeError: the bytes are not a head.
    """
    try:
        return data_pb2.ChannelFrame.FromString(head)
    except DecodeError as error:
        raise HandshakeError(f"a frame on a link is damaged: {error}") from error


def read_replies(head: bytes) -> data_pb2.LinkReply:
    """What the receiving side has told.

    Raises:
        HandshakeError: the bytes are something else.
    """
    try:
        return data_pb2.LinkReply.FromString(head)
    except DecodeError as error:
        raise HandshakeError(f"a reply on a link is damaged: {error}") from error


class FrameDecoder:
    """Frames of one channel to elements; batches are validated, because they come from a socket."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        #: The same with texts as bytes; None: it was not needed yet.
        self._as_bytes: pa.Schema | None = None

    def decode(self, frame: data_pb2.ChannelFrame, body: pa.Buffer | None = None) -> Element:
        """Return the element of a frame.

        Raises:
            HandshakeError: the frame is not valid Arrow, or comes before its schema.
        """
        kind = frame.WhichOneof("element")
        if kind == "batch":
            return self.decode_batch(body, frame.batch.arrow_schema, is_shared=frame.batch.HasField("shared"))
        if kind == "watermark":
            return Watermark(frame.watermark.time_ms, tuple(frame.watermark.without))
        if kind == "idle":
            return Idle()
        if kind == "route_marker":
            return RouteMarker(frame.route_marker.routing_version)
        if kind == "barrier":
            return Barrier(frame.barrier.checkpoint_id)
        if kind == "end_of_stream":
            return EndOfStream()
        raise HandshakeError(f"unexpected frame {kind} on a data channel")

    def decode_batch(
        self, body: pa.Buffer | None, arrow_schema: bytes = b"", *, is_shared: bool = False
    ) -> pa.RecordBatch:
        """Return the batch of a frame's body.

        Args:
            body: it lives as long as the batch.
            arrow_schema: from the head, where the schema is a new one.
            is_shared: the body never left the machine's memory: that texts are UTF-8 is left to who made them, as it
                is between subtasks of one process. Where they begin and end is looked at.

        Raises:
            HandshakeError: as :meth:`decode`.
        """
        try:
            if arrow_schema:
                self._schema = pa.ipc.read_schema(pa.py_buffer(arrow_schema))
                self._as_bytes = None
            if self._schema is None:
                raise HandshakeError("a record batch came before its schema")
            if body is None:
                raise HandshakeError("a record batch on a data channel is damaged: it has no body")
            if is_shared:
                return self._read_places(body, self._schema)
            batch = pa.ipc.read_record_batch(body, self._schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise HandshakeError(f"a record batch on a data channel is damaged: {error}") from error
        return batch

    def _read_places(self, body: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
        """Read a batch and validate all of it but the texts of columns.

        To read it once more, as bytes, costs half of what it costs to look at its columns one by one.

        Raises:
            pa.ArrowException: something is wrong.
        """
        if self._as_bytes is None:
            self._as_bytes = _texts_as_bytes(schema)
        message = pa.ipc.read_message(body)
        pa.ipc.read_record_batch(message, self._as_bytes).validate(full=True)
        return pa.ipc.read_record_batch(message, schema)


#: Bytes of the same form as texts.
_AS_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def _texts_as_bytes(schema: pa.Schema) -> pa.Schema:
    """Returns the schema by which columns of texts are read as bytes."""
    return pa.schema([field.with_type(_AS_BYTES.get(field.type, field.type)) for field in schema])
