from weir.rpc import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubtaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUBTASK_STATE_UNSPECIFIED: _ClassVar[SubtaskState]
    SUBTASK_STATE_OPENING: _ClassVar[SubtaskState]
    SUBTASK_STATE_DEPLOYED: _ClassVar[SubtaskState]
    SUBTASK_STATE_RUNNING: _ClassVar[SubtaskState]
    SUBTASK_STATE_FINISHED: _ClassVar[SubtaskState]
    SUBTASK_STATE_FAILED: _ClassVar[SubtaskState]
    SUBTASK_STATE_CANCELED: _ClassVar[SubtaskState]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_OUTAGE: _ClassVar[FailureKind]
    FAILURE_KIND_ROWS: _ClassVar[FailureKind]
    FAILURE_KIND_PERMANENT: _ClassVar[FailureKind]
    FAILURE_KIND_OTHER: _ClassVar[FailureKind]

class DrainState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STATE_UNSPECIFIED: _ClassVar[DrainState]
    DRAIN_STATE_DRAINING: _ClassVar[DrainState]
    DRAIN_STATE_EMPTY: _ClassVar[DrainState]
    DRAIN_STATE_REFUSED: _ClassVar[DrainState]

class StateMove(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_MOVE_UNSPECIFIED: _ClassVar[StateMove]
    STATE_MOVE_SHIPPED: _ClassVar[StateMove]
    STATE_MOVE_LEFT: _ClassVar[StateMove]
    STATE_MOVE_FETCHED: _ClassVar[StateMove]
SUBTASK_STATE_UNSPECIFIED: SubtaskState
SUBTASK_STATE_OPENING: SubtaskState
SUBTASK_STATE_DEPLOYED: SubtaskState
SUBTASK_STATE_RUNNING: SubtaskState
SUBTASK_STATE_FINISHED: SubtaskState
SUBTASK_STATE_FAILED: SubtaskState
SUBTASK_STATE_CANCELED: SubtaskState
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_OUTAGE: FailureKind
FAILURE_KIND_ROWS: FailureKind
FAILURE_KIND_PERMANENT: FailureKind
FAILURE_KIND_OTHER: FailureKind
DRAIN_STATE_UNSPECIFIED: DrainState
DRAIN_STATE_DRAINING: DrainState
DRAIN_STATE_EMPTY: DrainState
DRAIN_STATE_REFUSED: DrainState
STATE_MOVE_UNSPECIFIED: StateMove
STATE_MOVE_SHIPPED: StateMove
STATE_MOVE_LEFT: StateMove
STATE_MOVE_FETCHED: StateMove

class ProfileRequest(_message.Message):
    __slots__ = ("handshake", "stage_index", "duration_ms")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    duration_ms: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., duration_ms: _Optional[int] = ...) -> None: ...

class ProfileReply(_message.Message):
    __slots__ = ("frames", "stacks", "subtasks")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[ProfileFrame]
    stacks: _containers.RepeatedCompositeFieldContainer[ProfileStack]
    subtasks: int
    def __init__(self, frames: _Optional[_Iterable[_Union[ProfileFrame, _Mapping]]] = ..., stacks: _Optional[_Iterable[_Union[ProfileStack, _Mapping]]] = ..., subtasks: _Optional[int] = ...) -> None: ...

class ProfileFrame(_message.Message):
    __slots__ = ("function", "file", "line", "kind")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    function: str
    file: str
    line: int
    kind: int
    def __init__(self, function: _Optional[str] = ..., file: _Optional[str] = ..., line: _Optional[int] = ..., kind: _Optional[int] = ...) -> None: ...

class ProfileStack(_message.Message):
    __slots__ = ("frames", "samples", "step", "waits")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[int]
    samples: int
    step: str
    waits: bool
    def __init__(self, frames: _Optional[_Iterable[int]] = ..., samples: _Optional[int] = ..., step: _Optional[str] = ..., waits: _Optional[bool] = ...) -> None: ...

class LogTailRequest(_message.Message):
    __slots__ = ("entries_max",)
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    entries_max: int
    def __init__(self, entries_max: _Optional[int] = ...) -> None: ...

class LogTailReply(_message.Message):
    __slots__ = ("entries", "audit_places")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AUDIT_PLACES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedScalarFieldContainer[str]
    audit_places: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, entries: _Optional[_Iterable[str]] = ..., audit_places: _Optional[_Iterable[int]] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("handshake", "question_json", "state_id", "manifest_path")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_PATH_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    question_json: bytes
    state_id: int
    manifest_path: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., question_json: _Optional[bytes] = ..., state_id: _Optional[int] = ..., manifest_path: _Optional[str] = ...) -> None: ...

class QueryReply(_message.Message):
    __slots__ = ("status", "answer_json", "key_group", "arrow")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_JSON_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    status: int
    answer_json: bytes
    key_group: int
    arrow: bytes
    def __init__(self, status: _Optional[int] = ..., answer_json: _Optional[bytes] = ..., key_group: _Optional[int] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class DirectoryRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DirectoryReply(_message.Message):
    __slots__ = ("directory_json",)
    DIRECTORY_JSON_FIELD_NUMBER: _ClassVar[int]
    directory_json: bytes
    def __init__(self, directory_json: _Optional[bytes] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("protocol_version", "address", "incarnation", "operator_quota", "job_id", "generation", "orders_secret")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_QUOTA_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ORDERS_SECRET_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    address: str
    incarnation: str
    operator_quota: int
    job_id: str
    generation: int
    orders_secret: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., address: _Optional[str] = ..., incarnation: _Optional[str] = ..., operator_quota: _Optional[int] = ..., job_id: _Optional[str] = ..., generation: _Optional[int] = ..., orders_secret: _Optional[bytes] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("heartbeat_interval_ms", "lease_timeout_ms", "control_plane_id", "keep_job", "frequent_calls_port", "frequent_calls_greeting", "grpc_port")
    HEARTBEAT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PLANE_ID_FIELD_NUMBER: _ClassVar[int]
    KEEP_JOB_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_CALLS_PORT_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_CALLS_GREETING_FIELD_NUMBER: _ClassVar[int]
    GRPC_PORT_FIELD_NUMBER: _ClassVar[int]
    heartbeat_interval_ms: int
    lease_timeout_ms: int
    control_plane_id: str
    keep_job: bool
    frequent_calls_port: int
    frequent_calls_greeting: bytes
    grpc_port: int
    def __init__(self, heartbeat_interval_ms: _Optional[int] = ..., lease_timeout_ms: _Optional[int] = ..., control_plane_id: _Optional[str] = ..., keep_job: _Optional[bool] = ..., frequent_calls_port: _Optional[int] = ..., frequent_calls_greeting: _Optional[bytes] = ..., grpc_port: _Optional[int] = ...) -> None: ...

class RejectedRows(_message.Message):
    __slots__ = ("step", "is_source", "rows_in", "rejected", "reason", "source", "position", "dead_letters", "rejected_here")
    STEP_FIELD_NUMBER: _ClassVar[int]
    IS_SOURCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_IN_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_HERE_FIELD_NUMBER: _ClassVar[int]
    step: str
    is_source: bool
    rows_in: int
    rejected: int
    reason: str
    source: str
    position: int
    dead_letters: str
    rejected_here: int
    def __init__(self, step: _Optional[str] = ..., is_source: _Optional[bool] = ..., rows_in: _Optional[int] = ..., rejected: _Optional[int] = ..., reason: _Optional[str] = ..., source: _Optional[str] = ..., position: _Optional[int] = ..., dead_letters: _Optional[str] = ..., rejected_here: _Optional[int] = ...) -> None: ...

class SubtaskReport(_message.Message):
    __slots__ = ("subtask", "state", "cause", "records_in", "records_out", "records_rejected", "queue_depth", "busy_us", "idle_us", "backpressured_us", "watermark_ms", "first_batch_us", "last_batch_us", "distinct_keys", "restoring_groups", "restore_groups", "restore_started_us", "restore_us", "failed_step", "failure_kind", "rejected", "late", "lags", "channels", "state_hold_us_max", "input_watermarks", "read_watermark_ms", "is_idle", "is_held_back", "hot_group", "hot_group_share", "latency_counts", "processor_us", "rows_overdue", "input_plan", "hot_groups", "hot_keys")
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_IN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_OUT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_REJECTED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    IDLE_US_FIELD_NUMBER: _ClassVar[int]
    BACKPRESSURED_US_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BATCH_US_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_US_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_KEYS_FIELD_NUMBER: _ClassVar[int]
    RESTORING_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STARTED_US_FIELD_NUMBER: _ClassVar[int]
    RESTORE_US_FIELD_NUMBER: _ClassVar[int]
    FAILED_STEP_FIELD_NUMBER: _ClassVar[int]
    FAILURE_KIND_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    STATE_HOLD_US_MAX_FIELD_NUMBER: _ClassVar[int]
    INPUT_WATERMARKS_FIELD_NUMBER: _ClassVar[int]
    READ_WATERMARK_MS_FIELD_NUMBER: _ClassVar[int]
    IS_IDLE_FIELD_NUMBER: _ClassVar[int]
    IS_HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    HOT_GROUP_FIELD_NUMBER: _ClassVar[int]
    HOT_GROUP_SHARE_FIELD_NUMBER: _ClassVar[int]
    LATENCY_COUNTS_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_US_FIELD_NUMBER: _ClassVar[int]
    ROWS_OVERDUE_FIELD_NUMBER: _ClassVar[int]
    INPUT_PLAN_FIELD_NUMBER: _ClassVar[int]
    HOT_GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOT_KEYS_FIELD_NUMBER: _ClassVar[int]
    subtask: _common_pb2.SubtaskId
    state: SubtaskState
    cause: str
    records_in: int
    records_out: int
    records_rejected: int
    queue_depth: int
    busy_us: int
    idle_us: int
    backpressured_us: int
    watermark_ms: int
    first_batch_us: int
    last_batch_us: int
    distinct_keys: int
    restoring_groups: int
    restore_groups: int
    restore_started_us: int
    restore_us: int
    failed_step: str
    failure_kind: FailureKind
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedRows]
    late: _containers.RepeatedCompositeFieldContainer[LateRows]
    lags: _containers.RepeatedCompositeFieldContainer[SplitLag]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelQueue]
    state_hold_us_max: int
    input_watermarks: InputWatermarks
    read_watermark_ms: int
    is_idle: bool
    is_held_back: bool
    hot_group: int
    hot_group_share: float
    latency_counts: _containers.RepeatedScalarFieldContainer[int]
    processor_us: int
    rows_overdue: int
    input_plan: int
    hot_groups: _containers.RepeatedCompositeFieldContainer[HotGroup]
    hot_keys: _containers.RepeatedCompositeFieldContainer[HotKey]
    def __init__(self, subtask: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., state: _Optional[_Union[SubtaskState, str]] = ..., cause: _Optional[str] = ..., records_in: _Optional[int] = ..., records_out: _Optional[int] = ..., records_rejected: _Optional[int] = ..., queue_depth: _Optional[int] = ..., busy_us: _Optional[int] = ..., idle_us: _Optional[int] = ..., backpressured_us: _Optional[int] = ..., watermark_ms: _Optional[int] = ..., first_batch_us: _Optional[int] = ..., last_batch_us: _Optional[int] = ..., distinct_keys: _Optional[int] = ..., restoring_groups: _Optional[int] = ..., restore_groups: _Optional[int] = ..., restore_started_us: _Optional[int] = ..., restore_us: _Optional[int] = ..., failed_step: _Optional[str] = ..., failure_kind: _Optional[_Union[FailureKind, str]] = ..., rejected: _Optional[_Iterable[_Union[RejectedRows, _Mapping]]] = ..., late: _Optional[_Iterable[_Union[LateRows, _Mapping]]] = ..., lags: _Optional[_Iterable[_Union[SplitLag, _Mapping]]] = ..., channels: _Optional[_Iterable[_Union[ChannelQueue, _Mapping]]] = ..., state_hold_us_max: _Optional[int] = ..., input_watermarks: _Optional[_Union[InputWatermarks, _Mapping]] = ..., read_watermark_ms: _Optional[int] = ..., is_idle: _Optional[bool] = ..., is_held_back: _Optional[bool] = ..., hot_group: _Optional[int] = ..., hot_group_share: _Optional[float] = ..., latency_counts: _Optional[_Iterable[int]] = ..., processor_us: _Optional[int] = ..., rows_overdue: _Optional[int] = ..., input_plan: _Optional[int] = ..., hot_groups: _Optional[_Iterable[_Union[HotGroup, _Mapping]]] = ..., hot_keys: _Optional[_Iterable[_Union[HotKey, _Mapping]]] = ...) -> None: ...

class HotGroup(_message.Message):
    __slots__ = ("group", "share")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    group: int
    share: float
    def __init__(self, group: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...

class HotKey(_message.Message):
    __slots__ = ("key", "group", "share")
    KEY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    key: str
    group: int
    share: float
    def __init__(self, key: _Optional[str] = ..., group: _Optional[int] = ..., share: _Optional[float] = ...) -> None: ...

class LateRows(_message.Message):
    __slots__ = ("step", "rows")
    STEP_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    step: str
    rows: int
    def __init__(self, step: _Optional[str] = ..., rows: _Optional[int] = ...) -> None: ...

class SplitLag(_message.Message):
    __slots__ = ("split", "records")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    split: str
    records: int
    def __init__(self, split: _Optional[str] = ..., records: _Optional[int] = ...) -> None: ...

class InputWatermarks(_message.Message):
    __slots__ = ("edge_indices", "producer_stages", "producer_indices", "watermarks_ms", "is_idle")
    EDGE_INDICES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_STAGES_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_INDICES_FIELD_NUMBER: _ClassVar[int]
    WATERMARKS_MS_FIELD_NUMBER: _ClassVar[int]
    IS_IDLE_FIELD_NUMBER: _ClassVar[int]
    edge_indices: _containers.RepeatedScalarFieldContainer[int]
    producer_stages: _containers.RepeatedScalarFieldContainer[int]
    producer_indices: _containers.RepeatedScalarFieldContainer[int]
    watermarks_ms: _containers.RepeatedScalarFieldContainer[int]
    is_idle: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, edge_indices: _Optional[_Iterable[int]] = ..., producer_stages: _Optional[_Iterable[int]] = ..., producer_indices: _Optional[_Iterable[int]] = ..., watermarks_ms: _Optional[_Iterable[int]] = ..., is_idle: _Optional[_Iterable[bool]] = ...) -> None: ...

class ChannelQueue(_message.Message):
    __slots__ = ("consumer", "rows", "age_us")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    consumer: _common_pb2.SubtaskId
    rows: int
    age_us: int
    def __init__(self, consumer: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., rows: _Optional[int] = ..., age_us: _Optional[int] = ...) -> None: ...

class OwnershipReport(_message.Message):
    __slots__ = ("subtask", "routing_version", "owned_groups", "complete_groups", "bytes_moved", "locations", "failure", "bytes_sent", "relinked_groups")
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    RELINKED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    subtask: _common_pb2.SubtaskId
    routing_version: int
    owned_groups: _containers.RepeatedScalarFieldContainer[int]
    complete_groups: _containers.RepeatedScalarFieldContainer[int]
    bytes_moved: int
    locations: _containers.RepeatedScalarFieldContainer[str]
    failure: str
    bytes_sent: int
    relinked_groups: int
    def __init__(self, subtask: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., routing_version: _Optional[int] = ..., owned_groups: _Optional[_Iterable[int]] = ..., complete_groups: _Optional[_Iterable[int]] = ..., bytes_moved: _Optional[int] = ..., locations: _Optional[_Iterable[str]] = ..., failure: _Optional[str] = ..., bytes_sent: _Optional[int] = ..., relinked_groups: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("address", "incarnation", "job_id", "generation", "subtasks", "ownership", "waits_for", "resident_bytes", "disk_free_bytes", "disk_bytes", "processor_us", "processors", "memory_bytes", "state_files")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    OWNERSHIP_FIELD_NUMBER: _ClassVar[int]
    WAITS_FOR_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_US_FIELD_NUMBER: _ClassVar[int]
    PROCESSORS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATE_FILES_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: str
    job_id: str
    generation: int
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskReport]
    ownership: _containers.RepeatedCompositeFieldContainer[OwnershipReport]
    waits_for: str
    resident_bytes: int
    disk_free_bytes: int
    disk_bytes: int
    processor_us: int
    processors: int
    memory_bytes: int
    state_files: StateFiles
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ..., job_id: _Optional[str] = ..., generation: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskReport, _Mapping]]] = ..., ownership: _Optional[_Iterable[_Union[OwnershipReport, _Mapping]]] = ..., waits_for: _Optional[str] = ..., resident_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., processor_us: _Optional[int] = ..., processors: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., state_files: _Optional[_Union[StateFiles, _Mapping]] = ...) -> None: ...

class StateFiles(_message.Message):
    __slots__ = ("fetched_files", "fetched_bytes", "standby_checkpoint_id", "standby_bytes", "standby_missing_bytes", "standby_problem", "write_stalls", "write_stall_ms", "standby_subtasks")
    FETCHED_FILES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDBY_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STANDBY_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDBY_MISSING_BYTES_FIELD_NUMBER: _ClassVar[int]
    STANDBY_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    WRITE_STALLS_FIELD_NUMBER: _ClassVar[int]
    WRITE_STALL_MS_FIELD_NUMBER: _ClassVar[int]
    STANDBY_SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    fetched_files: int
    fetched_bytes: int
    standby_checkpoint_id: int
    standby_bytes: int
    standby_missing_bytes: int
    standby_problem: str
    write_stalls: int
    write_stall_ms: int
    standby_subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, fetched_files: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., standby_checkpoint_id: _Optional[int] = ..., standby_bytes: _Optional[int] = ..., standby_missing_bytes: _Optional[int] = ..., standby_problem: _Optional[str] = ..., write_stalls: _Optional[int] = ..., write_stall_ms: _Optional[int] = ..., standby_subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class StandbyOrder(_message.Message):
    __slots__ = ("checkpoint_id", "manifest_path", "subtasks", "disk_hold_bytes")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_PATH_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    DISK_HOLD_BYTES_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: int
    manifest_path: str
    subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    disk_hold_bytes: int
    def __init__(self, checkpoint_id: _Optional[int] = ..., manifest_path: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., disk_hold_bytes: _Optional[int] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("known", "shutdown", "forgotten", "control_plane_id", "lowest_watermarks_ms", "held_back", "standby", "sources_wait")
    class LowestWatermarksMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    CONTROL_PLANE_ID_FIELD_NUMBER: _ClassVar[int]
    LOWEST_WATERMARKS_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_BACK_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_WAIT_FIELD_NUMBER: _ClassVar[int]
    known: bool
    shutdown: bool
    forgotten: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    control_plane_id: str
    lowest_watermarks_ms: _containers.ScalarMap[str, int]
    held_back: str
    standby: StandbyOrder
    sources_wait: bool
    def __init__(self, known: _Optional[bool] = ..., shutdown: _Optional[bool] = ..., forgotten: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., control_plane_id: _Optional[str] = ..., lowest_watermarks_ms: _Optional[_Mapping[str, int]] = ..., held_back: _Optional[str] = ..., standby: _Optional[_Union[StandbyOrder, _Mapping]] = ..., sources_wait: _Optional[bool] = ...) -> None: ...

class LocateRequest(_message.Message):
    __slots__ = ("stage_index", "key_groups")
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    KEY_GROUPS_FIELD_NUMBER: _ClassVar[int]
    stage_index: int
    key_groups: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stage_index: _Optional[int] = ..., key_groups: _Optional[_Iterable[int]] = ...) -> None: ...

class LocateReply(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("address", "incarnation", "begin")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: str
    begin: bool
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ..., begin: _Optional[bool] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("state", "cause")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    state: DrainState
    cause: str
    def __init__(self, state: _Optional[_Union[DrainState, str]] = ..., cause: _Optional[str] = ...) -> None: ...

class DeregisterRequest(_message.Message):
    __slots__ = ("address", "incarnation")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: str
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class DeregisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("protocol_version", "incarnation", "operator_quota", "subtasks", "job_id", "generation", "question_port", "question_greeting", "question_http_address", "frequent_calls_greeting")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_QUOTA_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    QUESTION_PORT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_GREETING_FIELD_NUMBER: _ClassVar[int]
    QUESTION_HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FREQUENT_CALLS_GREETING_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    incarnation: str
    operator_quota: int
    subtasks: _containers.RepeatedCompositeFieldContainer[SubtaskReport]
    job_id: str
    generation: int
    question_port: int
    question_greeting: bytes
    question_http_address: str
    frequent_calls_greeting: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., incarnation: _Optional[str] = ..., operator_quota: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[SubtaskReport, _Mapping]]] = ..., job_id: _Optional[str] = ..., generation: _Optional[int] = ..., question_port: _Optional[int] = ..., question_greeting: _Optional[bytes] = ..., question_http_address: _Optional[str] = ..., frequent_calls_greeting: _Optional[bytes] = ...) -> None: ...

class SubtaskLocation(_message.Message):
    __slots__ = ("subtask", "address")
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    subtask: _common_pb2.SubtaskId
    address: str
    def __init__(self, subtask: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class RoutingTable(_message.Message):
    __slots__ = ("stage_index", "routing_version", "group_to_subtask", "owner_epochs", "subtasks")
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_TO_SUBTASK_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    stage_index: int
    routing_version: int
    group_to_subtask: _containers.RepeatedScalarFieldContainer[int]
    owner_epochs: _containers.RepeatedScalarFieldContainer[int]
    subtasks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stage_index: _Optional[int] = ..., routing_version: _Optional[int] = ..., group_to_subtask: _Optional[_Iterable[int]] = ..., owner_epochs: _Optional[_Iterable[int]] = ..., subtasks: _Optional[_Iterable[int]] = ...) -> None: ...

class StageSubtasks(_message.Message):
    __slots__ = ("stage_index", "subtask_indices")
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_INDICES_FIELD_NUMBER: _ClassVar[int]
    stage_index: int
    subtask_indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stage_index: _Optional[int] = ..., subtask_indices: _Optional[_Iterable[int]] = ...) -> None: ...

class DeployRequest(_message.Message):
    __slots__ = ("handshake", "job_module", "parameters_json", "subtasks", "locations", "routing_tables", "watermark_interval_ms", "out_of_order_grace_period_ms", "idle_timeout_ms", "deployed_us", "stages", "checkpoint_uri", "restore", "alignment_timeout_ms", "ended_checkpoint_id", "state_ids", "isolated_steps", "state_strategy", "database_run", "layouts_json", "horizons_json")
    class StateIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    JOB_MODULE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_JSON_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_TABLES_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    OUT_OF_ORDER_GRACE_PERIOD_MS_FIELD_NUMBER: _ClassVar[int]
    IDLE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DEPLOYED_US_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_URI_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_IDS_FIELD_NUMBER: _ClassVar[int]
    ISOLATED_STEPS_FIELD_NUMBER: _ClassVar[int]
    STATE_STRATEGY_FIELD_NUMBER: _ClassVar[int]
    DATABASE_RUN_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_JSON_FIELD_NUMBER: _ClassVar[int]
    HORIZONS_JSON_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    job_module: str
    parameters_json: str
    subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    locations: _containers.RepeatedCompositeFieldContainer[SubtaskLocation]
    routing_tables: _containers.RepeatedCompositeFieldContainer[RoutingTable]
    watermark_interval_ms: int
    out_of_order_grace_period_ms: int
    idle_timeout_ms: int
    deployed_us: int
    stages: _containers.RepeatedCompositeFieldContainer[StageSubtasks]
    checkpoint_uri: str
    restore: Restore
    alignment_timeout_ms: int
    ended_checkpoint_id: int
    state_ids: _containers.ScalarMap[str, int]
    isolated_steps: _containers.RepeatedScalarFieldContainer[str]
    state_strategy: StateStrategy
    database_run: str
    layouts_json: str
    horizons_json: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., job_module: _Optional[str] = ..., parameters_json: _Optional[str] = ..., subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., locations: _Optional[_Iterable[_Union[SubtaskLocation, _Mapping]]] = ..., routing_tables: _Optional[_Iterable[_Union[RoutingTable, _Mapping]]] = ..., watermark_interval_ms: _Optional[int] = ..., out_of_order_grace_period_ms: _Optional[int] = ..., idle_timeout_ms: _Optional[int] = ..., deployed_us: _Optional[int] = ..., stages: _Optional[_Iterable[_Union[StageSubtasks, _Mapping]]] = ..., checkpoint_uri: _Optional[str] = ..., restore: _Optional[_Union[Restore, _Mapping]] = ..., alignment_timeout_ms: _Optional[int] = ..., ended_checkpoint_id: _Optional[int] = ..., state_ids: _Optional[_Mapping[str, int]] = ..., isolated_steps: _Optional[_Iterable[str]] = ..., state_strategy: _Optional[_Union[StateStrategy, _Mapping]] = ..., database_run: _Optional[str] = ..., layouts_json: _Optional[str] = ..., horizons_json: _Optional[str] = ...) -> None: ...

class StateStrategy(_message.Message):
    __slots__ = ("move", "asks_for_places", "relinks")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    ASKS_FOR_PLACES_FIELD_NUMBER: _ClassVar[int]
    RELINKS_FIELD_NUMBER: _ClassVar[int]
    move: StateMove
    asks_for_places: bool
    relinks: bool
    def __init__(self, move: _Optional[_Union[StateMove, str]] = ..., asks_for_places: _Optional[bool] = ..., relinks: _Optional[bool] = ...) -> None: ...

class Restore(_message.Message):
    __slots__ = ("checkpoint_uri", "manifest_path", "job_id")
    CHECKPOINT_URI_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_PATH_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    checkpoint_uri: str
    manifest_path: str
    job_id: str
    def __init__(self, checkpoint_uri: _Optional[str] = ..., manifest_path: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class DeployReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("handshake", "job_start_us")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    JOB_START_US_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    job_start_us: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., job_start_us: _Optional[int] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("job_id", "generation", "subtasks", "lost_producers")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    LOST_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    generation: int
    subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    lost_producers: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, job_id: _Optional[str] = ..., generation: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., lost_producers: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class CancelReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupMove(_message.Message):
    __slots__ = ("key_group", "source_subtask_index", "target_subtask_index")
    KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    TARGET_SUBTASK_INDEX_FIELD_NUMBER: _ClassVar[int]
    key_group: int
    source_subtask_index: int
    target_subtask_index: int
    def __init__(self, key_group: _Optional[int] = ..., source_subtask_index: _Optional[int] = ..., target_subtask_index: _Optional[int] = ...) -> None: ...

class PrepareRescaleRequest(_message.Message):
    __slots__ = ("handshake", "stage_index", "routing_version", "subtasks", "moves", "retiring", "locations", "relink_checkpoint_id", "only_opens")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    RELINK_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    ONLY_OPENS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    routing_version: int
    subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    moves: _containers.RepeatedCompositeFieldContainer[GroupMove]
    retiring: _containers.RepeatedScalarFieldContainer[int]
    locations: _containers.RepeatedCompositeFieldContainer[SubtaskLocation]
    relink_checkpoint_id: int
    only_opens: bool
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., routing_version: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., moves: _Optional[_Iterable[_Union[GroupMove, _Mapping]]] = ..., retiring: _Optional[_Iterable[int]] = ..., locations: _Optional[_Iterable[_Union[SubtaskLocation, _Mapping]]] = ..., relink_checkpoint_id: _Optional[int] = ..., only_opens: _Optional[bool] = ...) -> None: ...

class PrepareRescaleReply(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, ended: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class RerouteRequest(_message.Message):
    __slots__ = ("handshake", "stage_index", "routing_version", "retiring", "stages", "locations", "routing_tables", "upstream", "owners")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_TABLES_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    routing_version: int
    retiring: _containers.RepeatedScalarFieldContainer[int]
    stages: _containers.RepeatedCompositeFieldContainer[StageSubtasks]
    locations: _containers.RepeatedCompositeFieldContainer[SubtaskLocation]
    routing_tables: _containers.RepeatedCompositeFieldContainer[RoutingTable]
    upstream: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    owners: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., routing_version: _Optional[int] = ..., retiring: _Optional[_Iterable[int]] = ..., stages: _Optional[_Iterable[_Union[StageSubtasks, _Mapping]]] = ..., locations: _Optional[_Iterable[_Union[SubtaskLocation, _Mapping]]] = ..., routing_tables: _Optional[_Iterable[_Union[RoutingTable, _Mapping]]] = ..., upstream: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., owners: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class RerouteReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OwnedGroup(_message.Message):
    __slots__ = ("key_group", "owner_epoch")
    KEY_GROUP_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    key_group: int
    owner_epoch: int
    def __init__(self, key_group: _Optional[int] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class HandOverRequest(_message.Message):
    __slots__ = ("handshake", "target", "routing_version", "groups", "state_location", "bytes_shipped", "relink_checkpoint_id", "deleted_keys")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STATE_LOCATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_SHIPPED_FIELD_NUMBER: _ClassVar[int]
    RELINK_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEYS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    target: _common_pb2.SubtaskId
    routing_version: int
    groups: _containers.RepeatedCompositeFieldContainer[OwnedGroup]
    state_location: str
    bytes_shipped: int
    relink_checkpoint_id: int
    deleted_keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., routing_version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[OwnedGroup, _Mapping]]] = ..., state_location: _Optional[str] = ..., bytes_shipped: _Optional[int] = ..., relink_checkpoint_id: _Optional[int] = ..., deleted_keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HandOverReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeCopyRequest(_message.Message):
    __slots__ = ("handshake", "target", "groups", "state_id", "cell_count", "hashes", "key_data", "key_lengths", "cells", "presence", "routing_version", "complete", "anew", "at_handover", "value_data", "value_lengths")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    STATE_ID_FIELD_NUMBER: _ClassVar[int]
    CELL_COUNT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    KEY_DATA_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ANEW_FIELD_NUMBER: _ClassVar[int]
    AT_HANDOVER_FIELD_NUMBER: _ClassVar[int]
    VALUE_DATA_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    target: _common_pb2.SubtaskId
    groups: _containers.RepeatedCompositeFieldContainer[OwnedGroup]
    state_id: int
    cell_count: int
    hashes: bytes
    key_data: bytes
    key_lengths: bytes
    cells: bytes
    presence: bytes
    routing_version: int
    complete: bool
    anew: bool
    at_handover: bool
    value_data: bytes
    value_lengths: bytes
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., target: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[OwnedGroup, _Mapping]]] = ..., state_id: _Optional[int] = ..., cell_count: _Optional[int] = ..., hashes: _Optional[bytes] = ..., key_data: _Optional[bytes] = ..., key_lengths: _Optional[bytes] = ..., cells: _Optional[bytes] = ..., presence: _Optional[bytes] = ..., routing_version: _Optional[int] = ..., complete: _Optional[bool] = ..., anew: _Optional[bool] = ..., at_handover: _Optional[bool] = ..., value_data: _Optional[bytes] = ..., value_lengths: _Optional[bytes] = ...) -> None: ...

class TakeCopyReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortRescaleRequest(_message.Message):
    __slots__ = ("handshake", "stage_index", "routing_version", "owners")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    STAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUTING_VERSION_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    stage_index: int
    routing_version: int
    owners: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., stage_index: _Optional[int] = ..., routing_version: _Optional[int] = ..., owners: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class AbortRescaleReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PullStateRequest(_message.Message):
    __slots__ = ("handshake", "address")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    address: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., address: _Optional[str] = ...) -> None: ...

class PullStateReply(_message.Message):
    __slots__ = ("groups_left",)
    GROUPS_LEFT_FIELD_NUMBER: _ClassVar[int]
    groups_left: int
    def __init__(self, groups_left: _Optional[int] = ...) -> None: ...

class TriggerCheckpointRequest(_message.Message):
    __slots__ = ("handshake", "checkpoint_id", "subtasks", "holds", "others")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    SUBTASKS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    checkpoint_id: int
    subtasks: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    holds: bool
    others: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., subtasks: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., holds: _Optional[bool] = ..., others: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class TriggerCheckpointReply(_message.Message):
    __slots__ = ("ended",)
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ended: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    def __init__(self, ended: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ...) -> None: ...

class EndCheckpointRequest(_message.Message):
    __slots__ = ("handshake", "checkpoint_id", "committed", "ended", "waits")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    checkpoint_id: int
    committed: bool
    ended: _containers.RepeatedCompositeFieldContainer[_common_pb2.SubtaskId]
    waits: bool
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., committed: _Optional[bool] = ..., ended: _Optional[_Iterable[_Union[_common_pb2.SubtaskId, _Mapping]]] = ..., waits: _Optional[bool] = ...) -> None: ...

class DeliveryFailure(_message.Message):
    __slots__ = ("subtask", "cause", "failure_kind")
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_KIND_FIELD_NUMBER: _ClassVar[int]
    subtask: _common_pb2.SubtaskId
    cause: str
    failure_kind: FailureKind
    def __init__(self, subtask: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., cause: _Optional[str] = ..., failure_kind: _Optional[_Union[FailureKind, str]] = ...) -> None: ...

class EndCheckpointReply(_message.Message):
    __slots__ = ("failures",)
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    failures: _containers.RepeatedCompositeFieldContainer[DeliveryFailure]
    def __init__(self, failures: _Optional[_Iterable[_Union[DeliveryFailure, _Mapping]]] = ...) -> None: ...

class AcknowledgeCheckpointRequest(_message.Message):
    __slots__ = ("handshake", "subtask", "checkpoint_id", "part_json", "failure", "others")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    SUBTASK_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PART_JSON_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    subtask: _common_pb2.SubtaskId
    checkpoint_id: int
    part_json: bytes
    failure: str
    others: _containers.RepeatedCompositeFieldContainer[AcknowledgeCheckpointRequest]
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., subtask: _Optional[_Union[_common_pb2.SubtaskId, _Mapping]] = ..., checkpoint_id: _Optional[int] = ..., part_json: _Optional[bytes] = ..., failure: _Optional[str] = ..., others: _Optional[_Iterable[_Union[AcknowledgeCheckpointRequest, _Mapping]]] = ...) -> None: ...

class AcknowledgeCheckpointReply(_message.Message):
    __slots__ = ("taken",)
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    def __init__(self, taken: _Optional[bool] = ...) -> None: ...

class TakeImageRequest(_message.Message):
    __slots__ = ("handshake", "checkpoint_id")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    checkpoint_id: int
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., checkpoint_id: _Optional[int] = ...) -> None: ...

class TakeImageReply(_message.Message):
    __slots__ = ("image_id",)
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    image_id: str
    def __init__(self, image_id: _Optional[str] = ...) -> None: ...

class CollectImageRequest(_message.Message):
    __slots__ = ("handshake", "image_id")
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_ID_FIELD_NUMBER: _ClassVar[int]
    handshake: _common_pb2.Handshake
    image_id: str
    def __init__(self, handshake: _Optional[_Union[_common_pb2.Handshake, _Mapping]] = ..., image_id: _Optional[str] = ...) -> None: ...

class CollectImageReply(_message.Message):
    __slots__ = ("image_json", "new_bytes")
    IMAGE_JSON_FIELD_NUMBER: _ClassVar[int]
    NEW_BYTES_FIELD_NUMBER: _ClassVar[int]
    image_json: bytes
    new_bytes: int
    def __init__(self, image_json: _Optional[bytes] = ..., new_bytes: _Optional[int] = ...) -> None: ...
