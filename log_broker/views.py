"""Conversions between messages of the log and what decides."""

from __future__ import annotations

from log_broker.partition import PartitionId, PartitionSettings
from log_broker.storage.partition_log import LogSettings
from weir.protocol.log.control import Report
from weir.rpc import log_pb2

#: Smaller segments cost more than they keep apart.
_SEGMENT_BYTES_MIN = 1 << 20


def name_to_proto(name: PartitionId) -> log_pb2.PartitionName:
    """Return the message."""
    return log_pb2.PartitionName(topic=name.topic, partition=name.partition)


def name_from_proto(message: log_pb2.PartitionName) -> PartitionId:
    """Read the message."""
    return PartitionId(message.topic, message.partition)


def settings_from_proto(message: log_pb2.TopicSettings) -> PartitionSettings:
    """What a topic says of each of its partitions."""
    segment_bytes = message.segment_bytes or LogSettings.segment_bytes
    if message.retention_bytes:
        # Whole segments are removed: a few make up what is kept.
        segment_bytes = min(segment_bytes, max(message.retention_bytes // 4, _SEGMENT_BYTES_MIN))
    kept = LogSettings(
        segment_bytes=segment_bytes,
        retention_ms=message.retention_ms,
        retention_bytes=message.retention_bytes,
    )
    return PartitionSettings(message.replication, message.durability, kept)


def report_to_proto(
    broker_id: int, name: PartitionId, report: Report, first_offset: int, trouble: str
) -> log_pb2.ReplicaReport:
    """What a broker tells the controller of one replica."""
    return log_pb2.ReplicaReport(
        broker_id=broker_id,
        name=name_to_proto(name),
        incarnation=report.incarnation,
        promised_epoch=report.promised_epoch,
        last_epoch=report.last_epoch,
        end_offset=report.end_offset,
        commit_offset=report.commit_offset,
        first_offset=first_offset,
        leading_epoch=report.leading_epoch,
        caught_up=members_to_proto(dict(report.caught_up)),
        settled_config=report.settled_config,
        trouble=trouble,
        cannot_write=report.cannot_write,
    )


def report_from_proto(message: log_pb2.ReplicaReport) -> Report:
    """Read what decides; the rest is for people."""
    return Report(
        message.incarnation,
        message.promised_epoch,
        message.last_epoch,
        message.end_offset,
        message.leading_epoch,
        members_from_proto(message.caught_up),
        message.commit_offset,
        message.settled_config,
        message.cannot_write,
    )


def members_to_proto(members: dict[int, int]) -> list[log_pb2.Member]:
    """Brokers with the incarnation of their data."""
    return [
        log_pb2.Member(broker_id=broker_id, incarnation=incarnation)
        for broker_id, incarnation in members.items()
    ]


def members_from_proto(messages: object) -> dict[int, int]:
    """Brokers with the incarnation of their data."""
    return {each.broker_id: each.incarnation for each in messages}  # type: ignore[attr-defined]
