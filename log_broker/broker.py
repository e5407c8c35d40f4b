"""What a broker holds and does, apart from being called: its replicas, and what the controller has decided of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from pathlib import Path

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.partition import PartitionId, PartitionReplica
from log_broker.peers import Peers
from log_broker.replication import FollowerStream
from log_broker.storage.partition_log import RECENT_BYTES_MAX
from log_broker.storage.removal import REMOVER
from log_broker.views import members_from_proto, name_from_proto, report_to_proto, settings_from_proto
from log_broker.waiting import end, start
from weir.clock import Clock
from weir.rpc import log_pb2

log = logging.getLogger("log_broker.broker")

_TICK_S = 0.1
#: Newest entries in memory, of all partitions together.
_RECENT_BYTES_MAX = 128 << 20


class Broker:
    """Holds what a process is; everything runs in its event loop."""

    def __init__(self, broker_id: int, directory: Path, clock: Clock) -> None:
        """``directory``: each replica gets one below it."""
        self.broker_id = broker_id
        self._directory = directory
        REMOVER.go_on(directory)
        self._clock = clock
        self.replicas: dict[PartitionId, PartitionReplica] = {}
        self.peers = Peers()
        self.view = log_pb2.ClusterView()
        #: Set when the controller is to hear something at once.
        self.news = asyncio.Event()
        self._streams: dict[tuple[PartitionId, int], tuple[FollowerStream, asyncio.Task[None]]] = {}
        self._syncs: dict[PartitionId, asyncio.Task[None]] = {}
        #: What was told last of a partition, so that it is told once and not at each view.
        self._complaints: dict[PartitionId, str] = {}

    # -- what the controller has decided

    def apply(self, view: log_pb2.ClusterView) -> None:
        """Do what the controller has decided: make replicas, promise epochs, begin to lead."""
        self.view = view
        topics = {topic.topic: topic for topic in view.topics}
        addresses = {each.broker_id: each.address for each in view.brokers}
        for partition in view.partitions:
            name = name_from_proto(partition.name)
            if self.broker_id not in (*partition.replica_ids, partition.learner_id):
                self._leave(name, partition)
                continue
            try:
                replica = self._replica(name, topics[name.topic])
                self._apply_to(replica, partition, addresses)
            except LogDamagedError as error:
                self.replicas[name].damaged(error)
            except (LogWriteError, OSError) as error:
                # Of one partition: the others go on, and the view comes again.
                self._complain(name, str(error))
            else:
                self._complaints.pop(name, None)

    def _complain(self, name: PartitionId, why: str) -> None:
        if self._complaints.get(name) != why:
            log.error("partition %s: %s; tried again", name, why)
        self._complaints[name] = why

    def _share_memory(self) -> None:
        """Let the newest entries of all partitions together have a bound, however many there are."""
        for replica in self.replicas.values():
            replica.keep_recent(min(RECENT_BYTES_MAX, _RECENT_BYTES_MAX // len(self.replicas)))

    def _replica(self, name: PartitionId, topic: log_pb2.TopicSettings) -> PartitionReplica:
        replica = self.replicas.get(name)
        if replica is None:
            settings = settings_from_proto(topic)
            replica = PartitionReplica(
                self.broker_id,
                name,
                settings,
                self._directory / f"{name.topic}-{name.partition}",
                self._clock,
            )
            self.replicas[name] = replica
            self._share_memory()
            self._syncs[name] = start(replica.sync_forever(), f"sync of {name}")
            self.news.set()
        return replica

    def _leave(self, name: PartitionId, decided: log_pb2.PartitionView) -> None:
        """Delete a replica that was moved away, if this process had it; not by an older record than it has heard of.

        What else is in the folder stays: it may be another broker's, if ``--dir`` or ``--id`` is wrong.
        """
        replica = self.replicas.get(name)
        if replica is None or decided.epoch < replica.machine.promised_epoch:
            return
        if not replica.hears(decided.epoch, decided.config):
            return
        del self.replicas[name]
        self._share_memory()
        self._syncs.pop(name).cancel()
        # Streams from a leader, and to followers, end.
        replica.stream_number += 1
        replica.machine.leading_epoch = 0
        replica.changed()
        self._drop_streams(name, keep=())
        try:
            replica.remove()
        except OSError as error:
            log.error("partition %s was moved away, and cannot be deleted: %s", name, error)
        else:
            log.info("partition %s was moved away, and is deleted", name)
        self.news.set()

    def _drop_streams(self, name: PartitionId, keep: Collection[int]) -> None:
        """End the streams of a partition to brokers that are no longer to have it."""
        for key in [key for key in self._streams if key[0] == name and key[1] not in keep]:
            self._streams.pop(key)[1].cancel()

    def _apply_to(
        self, replica: PartitionReplica, decided: log_pb2.PartitionView, addresses: dict[int, str]
    ) -> None:
        machine = replica.machine
        if not replica.hears(decided.epoch, decided.config):
            return
        machine.loss_accepted(decided.loss_epoch)
        if decided.epoch > replica.stored_promise:
            replica.promise(decided.epoch)
            self.news.set()
        members = members_from_proto(decided.members)
        if members.get(self.broker_id) == machine.incarnation:
            replica.drop_aside()
        if decided.leader_id == self.broker_id and machine.may_lead(decided.epoch, members):
            replica.lead(decided.epoch, members, len(decided.replica_ids), decided.config)
            self.news.set()
        if machine.leading_epoch and machine.leading_epoch == decided.epoch:
            if machine.config != decided.config:
                replica.reconfigure(members, len(decided.replica_ids), decided.config)
            elif machine.members != members:
                machine.set_members(members)
                replica.changed()
            self._send_to_followers(replica, decided, addresses)

    def _send_to_followers(
        self, replica: PartitionReplica, decided: log_pb2.PartitionView, addresses: dict[int, str]
    ) -> None:
        followers = [*decided.replica_ids, *([decided.learner_id] if decided.learner_id else [])]
        self._drop_streams(replica.name, keep=followers)
        for follower_id in followers:
            address = addresses.get(follower_id)
            if follower_id == self.broker_id or address is None:
                continue
            key = (replica.name, follower_id)
            running = self._streams.get(key)
            if running is not None:
                stream, task = running
                if not task.done() and stream.epoch == decided.epoch and stream.address == address:
                    continue
                task.cancel()
            stream = FollowerStream(replica, follower_id, address, self.peers)
            self._streams[key] = (stream, start(stream.run(), f"stream to broker {follower_id}"))

    # -- what is told

    def reports(self) -> list[log_pb2.ReplicaReport]:
        """Return what the controller is told of every replica."""
        return [
            report_to_proto(
                self.broker_id,
                replica.name,
                replica.report(),
                replica.log.first_offset,
                replica.trouble or replica.cannot_write,
            )
            for replica in self.replicas.values()
        ]

    def leader_address(self, name: PartitionId) -> str:
        """Return where a partition is led, as far as this broker has heard; "unknown" while nobody leads."""
        for partition in self.view.partitions:
            if name_from_proto(partition.name) == name:
                return partition.leader_address or "unknown"
        return "unknown"

    def leads(self, name: PartitionId) -> PartitionReplica | None:
        """Return the replica of a partition if it leads here."""
        replica = self.replicas.get(name)
        return replica if replica is not None and replica.machine.leading_epoch else None

    # -- time and end

    async def tick_forever(self) -> None:
        """Remove old segments, and let followers hear what is committed."""
        while True:
            await asyncio.sleep(_TICK_S)
            for replica in list(self.replicas.values()):
                replica.tick()

    async def close(self) -> None:
        """End in order."""
        for _, task in self._streams.values():
            await end(task)
        for task in self._syncs.values():
            await end(task)
        await self.peers.close()
        for replica in self.replicas.values():
            try:
                replica.close()
            except (LogWriteError, LogDamagedError) as error:
                # Of one partition: the others end in order.
                log.error("partition %s does not count as whole: %s", replica.name, error)
