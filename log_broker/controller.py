"""The controller: sessions of brokers, the record, and what is told of it. ``weir.protocol`` decides who leads."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from log_broker.record import ControllerRecord, RecordSaver
from log_broker.views import members_to_proto, name_from_proto, report_from_proto
from log_broker.waiting import EOF, start
from weir.clock import SystemClock
from weir.protocol.log.control import PartitionControl, PartitionRecord, Report
from weir.protocol.log.placement import balanced, place_replicas, without_broker
from weir.records.file_keeper import Keeper
from weir.rpc import log_pb2, log_pb2_grpc
from weir.rpc.log_status import LogStatus, status_of

log = logging.getLogger("log_broker.controller")

_DURABILITIES = ("memory", "os", "fsync")
PARTITIONS_MAX = 1024
#: Of all topics together: each broker tells of all its replicas several times a second, and hears of all partitions.
ALL_PARTITIONS_MAX = 4096
#: Leaders move to brokers that are to lead this often, one at a time.
_MOVE_EVERY_S = 1.0
#: Not before a leader has led for so long; one that is to go moves at once.
_STAYS_S = 5.0
#: Nor to a broker that has been silent for so long: an election would wait for it.
_SILENT_S = 0.5
#: After its start a controller gives brokers so long to come before it says that there are too few.
_GATHER_S = 5.0
_GATHER_EVERY_S = 0.05
#: Retention by whole segments is no finer.
RETENTION_MS_MIN = 5_000
#: Of a topic's name, which is a part of names of folders.
_NAME_BYTES_MAX = 200
#: A broker hears something at least so often: it looks for another controller if this one stands still.
_TELL_EVERY_S = 1.0
#: For a view that a broker is being told when its stream ends.
_LAST_VIEW_S = 1.0


class _Session:
    """Stream of one broker, and what it has told last."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.replicas: list[log_pb2.ReplicaReport] = []
        self.heard_s = 0.0
        #: There is something to tell, or the stream has ended.
        self.news = asyncio.Event()
        self.is_over = False


class Controller(log_pb2_grpc.LogControllerServicer):
    """Called by gRPC, in the process's event loop."""

    def __init__(self, keeper: Keeper, lease_s: float) -> None:
        """Read the record, for a moment only.

        Args:
            keeper: of the record; this process leads there.
            lease_s: a broker that is silent for so long is lost.

        Raises:
            CheckpointError: the record cannot be read.
            LogDamagedError: the record is not what was written.
        """
        self._lease_s = lease_s
        self._clock = SystemClock()
        self._began_s = self._clock.monotonic_s()
        self._sessions: dict[int, _Session] = {}
        #: What is stored: nobody hears of anything else.
        self._stored = ControllerRecord.from_bytes(keeper.load(), keeper.place)
        self._topics = dict(self._stored.topics)
        self._drained = set(self._stored.drained)
        self._partitions = [
            PartitionControl(PartitionRecord.from_json(each.to_json())) for each in self._stored.partitions
        ]
        self._saver = RecordSaver(keeper, self._has_stored)
        #: What brokers are told, and its bytes; None: something has changed since. Reports come several times a second.
        self._told: tuple[log_pb2.ClusterView, bytes] | None = None

    async def store(self) -> None:
        """Store whatever is decided, until cancelled.

        Raises:
            SupersededError: another controller leads.
        """
        await self._saver.run()

    # -- sessions

    async def Attend(self, _: Any, context: Any) -> None:
        """Hear one broker until its process ends, or is silent for too long."""
        try:
            first = await asyncio.wait_for(context.read(), self._lease_s)
        except TimeoutError:
            return
        if first is EOF:
            return
        broker_id, session = first.broker_id, _Session(first.address)
        if broker_id in self._sessions:
            # Another process, or another link of the same: what the first one voted does not count.
            self._warn_of_namesake(broker_id, first.address)
            self._lost(broker_id)
        self._sessions[broker_id] = session
        self._told = None
        log.info("broker %d is here, at %s", broker_id, first.address)
        teller = start(self._tell(session, context), f"what broker {broker_id} is told")
        try:
            report = first
            while report is not EOF and self._sessions.get(broker_id) is session:
                session.replicas = list(report.replicas)
                session.heard_s = asyncio.get_running_loop().time()
                self._decide()
                session.news.set()
                report = await asyncio.wait_for(context.read(), self._lease_s)
        except TimeoutError:
            log.warning("broker %d was silent for %.1f s", broker_id, self._lease_s)
        finally:
            if self._sessions.get(broker_id) is session:
                self._lost(broker_id)
                self._decide()
            session.is_over = True
            session.news.set()
            # A call that is refused while it is told something ends with a traceback of gRPC.
            await asyncio.wait([teller], timeout=_LAST_VIEW_S)
            teller.cancel()

    def _warn_of_namesake(self, broker_id: int, address: str) -> None:
        before = self._sessions[broker_id].address
        if before != address:
            log.warning(
                "two processes are broker %d: at %s and at %s; stop one, or give it an --id and a --dir of its own",
                broker_id,
                before,
                address,
            )

    def _lost(self, broker_id: int) -> None:
        log.warning("broker %d is lost", broker_id)
        self._sessions.pop(broker_id, None)
        self._told = None
        # A list: every partition must hear of it.
        if any([each.broker_lost(broker_id) for each in self._partitions]):
            self._save()

    async def leave_absent(self) -> None:
        """Take over, after a start, from leaders that are not there by then."""
        await asyncio.sleep(self._lease_s)
        for leader in {each.record.leader for each in self._partitions} - {0, *self._sessions}:
            self._lost(leader)
        self._decide()

    async def move_leaders(self) -> None:
        """Let brokers lead again that are to, one partition after the other; never returns."""
        #: By partition: the epoch, and since when it has been that.
        known = dict[tuple[str, int], tuple[int, float]]()
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_MOVE_EVERY_S)
            now_s = loop.time()
            reports = self._reports(heard_after_s=now_s - _SILENT_S)
            for control in self._partitions:
                record = control.record
                name, before = (record.topic, record.partition), record.leader
                # Epoch 0 is that of a partition that has just been created.
                if known.get(name, (-1, 0.0))[0] != record.epoch:
                    known[name] = record.epoch, now_s
                latest = reports.get((record.topic, record.partition), {})
                is_to_go = bool(record.target) and record.leader not in record.target
                is_to_go = is_to_go or control.leader_cannot_write(latest)
                if not is_to_go and now_s - known[name][1] < _STAYS_S:
                    continue
                if control.move_leader(latest):
                    log.info(
                        "partition %s/%d: another broker than %d is to lead",
                        record.topic,
                        record.partition,
                        before,
                    )
                    self._save()
                    break

    async def _tell(self, session: _Session, context: Any) -> None:
        told, loop = b"", asyncio.get_running_loop()
        told_s = loop.time()
        while True:
            # Set by each report of the broker, several times a second.
            await session.news.wait()
            if session.is_over:
                return
            session.news.clear()
            view, content = self._view_told()
            # Again and again as long as somebody is to act on it.
            is_open = any(not each.leader for each in self._stored.partitions)
            is_late = loop.time() - told_s >= _TELL_EVERY_S
            if content != told or is_late or is_open:
                told, told_s = content, loop.time()
                await context.write(view)

    def _view_told(self) -> tuple[log_pb2.ClusterView, bytes]:
        if self._told is None:
            view = self.view()
            self._told = view, view.SerializeToString()
        return self._told

    # -- decisions

    def _reports(self, heard_after_s: float = 0.0) -> dict[Any, dict[int, Report]]:
        reports: dict[Any, dict[int, Report]] = {}
        for broker_id, session in self._sessions.items():
            if session.heard_s < heard_after_s:
                continue
            for each in session.replicas:
                reports.setdefault(name_from_proto(each.name), {})[broker_id] = report_from_proto(each)
        return reports

    def _decide(self) -> None:
        reports = self._reports()
        load = Counter(each.record.leader for each in self._partitions)
        has_changed = False
        for control in self._partitions:
            record = control.record
            before, replicas = record.leader, list(record.replicas)
            latest = reports.get((record.topic, record.partition), {})
            if record.leader in self._sessions and record.leader not in latest:
                # Its process began after this was recorded, and cannot open what it has.
                has_changed = control.broker_lost(record.leader) or has_changed
            if control.decide(latest, load):
                has_changed = True
                if record.replicas != replicas:
                    log.info(
                        "partition %s/%d: replicas are %s, they were %s",
                        record.topic,
                        record.partition,
                        record.replicas,
                        replicas,
                    )
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
        """Let the record be stored; nobody is told anything before that."""
        partitions = [each.record for each in self._partitions]
        self._saver.want(ControllerRecord(self._topics, frozenset(self._drained), partitions))

    def _has_stored(self, record: ControllerRecord) -> None:
        self._stored = record
        self._told = None
        self._tell_all()

    def _tell_all(self) -> None:
        for session in self._sessions.values():
            session.news.set()

    def view(self) -> log_pb2.ClusterView:
        """Return all that was decided and is stored."""
        addresses = {broker_id: session.address for broker_id, session in self._sessions.items()}
        return log_pb2.ClusterView(
            topics=[log_pb2.TopicSettings(**topic) for topic in self._stored.topics.values()],
            brokers=[
                log_pb2.BrokerAddress(broker_id=broker_id, address=address)
                for broker_id, address in addresses.items()
            ],
            partitions=[
                log_pb2.PartitionView(
                    name=log_pb2.PartitionName(topic=each.topic, partition=each.partition),
                    epoch=each.epoch,
                    leader_id=each.leader,
                    leader_address=addresses.get(each.leader, ""),
                    replica_ids=each.replicas,
                    members=members_to_proto(each.members),
                    config=each.config,
                    learner_id=each.learner,
                    target_ids=each.target,
                    loss_epoch=each.loss_epoch,
                )
                for each in self._stored.partitions
            ],
            drained_ids=sorted(self._stored.drained),
        )

    # -- topics

    async def CreateTopic(
        self, request: log_pb2.CreateTopicRequest, context: Any
    ) -> log_pb2.CreateTopicReply:
        """Create a topic; again with the same settings: nothing."""
        await self._gather(request.settings)
        error = self._create(request.settings)
        return log_pb2.CreateTopicReply(error=error or await self._saver.until_stored())

    async def _gather(self, asked: log_pb2.TopicSettings) -> None:
        """Wait for brokers that have been started with this controller."""
        until_s = self._began_s + _GATHER_S
        while len(self._sessions) < asked.replication and self._clock.monotonic_s() < until_s:
            await asyncio.sleep(_GATHER_EVERY_S)

    def _create(self, asked: log_pb2.TopicSettings) -> str:
        settings = {field.name: getattr(asked, field.name) for field in asked.DESCRIPTOR.fields}
        known = self._topics.get(asked.topic)
        if known is not None:
            return "" if known == settings else f"topic {asked.topic} is there with other settings: {known}"
        brokers = self._sessions.keys() - self._drained
        if error := _mistake(asked, len(brokers), len(self._partitions)):
            return error
        self._topics[asked.topic] = settings
        placed = place_replicas(asked.partitions, asked.replication, brokers, len(self._partitions))
        self._partitions += [
            PartitionControl(PartitionRecord(asked.topic, partition, replicas))
            for partition, replicas in enumerate(placed)
        ]
        self._save()
        return ""

    async def Rearrange(self, request: log_pb2.RearrangeRequest, context: Any) -> log_pb2.RearrangeReply:
        """Begin to move replicas; the brokers are asked for their state to see how far it is."""
        brokers = self._sessions.keys() - self._drained - {request.drain} | (
            {request.undrain} if request.undrain in self._sessions else set()
        )
        controls = dict(enumerate(self._partitions))
        known = {
            each for control in self._partitions for each in control.record.replicas
        } | self._sessions.keys()
        if unknown := {request.drain, request.undrain} - known - {0}:
            return log_pb2.RearrangeReply(
                error=f"there is no broker {min(unknown)}: the brokers are {sorted(known)}"
            )
        placed = {number: each.record.target or each.record.replicas for number, each in controls.items()}
        if request.undrain:
            self._drained.discard(request.undrain)
            moves = dict[int, list[int]]()
        elif request.drain:
            moves = without_broker(placed, request.drain, brokers)
            if left := [
                number for number, each in placed.items() if request.drain in each and number not in moves
            ]:
                record = controls[left[0]].record
                return log_pb2.RearrangeReply(
                    error=f"broker {request.drain} cannot be drained: partition {record.topic}/{record.partition} has "
                    f"{len(placed[left[0]])} replicas, and only brokers {sorted(brokers)} may have them: "
                    "start another"
                )
            self._drained.add(request.drain)
        else:
            moves = balanced(placed, brokers)
        for number, target in moves.items():
            controls[number].rearrange(target)
        self._save()
        return log_pb2.RearrangeReply(partitions=len(moves), error=await self._saver.until_stored())

    async def AcceptLoss(self, request: log_pb2.AcceptLossRequest, context: Any) -> log_pb2.AcceptLossReply:
        """Let a partition go on with one broker's data, since an operator says that a majority is lost for good."""
        name, broker_id = name_from_proto(request.name), request.broker_id
        found = [each for each in self._partitions if (each.record.topic, each.record.partition) == name]
        if not found:
            return log_pb2.AcceptLossReply(error=f"there is no partition {name}; weir log status lists them")
        record = found[0].record
        before = record.loss_epoch
        error = found[0].accept_loss(broker_id, self._reports().get(name, {}))
        if error:
            return log_pb2.AcceptLossReply(error=f"partition {name}: {error}")
        if record.loss_epoch != before:
            log.warning(
                "partition %s: a loss is accepted: broker %d has it up to offset %d, and what others had is gone",
                name,
                broker_id,
                record.loss_end_offset,
            )
            self._save()
        return log_pb2.AcceptLossReply(
            end_offset=record.loss_end_offset, error=await self._saver.until_stored()
        )

    async def Status(self, request: log_pb2.StatusRequest, context: Any) -> log_pb2.StatusReply:
        """Say what every broker has told last."""
        return self._status()

    def _status(self) -> log_pb2.StatusReply:
        replicas = [each for session in self._sessions.values() for each in session.replicas]
        return log_pb2.StatusReply(view=self.view(), replicas=replicas)

    def status(self) -> LogStatus:
        """Return the state of the whole log."""
        return status_of(self._status())


def _mistake(asked: log_pb2.TopicSettings, brokers: int, partitions: int) -> str:
    """Say what is wrong with the settings of a new topic, beside so many partitions of others; "": nothing."""
    name = asked.topic
    if not name or not all(letter.isalnum() or letter in "-_." for letter in name) or name.startswith("."):
        return f"{name!r} is no name of a topic: use letters, digits, -, _ and ."
    if len(name.encode()) > _NAME_BYTES_MAX:
        return (
            f"topic {name[:20]}...: a name has at most {_NAME_BYTES_MAX} bytes, this one {len(name.encode())}"
        )
    if not 0 < asked.partitions <= PARTITIONS_MAX:
        return f"topic {name}: {asked.partitions} partitions are not possible; from 1 to {PARTITIONS_MAX} are"
    if partitions + asked.partitions > ALL_PARTITIONS_MAX:
        return (
            f"topic {name}: {asked.partitions} more partitions are not possible: the log has {partitions}, and "
            f"{ALL_PARTITIONS_MAX} is the most; start another log, on other ports and with another --dir"
        )
    if not 0 < asked.replication <= brokers:
        return f"topic {name}: {asked.replication} replicas need as many brokers, and {brokers} are here"
    if asked.durability not in _DURABILITIES:
        return f"topic {name}: durability {asked.durability!r} is none of {', '.join(_DURABILITIES)}"
    if 0 < asked.retention_ms < RETENTION_MS_MIN:
        return f"topic {name}: a retention of {asked.retention_ms} ms is too short; the least is {RETENTION_MS_MIN}"
    if asked.durability == "memory" and not asked.retention_bytes:
        return f"topic {name}: durability memory needs a bound: give a retention in bytes"
    return ""
