from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_NONE: _ClassVar[Acks]
    ACKS_LEADER: _ClassVar[Acks]
    ACKS_ALL: _ClassVar[Acks]

class AnswerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_OK: _ClassVar[AnswerKind]
    ANSWER_REJECTED: _ClassVar[AnswerKind]
    ANSWER_UNKNOWN: _ClassVar[AnswerKind]
ACKS_NONE: Acks
ACKS_LEADER: Acks
ACKS_ALL: Acks
ANSWER_OK: AnswerKind
ANSWER_REJECTED: AnswerKind
ANSWER_UNKNOWN: AnswerKind

class PartitionName(_message.Message):
    __slots__ = ("topic", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("open", "batch_crc", "batch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_CRC_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    open: ProduceOpen
    batch_crc: int
    batch: bytes
    def __init__(self, open: _Optional[_Union[ProduceOpen, _Mapping]] = ..., batch_crc: _Optional[int] = ..., batch: _Optional[bytes] = ...) -> None: ...

class ProduceOpen(_message.Message):
    __slots__ = ("name", "producer_id", "producer_epoch", "acks", "last_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    producer_id: int
    producer_epoch: int
    acks: Acks
    last_epoch: int
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ..., acks: _Optional[_Union[Acks, str]] = ..., last_epoch: _Optional[int] = ...) -> None: ...

class BatchAnswer(_message.Message):
    __slots__ = ("sequence", "kind", "offset", "is_offset_forgotten")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    IS_OFFSET_FORGOTTEN_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    kind: AnswerKind
    offset: int
    is_offset_forgotten: bool
    def __init__(self, sequence: _Optional[int] = ..., kind: _Optional[_Union[AnswerKind, str]] = ..., offset: _Optional[int] = ..., is_offset_forgotten: _Optional[bool] = ...) -> None: ...

class ProduceReply(_message.Message):
    __slots__ = ("opened", "answers", "message", "is_fenced")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_FENCED_FIELD_NUMBER: _ClassVar[int]
    opened: ProduceOpened
    answers: _containers.RepeatedCompositeFieldContainer[BatchAnswer]
    message: str
    is_fenced: bool
    def __init__(self, opened: _Optional[_Union[ProduceOpened, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[BatchAnswer, _Mapping]]] = ..., message: _Optional[str] = ..., is_fenced: _Optional[bool] = ...) -> None: ...

class ProduceOpened(_message.Message):
    __slots__ = ("leader_address", "producer_epoch", "next_sequence")
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    leader_address: str
    producer_epoch: int
    next_sequence: int
    def __init__(self, leader_address: _Optional[str] = ..., producer_epoch: _Optional[int] = ..., next_sequence: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("open", "credit_bytes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: ReadOpen
    credit_bytes: int
    def __init__(self, open: _Optional[_Union[ReadOpen, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class ReadOpen(_message.Message):
    __slots__ = ("name", "start_offset", "start_ms", "follow", "by_id", "start_id", "is_latest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_MS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    BY_ID_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LATEST_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    start_offset: int
    start_ms: int
    follow: bool
    by_id: bool
    start_id: int
    is_latest: bool
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., start_offset: _Optional[int] = ..., start_ms: _Optional[int] = ..., follow: _Optional[bool] = ..., by_id: _Optional[bool] = ..., start_id: _Optional[int] = ..., is_latest: _Optional[bool] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("leader_address", "bounds", "is_end", "entries")
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    IS_END_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    leader_address: str
    bounds: ReadBounds
    is_end: bool
    entries: bytes
    def __init__(self, leader_address: _Optional[str] = ..., bounds: _Optional[_Union[ReadBounds, _Mapping]] = ..., is_end: _Optional[bool] = ..., entries: _Optional[bytes] = ...) -> None: ...

class ReadBounds(_message.Message):
    __slots__ = ("first_offset", "commit_offset")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    commit_offset: int
    def __init__(self, first_offset: _Optional[int] = ..., commit_offset: _Optional[int] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "start_offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    start_offset: int
    def __init__(self, epoch: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class ReplicateRequest(_message.Message):
    __slots__ = ("open", "commit_offset", "has_cut", "cut_offset", "first_offset", "start_offset", "snapshot", "entries")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HAS_CUT_FIELD_NUMBER: _ClassVar[int]
    CUT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    open: ReplicateOpen
    commit_offset: int
    has_cut: bool
    cut_offset: int
    first_offset: int
    start_offset: int
    snapshot: bytes
    entries: bytes
    def __init__(self, open: _Optional[_Union[ReplicateOpen, _Mapping]] = ..., commit_offset: _Optional[int] = ..., has_cut: _Optional[bool] = ..., cut_offset: _Optional[int] = ..., first_offset: _Optional[int] = ..., start_offset: _Optional[int] = ..., snapshot: _Optional[bytes] = ..., entries: _Optional[bytes] = ...) -> None: ...

class ReplicateOpen(_message.Message):
    __slots__ = ("name", "epoch", "leader_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    epoch: int
    leader_id: int
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ...) -> None: ...

class ReplicateReply(_message.Message):
    __slots__ = ("lineage", "incarnation", "promised_epoch", "end_offset", "durable_offset")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROMISED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DURABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    lineage: _containers.RepeatedCompositeFieldContainer[EpochStart]
    incarnation: int
    promised_epoch: int
    end_offset: int
    durable_offset: int
    def __init__(self, lineage: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., incarnation: _Optional[int] = ..., promised_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., durable_offset: _Optional[int] = ...) -> None: ...

class MetadataRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class MetadataReply(_message.Message):
    __slots__ = ("partitions", "brokers")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionView]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerAddress]
    def __init__(self, partitions: _Optional[_Iterable[_Union[PartitionView, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[BrokerAddress, _Mapping]]] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("topic", "partitions", "replication", "durability", "retention_ms", "retention_bytes", "segment_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    replication: int
    durability: str
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ..., replication: _Optional[int] = ..., durability: _Optional[str] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., segment_bytes: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: TopicSettings
    def __init__(self, settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class CreateTopicReply(_message.Message):
    __slots__ = ("error", "is_away")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    error: str
    is_away: bool
    def __init__(self, error: _Optional[str] = ..., is_away: _Optional[bool] = ...) -> None: ...

class RearrangeRequest(_message.Message):
    __slots__ = ("drain", "undrain")
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    UNDRAIN_FIELD_NUMBER: _ClassVar[int]
    drain: int
    undrain: int
    def __init__(self, drain: _Optional[int] = ..., undrain: _Optional[int] = ...) -> None: ...

class RearrangeReply(_message.Message):
    __slots__ = ("error", "is_away", "partitions")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    error: str
    is_away: bool
    partitions: int
    def __init__(self, error: _Optional[str] = ..., is_away: _Optional[bool] = ..., partitions: _Optional[int] = ...) -> None: ...

class AcceptLossRequest(_message.Message):
    __slots__ = ("name", "broker_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    broker_id: int
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., broker_id: _Optional[int] = ...) -> None: ...

class AcceptLossReply(_message.Message):
    __slots__ = ("error", "is_away", "end_offset")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    IS_AWAY_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    error: str
    is_away: bool
    end_offset: int
    def __init__(self, error: _Optional[str] = ..., is_away: _Optional[bool] = ..., end_offset: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("view", "replicas", "error")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    view: ClusterView
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    error: str
    def __init__(self, view: _Optional[_Union[ClusterView, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...

class ReplicaReport(_message.Message):
    __slots__ = ("name", "incarnation", "promised_epoch", "last_epoch", "end_offset", "commit_offset", "first_offset", "leading_epoch", "caught_up", "broker_id", "trouble", "settled_config", "cannot_write")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROMISED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADING_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SETTLED_CONFIG_FIELD_NUMBER: _ClassVar[int]
    CANNOT_WRITE_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    incarnation: int
    promised_epoch: int
    last_epoch: int
    end_offset: int
    commit_offset: int
    first_offset: int
    leading_epoch: int
    caught_up: _containers.RepeatedCompositeFieldContainer[Member]
    broker_id: int
    trouble: str
    settled_config: int
    cannot_write: bool
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., incarnation: _Optional[int] = ..., promised_epoch: _Optional[int] = ..., last_epoch: _Optional[int] = ..., end_offset: _Optional[int] = ..., commit_offset: _Optional[int] = ..., first_offset: _Optional[int] = ..., leading_epoch: _Optional[int] = ..., caught_up: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., broker_id: _Optional[int] = ..., trouble: _Optional[str] = ..., settled_config: _Optional[int] = ..., cannot_write: _Optional[bool] = ...) -> None: ...

class BrokerReport(_message.Message):
    __slots__ = ("broker_id", "address", "number", "replicas")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    number: int
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaReport]
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ..., number: _Optional[int] = ..., replicas: _Optional[_Iterable[_Union[ReplicaReport, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("broker_id", "incarnation")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    incarnation: int
    def __init__(self, broker_id: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class PartitionView(_message.Message):
    __slots__ = ("name", "epoch", "leader_id", "leader_address", "replica_ids", "members", "config", "learner_id", "target_ids", "loss_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_IDS_FIELD_NUMBER: _ClassVar[int]
    LOSS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: PartitionName
    epoch: int
    leader_id: int
    leader_address: str
    replica_ids: _containers.RepeatedScalarFieldContainer[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    config: int
    learner_id: int
    target_ids: _containers.RepeatedScalarFieldContainer[int]
    loss_epoch: int
    def __init__(self, name: _Optional[_Union[PartitionName, _Mapping]] = ..., epoch: _Optional[int] = ..., leader_id: _Optional[int] = ..., leader_address: _Optional[str] = ..., replica_ids: _Optional[_Iterable[int]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., config: _Optional[int] = ..., learner_id: _Optional[int] = ..., target_ids: _Optional[_Iterable[int]] = ..., loss_epoch: _Optional[int] = ...) -> None: ...

class ClusterView(_message.Message):
    __slots__ = ("topics", "partitions", "brokers", "drained_ids")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    DRAINED_IDS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSettings]
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionView]
    brokers: _containers.RepeatedCompositeFieldContainer[BrokerAddress]
    drained_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSettings, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[PartitionView, _Mapping]]] = ..., brokers: _Optional[_Iterable[_Union[BrokerAddress, _Mapping]]] = ..., drained_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class BrokerAddress(_message.Message):
    __slots__ = ("broker_id", "address")
    BROKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    broker_id: int
    address: str
    def __init__(self, broker_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...
