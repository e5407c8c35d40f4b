"""The simulated controller, producers and readers."""

from __future__ import annotations

import json
from typing import Any

from experiments.log_linear import NEVER, Append, Read
from experiments.log_simulation.broker import REPLICAS, SimBroker
from experiments.log_simulation.machines import Machines
from experiments.log_simulation.world import Node, Stream, World
from weir.protocol.log.control import PartitionRecord, Report
from weir.protocol.log.entries import Header
from weir.protocol.log.outbox import Outbox, Sent

_LEASE_MS = 250.0
_RETRY_MS = 25.0
_SILENCE_MS = 300.0
_MOVE_MS = 200.0


class SimController(Node):
    """Decides for one partition; its record outlives it."""

    def __init__(self, world: World, machines: Machines) -> None:
        super().__init__(world, "controller")
        self._machines = machines
        record = PartitionRecord("wal", 0, list(range(1, REPLICAS + 1)))
        self._stored = self._stored_before = json.dumps(record.to_json())

    def boot(self) -> None:
        """Start from the record; leaders that are not there after a lease are lost."""
        self.is_up = True
        if not self._machines.keeps_record:
            self._stored = self._stored_before
        self.control = self._machines.control(PartitionRecord.from_json(json.loads(self._stored)))
        self._reports: dict[int, Report] = {}
        self._sessions: dict[int, Stream] = {}
        self._heard_ms: dict[int, float] = {}
        self.later(_LEASE_MS, self._look)
        self.later(_LEASE_MS, self._leave_absent)
        self.later(_MOVE_MS, self._move_leader)

    def _leave_absent(self) -> None:
        leader = self.control.record.leader
        if leader and leader not in self._sessions:
            self._lost(leader)

    def _move_leader(self) -> None:
        if self.control.move_leader(self._reports):
            self._store()
        self.later(_MOVE_MS, self._move_leader)

    def rearrange(self, target: list[int]) -> None:
        """Ask for other replicas."""
        if self.control.rearrange(target):
            self._store()

    def _look(self) -> None:
        for broker_id, heard_ms in list(self._heard_ms.items()):
            if self.world.now_ms - heard_ms > _LEASE_MS:
                self._sessions[broker_id].close()
                self._lost(broker_id)
        self.later(_LEASE_MS / 4, self._look)

    def take_report(self, stream: Stream, report: Report | None) -> None:
        """Hear a broker; called by its stream. None: it has no replica."""
        broker_id = stream.state
        if self._sessions.get(broker_id) is not stream:
            if broker_id in self._sessions:
                self._lost(broker_id)
            self._sessions[broker_id] = stream
        self._heard_ms[broker_id] = self.world.now_ms
        if report is None:
            self._reports.pop(broker_id, None)
        else:
            self._reports[broker_id] = report
        self._decide()
        stream.send(self, self._view())

    def session_ended(self, stream: Stream) -> None:
        """Note that a broker is lost; called by its stream."""
        if self._sessions.get(stream.state) is stream:
            self._lost(stream.state)

    def _lost(self, broker_id: int) -> None:
        for each in (self._reports, self._sessions, self._heard_ms):
            each.pop(broker_id, None)
        if self.control.broker_lost(broker_id):
            self._store()
        self._decide()

    def _decide(self) -> None:
        if self.control.decide(self._reports, {}):
            self._store()

    def _store(self) -> None:
        self._stored_before, self._stored = self._stored, json.dumps(self.control.record.to_json())
        for stream in list(self._sessions.values()):
            stream.send(self, self._view())

    def _view(self) -> tuple[int, int, dict[int, int], tuple[int, ...], int, int]:
        record = self.control.record
        members, replicas = dict(record.members), tuple(record.replicas)
        return record.epoch, record.leader, members, replicas, record.learner, record.config

    @property
    def record(self) -> PartitionRecord:
        """What is stored."""
        return PartitionRecord.from_json(json.loads(self._stored))


class SimProducer(Node):
    """Sends batches of ascending ids, and notes what becomes of them."""

    def __init__(self, world: World, number: int, brokers: list[SimBroker], deadline_ms: float) -> None:
        super().__init__(world, f"producer-{number}")
        self._brokers = brokers
        self._producer_id = number
        self._deadline_ms = deadline_ms
        self._next_id = number * 1_000_000
        self._outbox: Outbox[tuple[Header, tuple[int, ...]]] = Outbox(3, 1 << 30, epoch=1)
        self._takes_over = False
        self._stream: Stream | None = None
        self._is_open = False
        self._heard_ms = 0.0
        self.is_done = False
        #: Offsets by id.
        self.acknowledged: dict[int, int] = {}
        self.rejected: set[int] = set()
        #: How many batches were not taken.
        self.refusals = 0
        #: When a record was sent, and when it was acknowledged, by id.
        self.called_ms: dict[int, float] = {}
        self.returned_ms: dict[int, float] = {}

    def appends(self) -> list[Append]:
        """Return what this producer has done."""
        return [
            Append(
                record_id,
                called_ms / 1000,
                self.returned_ms.get(record_id, NEVER) / 1000,
                self.acknowledged.get(record_id),
                is_rejected=record_id in self.rejected,
            )
            for record_id, called_ms in self.called_ms.items()
        ]

    def boot(self) -> None:
        """Begin."""
        self.is_up = True
        self._connect()
        self._look()

    @property
    def is_idle(self) -> bool:
        """Whether everything has an answer."""
        return not self._outbox.unanswered

    def _connect(self) -> None:
        having = [each for each in self._brokers if each.is_up and each.has_replica]
        broker = self.world.random.choice(having or self._brokers)
        if broker.is_up and broker.view is not None and broker.view[1]:
            broker = self._brokers[broker.view[1] - 1]
        self._is_open = False
        self._heard_ms = self.world.now_ms
        self._stream = Stream(self, broker, self._take, broker.take_batch, self._ended, broker.producer_ended)
        self._stream.send(self, ("open", self._producer_id, 0 if self._takes_over else self._outbox.epoch))

    def _ended(self, stream: Stream) -> None:
        if self._stream is stream:
            self._outbox.disconnected()
            self._is_open = False
            self._stream = None
            self.later(self.world.random.uniform(0, _RETRY_MS), self._connect)

    def _look(self) -> None:
        """Give up what has had its time, leave a silent leader, and send more."""
        now_ms = self.world.now_ms
        if self._outbox.expired(int(now_ms)):
            self._takes_over = True
            self._leave()
        if now_ms - self._heard_ms > _SILENCE_MS and (not self._is_open or self._outbox.unanswered):
            self._leave()
        if self._is_open and not self.is_done:
            self._add()
        self._send()
        self.later(self.world.random.uniform(2, 20), self._look)

    def _leave(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _add(self) -> None:
        if not self._outbox.has_room() or self._takes_over:
            return
        count = self.world.random.randint(1, 3)
        ids = tuple(range(self._next_id, self._next_id + count))
        self._next_id += count
        self.called_ms.update(dict.fromkeys(ids, self.world.now_ms))
        outbox = self._outbox
        header = Header(
            0, count, ids[0], ids[-1], self._producer_id, outbox.epoch, outbox.next_sequence, 0, 0
        )
        outbox.add((header, ids), 1, int(self.world.now_ms + self._deadline_ms))

    def _send(self) -> None:
        while self._is_open and self._stream is not None and (sent := self._outbox.to_send()) is not None:
            self._stream.send(self, ("batch", *sent.item))

    def _take(self, stream: Stream, message: Any) -> None:
        if stream is not self._stream:
            return
        self._heard_ms = self.world.now_ms
        kind, *values = message
        if kind == "elsewhere":
            stream.close()
        elif kind == "opened":
            if self._takes_over:
                self._outbox.begin_epoch(values[0])
                self._takes_over = False
            self._is_open = True
            self._send()
        elif kind == "ok":
            sent = self._outbox.answered(values[0])
            if sent is not None:
                for index, record_id in enumerate(sent.item[1]):
                    self.acknowledged[record_id] = values[1] + index
                    self.returned_ms[record_id] = self.world.now_ms
        else:
            self._rejected(self._outbox.answered(values[0]))

    def _rejected(self, sent: Sent[tuple[Header, tuple[int, ...]]] | None) -> None:
        self.refusals += 1
        if sent is not None and sent.attempts == 1:
            self.rejected.update(sent.item[1])
        self._outbox.give_up()
        self._takes_over = True
        self._leave()


class SimReader(Node):
    """Reads what is new, again and again, from whom it takes for the leader; it may be late to hear of another one."""

    def __init__(self, world: World, number: int, brokers: list[SimBroker]) -> None:
        super().__init__(world, f"reader-{number}")
        self._brokers = brokers
        self._leader = brokers[0]
        self._begin_offset = 0
        self._called_ms = 0.0
        self.is_done = False
        #: What it has seen.
        self.reads: list[Read] = []

    def boot(self) -> None:
        """Begin."""
        self.is_up = True
        self._ask()

    def _ask(self) -> None:
        if self.is_done:
            return
        self._called_ms = self.world.now_ms
        broker = self._leader
        stream = Stream(self, broker, self._take, broker.take_reading, self._ended, broker.reader_ended)
        stream.send(self, self._begin_offset)
        self.later(_SILENCE_MS, stream.close)

    def _take(self, stream: Stream, message: Any) -> None:
        begin, end, entries = message
        records = tuple(
            (each.offset + index, record_id) for each in entries for index, record_id in enumerate(each.ids)
        )
        self.reads.append(Read(self._called_ms / 1000, self.world.now_ms / 1000, begin, end, records))
        # Sometimes all of it once more.
        self._begin_offset = end if self.world.random.random() < 0.8 else 0
        stream.close()

    def _ended(self, stream: Stream) -> None:
        if not self.reads or self.reads[-1].called_s != self._called_ms / 1000:
            self._leader = self.world.random.choice(self._brokers)
        self.later(self.world.random.uniform(5, 40), self._ask)
