from proto import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupFence(_message.Message):
    __slots__ = ("key_group", "owner_epoch")
    KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    key_group: int
    owner_epoch: int
    def __init__(self, key_group: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class StateFence(_message.Message):
    __slots__ = ("handshake", "stage_index", "groups")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupFence]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupFence, _Mapping]]] = ...) -> None: ...

class StateGetRequest(_message.Message):
    __slots__ = ("fence", "keys")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StateValue(_message.Message):
    __slots__ = ("present", "value")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    present: bool
    value: bytes
    def __init__(self, present: _Optional[bool] = ..., value: _Optional[bytes] = ...) -> None: ...

class StateGetReply(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[StateValue]
    def __init__(self, values: _Optional[_Iterable[_Union[StateValue, _Mapping]]] = ...) -> None: ...

class StateWriteRequest(_message.Message):
    __slots__ = ("fence", "put_keys", "put_values", "delete_keys", "delete_range_start", "delete_range_stop")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PUT_KEYS_FIELD_NUMBER: _ClassVar[int]
    PUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    DELETE_KEYS_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_START_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_STOP_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    put_keys: _containers.RepeatedScalarFieldContainer[bytes]
    put_values: _containers.RepeatedScalarFieldContainer[bytes]
    delete_keys: _containers.RepeatedScalarFieldContainer[bytes]
    delete_range_start: bytes
    delete_range_stop: bytes
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., put_keys: _Optional[_Iterable[bytes]] = ..., put_values: _Optional[_Iterable[bytes]] = ..., delete_keys: _Optional[_Iterable[bytes]] = ..., delete_range_start: _Optional[bytes] = ..., delete_range_stop: _Optional[bytes] = ...) -> None: ...

class StateWriteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateScanRequest(_message.Message):
    __slots__ = ("fence", "start", "stop", "reverse", "entries_max")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    start: bytes
    stop: bytes
    reverse: bool
    entries_max: int
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., start: _Optional[bytes] = ..., stop: _Optional[bytes] = ..., reverse: _Optional[bool] = ..., entries_max: _Optional[int] = ...) -> None: ...

class StateScanReply(_message.Message):
    __slots__ = ("keys", "values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ...) -> None: ...
