from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubtaskId(_message.Message):
    __slots__ = ("stage_index", "subtask_index")
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    stage_index: int
    subtask_index: int
    def __init__(self, stage_index: _Optional[int] = ..., subtask_index: _Optional[int] = ...) -> None: ...

class ChannelId(_message.Message):
    __slots__ = ("producer", "consumer", "edge_index")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    EDGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    producer: SubtaskId
    consumer: SubtaskId
    edge_index: int
    def __init__(self, producer: _Optional[_Union[SubtaskId, _Mapping]] = ..., consumer: _Optional[_Union[SubtaskId, _Mapping]] = ..., edge_index: _Optional[int] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("protocol_version", "job_id", "fingerprint", "generation")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    job_id: str
    fingerprint: str
    generation: int
    def __init__(self, protocol_version: _Optional[int] = ..., job_id: _Optional[str] = ..., fingerprint: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
