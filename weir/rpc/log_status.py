"""State of the replicated log, as the controller or a broker tells it: for clients, commands and the page ``/log``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weir.rpc import log_pb2


@dataclass(frozen=True)
class ReplicaStatus:
    """State of one replica, as its broker has told it last."""

    broker_id: int
    #: Whether it votes and counts; else it is filled first.
    is_member: bool
    first_offset: int
    end_offset: int
    commit_offset: int
    #: Why its data began anew, if it did since the broker began.
    trouble: str


@dataclass(frozen=True)
class PartitionStatus:
    """State of one partition."""

    topic: str
    partition: int
    epoch: int
    #: 0: nobody leads at the moment.
    leader_id: int
    leader_address: str
    #: Brokers that are to have it, in order of preference.
    replica_ids: tuple[int, ...]
    #: Of those that are there.
    replicas: tuple[ReplicaStatus, ...]
    #: What ``replica_ids`` are to become; empty: they stay.
    target_ids: tuple[int, ...] = ()

    @property
    def commit_offset(self) -> int:
        """Offset before which all is committed, as far as anybody has told."""
        return max((each.commit_offset for each in self.replicas), default=0)


@dataclass(frozen=True)
class LogStatus:
    """State of the whole log."""

    #: Addresses by id, of those that are there.
    brokers: dict[int, str]
    partitions: tuple[PartitionStatus, ...]
    #: Why this is only what one broker knows; "": it is all.
    trouble: str
    #: Brokers that are to have no replicas.
    drained_ids: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return what ``weir log status --json`` prints and ``/log`` answers."""
        document = asdict(self)
        document["brokers"] = {str(number): address for number, address in self.brokers.items()}
        return document


def status_of(reply: log_pb2.StatusReply) -> LogStatus:
    """Read what the controller, or a broker, has answered."""
    partitions = []
    for view in reply.view.partitions:
        members = {(each.broker_id, each.incarnation) for each in view.members}
        replicas = tuple(
            ReplicaStatus(
                each.broker_id,
                (each.broker_id, each.incarnation) in members,
                each.first_offset,
                each.end_offset,
                each.commit_offset,
                each.trouble,
            )
            for each in reply.replicas
            if each.name == view.name
        )
        partitions.append(
            PartitionStatus(
                view.name.topic,
                view.name.partition,
                view.epoch,
                view.leader_id,
                view.leader_address,
                tuple(view.replica_ids),
                tuple(sorted(replicas, key=lambda each: each.broker_id)),
                tuple(view.target_ids),
            )
        )
    addresses = {each.broker_id: each.address for each in reply.view.brokers}
    return LogStatus(addresses, tuple(partitions), reply.error, tuple(reply.view.drained_ids))
