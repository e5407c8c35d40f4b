from weir.rpc import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenLinkRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class OpenLinkReply(_message.Message):
    __slots__ = ("port", "greeting", "local_name")
    PORT_FIELD_NUMBER: _ClassVar[int]
    GREETING_FIELD_NUMBER: _ClassVar[int]
    LOCAL_NAME_FIELD_NUMBER: _ClassVar[int]
    port: int
    greeting: bytes
    local_name: str
    def __init__(self, port: _Optional[int] = ..., greeting: _Optional[bytes] = ..., local_name: _Optional[str] = ...) -> None: ...

class ChannelHandshake(_message.Message):
    __slots__ = ("handshake", "channel")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    channel: _common_pb2.ChannelId
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., channel: _Optional[_Union[_common_pb2.ChannelId, _Mapping]] = ...) -> None: ...

class BatchFrame(_message.Message):
    __slots__ = ("arrow_schema", "shared")
    ARROW_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    arrow_schema: bytes
    shared: SharedPart
    def __init__(self, arrow_schema: _Optional[bytes] = ..., shared: _Optional[_Union[SharedPart, _Mapping]] = ...) -> None: ...

class SharedPart(_message.Message):
    __slots__ = ("at", "size_bytes")
    AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    at: int
    size_bytes: int
    def __init__(self, at: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class WatermarkFrame(_message.Message):
    __slots__ = ("time_ms", "without")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    without: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, time_ms: _Optional[int] = ..., without: _Optional[_Iterable[int]] = ...) -> None: ...

class IdleFrame(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouteMarkerFrame(_message.Message):
    __slots__ = ("routing_version",)
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    routing_version: int
    def __init__(self, routing_version: _Optional[int] = ...) -> None: ...

class BarrierFrame(_message.Message):
    __slots__ = ("checkpoint_id",)
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    def __init__(self, checkpoint_id: _Optional[int] = ...) -> None: ...

class EndOfStreamFrame(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChannelFrame(_message.Message):
    __slots__ = ("handshake", "batch", "watermark", "idle", "end_of_stream", "route_marker", "barrier", "closed", "channel_number")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    END_OF_STREAM_FIELD_NUMBER: _ClassVar[int]
    ROUTE_MARKER_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    handshake: ChannelHandshake
    batch: BatchFrame
    watermark: WatermarkFrame
    idle: IdleFrame
    end_of_stream: EndOfStreamFrame
    route_marker: RouteMarkerFrame
    barrier: BarrierFrame
    closed: ClosedFrame
    channel_number: int
    def __init__(self, handshake: _Optional[_Union[ChannelHandshake, _Mapping]] = ..., batch: _Optional[_Union[BatchFrame, _Mapping]] = ..., watermark: _Optional[_Union[WatermarkFrame, _Mapping]] = ..., idle: _Optional[_Union[IdleFrame, _Mapping]] = ..., end_of_stream: _Optional[_Union[EndOfStreamFrame, _Mapping]] = ..., route_marker: _Optional[_Union[RouteMarkerFrame, _Mapping]] = ..., barrier: _Optional[_Union[BarrierFrame, _Mapping]] = ..., closed: _Optional[_Union[ClosedFrame, _Mapping]] = ..., channel_number: _Optional[int] = ...) -> None: ...

class ClosedFrame(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LinkReply(_message.Message):
    __slots__ = ("channels", "freed")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelReply]
    freed: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelReply, _Mapping]]] = ..., freed: _Optional[_Iterable[int]] = ...) -> None: ...

class ChannelReply(_message.Message):
    __slots__ = ("channel_number", "refusal", "released_batches", "busy_percent")
    CHANNEL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    RELEASED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BUSY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    channel_number: int
    refusal: str
    released_batches: int
    busy_percent: int
    def __init__(self, channel_number: _Optional[int] = ..., refusal: _Optional[str] = ..., released_batches: _Optional[int] = ..., busy_percent: _Optional[int] = ...) -> None: ...
