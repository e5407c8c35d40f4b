"""The controller: sessions of brokers, the record, and what is told of it. ``weir.protocol`` decides who leads."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import Any

from log_broker.storage.places import DirectoryPlace
from log_broker.views import members_to_proto, name_from_proto, report_from_proto
from log_broker.waiting import EOF
from weir.protocol.log.control import PartitionControl, PartitionRecord, Report, place_replicas
from weir.rpc import log_pb2, log_pb2_grpc

log = logging.getLogger("log_broker.controller")

_DOCUMENT = "controller.json"
_DURABILITIES = ("memory", "os", "fsync")
PARTITIONS_MAX = 1024


class _Session:
    """Stream of one broker, and what it has told last."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.replicas: list[log_pb2.ReplicaReport] = []
        #: There is something to tell.
        self.news = asyncio.Event()


class Controller(log_pb2_grpc.LogControllerServicer):
    """Called by gRPC, in the process's event loop."""

    def __init__(self, directory: Path, lease_s: float) -> None:
        """Read the record.

        Args:
            directory: of the record.
            lease_s: a broker that is silent for so long is lost.

        Raises:
            LogDamagedError: the record is not what was written.
        """
        self._place = DirectoryPlace(directory)
        self._lease_s = lease_s
        self._sessions: dict[int, _Session] = {}
        document = self._place.load(_DOCUMENT) or {"topics": [], "partitions": []}
        self._topics: dict[str, dict[str, Any]] = {each["topic"]: each for each in document["topics"]}
        self._partitions = [
            PartitionControl(PartitionRecord.from_json(each)) for each in document["partitions"]
        ]

    # -- sessions

    async def Attend(self, _: Any, context: Any) -> None:
        """Hear one broker until its process ends, or is silent for too long."""
        first = await asyncio.wait_for(context.read(), self._lease_s)
        if first is EOF:
            return
        broker_id, session = first.broker_id, _Session(first.address)
        if broker_id in self._sessions:
            # Another process, or another link of the same: what the first one voted does not count.
            self._lost(broker_id)
        self._sessions[broker_id] = session
        log.info("broker %d is here, at %s", broker_id, first.address)
        teller = asyncio.create_task(self._tell(session, context))
        try:
            report = first
            while report is not EOF and self._sessions.get(broker_id) is session:
                session.replicas = list(report.replicas)
                self._decide()
                session.news.set()
                report = await asyncio.wait_for(context.read(), self._lease_s)
        except TimeoutError:
            log.warning("broker %d was silent for %.1f s", broker_id, self._lease_s)
        finally:
            teller.cancel()
            if self._sessions.get(broker_id) is session:
                self._lost(broker_id)
                self._decide()

    def _lost(self, broker_id: int) -> None:
        log.warning("broker %d is lost", broker_id)
        self._sessions.pop(broker_id, None)
        # A list: every partition must hear of it.
        if any([each.broker_lost(broker_id) for each in self._partitions]):
            self._save()

    async def leave_absent(self) -> None:
        """Take over, after a start, from leaders that are not there by then."""
        await asyncio.sleep(self._lease_s)
        for leader in {each.record.leader for each in self._partitions} - {0, *self._sessions}:
            self._lost(leader)
        self._decide()

    async def _tell(self, session: _Session, context: Any) -> None:
        told = b""
        while True:
            await session.news.wait()
            session.news.clear()
            view = self.view()
            # Again and again as long as somebody is to act on it.
            if (content := view.SerializeToString()) != told or any(
                not each.record.leader for each in self._partitions
            ):
                told = content
                await context.write(view)

    # -- decisions

    def _decide(self) -> None:
        reports: dict[Any, dict[int, Report]] = {}
        for broker_id, session in self._sessions.items():
            for each in session.replicas:
                reports.setdefault(name_from_proto(each.name), {})[broker_id] = report_from_proto(each)
        load = Counter(each.record.leader for each in self._partitions)
        has_changed = False
        for control in self._partitions:
            record = control.record
            before = record.leader
            if control.decide(reports.get((record.topic, record.partition), {}), load):
                has_changed = True
                if record.leader and record.leader != before:
                    load[record.leader] += 1
                    log.info(
                        "partition %s/%d: broker %d leads epoch %d",
                        record.topic,
                        record.partition,
                        record.leader,
                        record.epoch,
                    )
        if has_changed:
            self._save()

    def _save(self) -> None:
        """Store the record; nobody is told anything before that."""
        document = {
            "topics": list(self._topics.values()),
            "partitions": [each.record.to_json() for each in self._partitions],
        }
        self._place.save(_DOCUMENT, document, is_synced=True)
        self._tell_all()

    def _tell_all(self) -> None:
        for session in self._sessions.values():
            session.news.set()

    def view(self) -> log_pb2.ClusterView:
        """Return all that was decided."""
        addresses = {broker_id: session.address for broker_id, session in self._sessions.items()}
        return log_pb2.ClusterView(
            topics=[log_pb2.TopicSettings(**topic) for topic in self._topics.values()],
            brokers=[
                log_pb2.BrokerAddress(broker_id=broker_id, address=address)
                for broker_id, address in addresses.items()
            ],
            partitions=[
                log_pb2.PartitionView(
                    name=log_pb2.PartitionName(topic=each.record.topic, partition=each.record.partition),
                    epoch=each.record.epoch,
                    leader_id=each.record.leader,
                    leader_address=addresses.get(each.record.leader, ""),
                    replica_ids=each.record.replicas,
                    members=members_to_proto(each.record.members),
                )
                for each in self._partitions
            ],
        )

    # -- topics

    async def CreateTopic(
        self, request: log_pb2.CreateTopicRequest, context: Any
    ) -> log_pb2.CreateTopicReply:
        """Create a topic; again with the same settings: nothing."""
        return log_pb2.CreateTopicReply(error=self._create(request.settings))

    def _create(self, asked: log_pb2.TopicSettings) -> str:
        settings = {field.name: getattr(asked, field.name) for field in asked.DESCRIPTOR.fields}
        known = self._topics.get(asked.topic)
        if known is not None:
            return "" if known == settings else f"topic {asked.topic} is there with other settings: {known}"
        if error := _mistake(asked, len(self._sessions)):
            return error
        self._topics[asked.topic] = settings
        placed = place_replicas(asked.partitions, asked.replication, self._sessions, len(self._partitions))
        self._partitions += [
            PartitionControl(PartitionRecord(asked.topic, partition, replicas))
            for partition, replicas in enumerate(placed)
        ]
        self._save()
        return ""

    async def Status(self, request: log_pb2.StatusRequest, context: Any) -> log_pb2.StatusReply:
        """Say what every broker has told last."""
        replicas = [each for session in self._sessions.values() for each in session.replicas]
        return log_pb2.StatusReply(view=self.view(), replicas=replicas)


def _mistake(asked: log_pb2.TopicSettings, brokers: int) -> str:
    """Say what is wrong with the settings of a new topic; "": nothing."""
    name = asked.topic
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        return f"{name!r} is no name of a topic: use letters, digits, -, _ and ."
    if not 0 < asked.partitions <= PARTITIONS_MAX:
        return f"topic {name}: {asked.partitions} partitions are not possible; from 1 to {PARTITIONS_MAX} are"
    if not 0 < asked.replication <= brokers:
        return f"topic {name}: {asked.replication} replicas need as many brokers, and {brokers} are here"
    if asked.durability not in _DURABILITIES:
        return f"topic {name}: durability {asked.durability!r} is none of {', '.join(_DURABILITIES)}"
    if asked.durability == "memory" and not (asked.retention_bytes or asked.retention_ms):
        return f"topic {name}: durability memory needs a bound: give a retention"
    return ""
