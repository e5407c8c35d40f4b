from weir.rpc import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StateFence(_message.Message):
    __slots__ = ("handshake", "stage_index", "key_groups", "owner_epochs")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    key_groups: _containers.RepeatedScalarFieldContainer[int]
    owner_epochs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., key_groups: _Optional[_Iterable[int]] = ..., owner_epochs: _Optional[_Iterable[int]] = ...) -> None: ...

class StateGetRequest(_message.Message):
    __slots__ = ("fence", "keys")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StateGetReply(_message.Message):
    __slots__ = ("values", "absent")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    absent: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ..., absent: _Optional[_Iterable[int]] = ...) -> None: ...

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

class StateLoadRequest(_message.Message):
    __slots__ = ("fence", "keys", "values")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StateLoadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StateScanRequest(_message.Message):
    __slots__ = ("fence", "start", "stop", "reverse", "entries_max", "bytes_max", "prefixes")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    start: bytes
    stop: bytes
    reverse: bool
    entries_max: int
    bytes_max: int
    prefixes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., start: _Optional[bytes] = ..., stop: _Optional[bytes] = ..., reverse: _Optional[bool] = ..., entries_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., prefixes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StateScanReply(_message.Message):
    __slots__ = ("keys", "values")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StatePackedRequest(_message.Message):
    __slots__ = ("fence", "value_bytes", "put_keys", "put_key_lengths", "put_values", "get_keys", "get_key_lengths")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PUT_KEYS_FIELD_NUMBER: _ClassVar[int]
    PUT_KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    GET_KEYS_FIELD_NUMBER: _ClassVar[int]
    GET_KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    fence: StateFence
    value_bytes: int
    put_keys: bytes
    put_key_lengths: bytes
    put_values: bytes
    get_keys: bytes
    get_key_lengths: bytes
    def __init__(self, fence: _Optional[_Union[StateFence, _Mapping]] = ..., value_bytes: _Optional[int] = ..., put_keys: _Optional[bytes] = ..., put_key_lengths: _Optional[bytes] = ..., put_values: _Optional[bytes] = ..., get_keys: _Optional[bytes] = ..., get_key_lengths: _Optional[bytes] = ...) -> None: ...

class StatePackedReply(_message.Message):
    __slots__ = ("present", "values")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    present: bytes
    values: bytes
    def __init__(self, present: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...
