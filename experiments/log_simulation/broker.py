"""A simulated broker with one replica: the machines that ship, over lists instead of files and gRPC."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from experiments.log_simulation.machines import Machines
from experiments.log_simulation.world import Node, Stream, World
from weir.errors import InvalidTransitionError
from weir.protocol.log.control import Report
from weir.protocol.log.entries import CONTROL, EPOCH_START_PRODUCER, Header
from weir.protocol.log.lineage import Lineage
from weir.protocol.log.producers import Verdict

REPLICAS = 3
#: Some of them have no replica at a time.
BROKERS = 5
_REPORT_MS = 60.0
_RETRY_MS = 30.0
_CHUNK_MAX = 4
#: Chunks that a follower is sent before it has answered.
_UNDER_WAY_MAX = 3


class Entry(NamedTuple):
    """What a log holds."""

    epoch: int
    offset: int
    header: Header
    ids: tuple[int, ...]

    @property
    def end_offset(self) -> int:
        """Offset behind it."""
        return self.offset + self.header.record_count


@dataclass
class Disk:
    """What outlives a crash."""

    incarnation: int
    promised_epoch: int = 0
    entries: list[Entry] = field(default_factory=list)
    #: Below it nothing is kept, and what has to be known of it.
    first_offset: int = 0
    lineage: list[tuple[int, int]] = field(default_factory=list)
    producers: list[list[Any]] = field(default_factory=list)
    #: How far all survives the loss of power.
    synced_offset: int = 0
    #: Whether it has been told that it is to have a replica. A real broker asks again after each start, which is safer.
    has_replica: bool = False

    @property
    def end_offset(self) -> int:
        """Offset behind the last entry."""
        return self.entries[-1].end_offset if self.entries else self.first_offset


@dataclass
class _Producing:
    """A stream from a producer."""

    epoch: int
    #: Sequence, offset (-1: it is refused) and the offset before which all has to be committed.
    waiting: deque[tuple[int, int, int]] = field(default_factory=deque)
    has_refused: bool = False


@dataclass
class _Reading:
    """A stream from a reader."""

    epoch: int
    begin_offset: int
    #: All before it has to be committed.
    confirmed_offset: int


@dataclass
class _Sending:
    """A stream to a follower."""

    follower_id: int
    epoch: int
    next_offset: int = -1
    #: Ends of what was sent and is not answered for.
    under_way: deque[int] = field(default_factory=deque)


class SimBroker(Node):
    """Broker ``broker-N``."""

    def __init__(
        self, world: World, broker_id: int, machines: Machines, *, is_synced: bool, judge: Any
    ) -> None:
        """Make it, down.

        Args:
            world: in which it runs.
            broker_id: from 1.
            machines: what decides.
            is_synced: durability is "fsync", and else "os".
            judge: is told of commits.
        """
        super().__init__(world, f"broker-{broker_id}")
        self.broker_id = broker_id
        self._machines = machines
        self._is_synced = is_synced
        self._judge = judge
        self.disk = Disk(world.random.getrandbits(60))
        #: The disk takes nothing more.
        self.is_full = False
        self.peers: dict[int, SimBroker] = {}
        self.controller: Any = None
        self.view: Any = None
        self.checked_offset = 0

    # -- life

    def boot(self) -> None:
        """Start, from what is on disk."""
        self.is_up = True
        disk = self.disk
        self.machine = self._machines.replica(self.broker_id, disk.incarnation, REPLICAS)
        self.producers = self._machines.producers()
        self.producers.restore(disk.producers if self._machines.keeps_producers else [])
        lineage = Lineage(list(disk.lineage))
        for entry in disk.entries:
            lineage.add(entry.epoch, entry.offset)
            if self._machines.followers_note_producers:
                self.producers.note(entry.header, entry.offset)
        promised = disk.promised_epoch if self._machines.keeps_promises else 0
        self.machine.recovered(lineage.starts, disk.end_offset, promised)
        self.view = None
        self.checked_offset = 0
        self._senders: dict[int, Stream] = {}
        self._producings: dict[Stream, None] = {}
        self._readings: dict[Stream, None] = {}
        #: The latest stream from a leader, and its epoch.
        self._accepted: tuple[Stream, int] | None = None
        #: It has had the leader's word of where to cut: before that, more is durable than the leader has.
        self._is_cut = False
        self._attend()

    def lose_power(self) -> None:
        """Crash, and lose what was not synced: some of it with "fsync"; else the replica is a new one."""
        self.crash()
        disk = self.disk
        if not self._is_synced:
            incarnation = self.world.random.getrandbits(60)
            kept = Disk(incarnation if self._machines.tells_of_loss else disk.incarnation)
            kept.promised_epoch = 0 if self._machines.tells_of_loss else disk.promised_epoch
            self.disk = kept
            return
        keep = self.world.random.randint(disk.synced_offset, max(disk.end_offset, disk.synced_offset))
        while disk.entries and disk.entries[-1].end_offset > keep:
            disk.entries.pop()

    def retain(self) -> None:
        """Remove some of the oldest entries that are committed, as retention does."""
        disk = self.disk
        committed = [each for each in disk.entries if each.end_offset <= self.machine.commit_offset]
        random = self.world.random
        count = len(committed) if random.random() < 0.6 else random.randint(0, len(committed))
        lineage, producers = Lineage(list(disk.lineage)), self._machines.producers()
        producers.restore(disk.producers)
        for entry in disk.entries[:count]:
            lineage.add(entry.epoch, entry.offset)
            producers.note(entry.header, entry.offset)
            disk.first_offset = entry.end_offset
        disk.lineage, disk.producers = lineage.starts, producers.snapshot()
        del disk.entries[:count]

    @property
    def has_replica(self) -> bool:
        """Whether it has been told that it is to have a replica."""
        return self.disk.has_replica

    # -- the controller

    def _attend(self) -> None:
        stream = Stream(
            self,
            self.controller,
            lambda _, view: self._apply(view),
            self.controller.take_report,
            lambda _: self.later(_RETRY_MS, self._attend),
            self.controller.session_ended,
        )
        stream.state = self.broker_id
        self._report(stream)

    def _report(self, stream: Stream) -> None:
        if stream.is_open and not self.has_replica:
            stream.send(self, None)
            self.later(_REPORT_MS, lambda: self._report(stream))
        elif stream.is_open:
            machine = self.machine
            promised = min(machine.promised_epoch, self.disk.promised_epoch)
            machine.vote(promised)
            report = Report(
                machine.incarnation,
                promised,
                machine.lineage.last_epoch,
                machine.end_offset,
                machine.leading_epoch,
                machine.caught_up(),
                machine.commit_offset,
                machine.settled_config,
                self.is_full,
            )
            stream.send(self, report)
            self.later(_REPORT_MS, lambda: self._report(stream))

    def _promise(self, epoch: int) -> bool:
        """Refuse lower epochs; False: the promise is not stored, so that nobody may be told."""
        is_news = self.machine.promise(epoch)
        if not self.is_full:
            self.disk.promised_epoch = max(self.disk.promised_epoch, self.machine.promised_epoch)
        if is_news:
            self._changed()
        return self.disk.promised_epoch >= epoch

    def _apply(self, view: Any) -> None:
        """``view``: (epoch, leader, members, replicas, learner, config)."""
        self.view = view
        epoch, leader, members, replicas, learner, config = view
        followers = {*replicas, learner}
        if self.broker_id not in followers:
            self._leave(epoch)
            return
        self.disk.has_replica = True
        if not self._promise(epoch):
            return
        machine = self.machine
        if leader == self.broker_id and machine.may_lead(epoch, members):
            if self.is_full:
                return
            machine.lead(epoch, members, len(replicas), config)
            self._append(Header(CONTROL, 1, 0, 0, EPOCH_START_PRODUCER, 0, 0, 0, 0), ())
        if machine.leading_epoch and machine.leading_epoch == epoch:
            if machine.config != config:
                machine.reconfigure(members, len(replicas), config)
                if self.is_full:
                    # The next entry shows it.
                    return
                self._append(Header(CONTROL, 1, 0, 0, EPOCH_START_PRODUCER, 0, 0, 0, 0), ())
            elif machine.members != members:
                machine.set_members(members)
                self._changed()
            for follower_id in self.peers:
                if follower_id in followers:
                    self._send_to(follower_id)
                elif follower_id in self._senders:
                    self._senders[follower_id].close()

    def _leave(self, epoch: int) -> None:
        """Delete what it has: the replica was moved away."""
        if epoch >= self.machine.promised_epoch and (self.has_replica or self.disk.end_offset):
            self.crash()
            self.disk = Disk(self.world.random.getrandbits(60))
            self.boot()

    # -- the log

    def _append(self, header: Header, ids: tuple[int, ...]) -> int:
        machine = self.machine
        entry = Entry(machine.leading_epoch, machine.end_offset, header, ids)
        self.disk.entries.append(entry)
        self.producers.note(header, entry.offset)
        machine.appended(entry.epoch, entry.offset, entry.end_offset)
        self._settle()
        return entry.offset

    def _settle(self) -> None:
        if self._is_synced:
            self.later(self.world.random.uniform(0.5, 6.0), partial(self._synced, self.machine.end_offset))
        else:
            self.machine.made_durable(self.machine.end_offset)
        self._changed()

    def _synced(self, end_offset: int) -> None:
        end_offset = min(end_offset, self.machine.end_offset)
        self.disk.synced_offset = max(self.disk.synced_offset, end_offset)
        self.machine.made_durable(end_offset)
        self._changed()
        if self._accepted is not None and self._accepted[1] == self.machine.promised_epoch and self._is_cut:
            self._progress(self._accepted[0])

    def _cut(self, offset: int) -> None:
        if offset >= self.machine.end_offset:
            return
        self.machine.cut(offset)
        disk = self.disk
        while disk.entries and disk.entries[-1].offset >= offset:
            disk.entries.pop()
        disk.synced_offset = min(disk.synced_offset, offset)
        self.producers.restore(disk.producers)
        for entry in disk.entries:
            self.producers.note(entry.header, entry.offset)

    def _changed(self) -> None:
        """Look who can be told something."""
        self._judge.committed(self)
        for stream in list(self._producings):
            self._answer(stream)
        for stream in list(self._readings):
            self._answer_reader(stream)
        for stream in list(self._senders.values()):
            self._pump(stream)

    # -- replication

    def _send_to(self, follower_id: int) -> None:
        running = self._senders.get(follower_id)
        epoch = self.machine.leading_epoch
        if running is not None and running.is_open and running.state.epoch == epoch:
            return
        stream = Stream(
            self,
            self.peers[follower_id],
            self._take_progress,
            self.peers[follower_id].take_entries,
            self._sender_ended,
            lambda _: None,
        )
        stream.state = _Sending(follower_id, epoch)
        self._senders[follower_id] = stream
        stream.send(self, ("open", epoch))

    def _sender_ended(self, stream: Stream) -> None:
        follower_id = stream.state.follower_id
        if self._senders.get(follower_id) is stream:
            del self._senders[follower_id]
            self.machine.follower_lost(follower_id)
            if self.machine.leading_epoch == stream.state.epoch:
                self.later(_RETRY_MS, lambda: self._send_again(follower_id, stream.state.epoch))

    def _send_again(self, follower_id: int, epoch: int) -> None:
        if self.machine.leading_epoch == epoch:
            self._send_to(follower_id)

    def _take_progress(self, stream: Stream, message: Any) -> None:
        kind, *values = message
        sending: _Sending = stream.state
        if self.machine.leading_epoch != sending.epoch:
            stream.close()
        elif kind == "promised":
            self._promise(values[0])
            stream.close()
        elif kind == "has":
            lineage, incarnation, end_offset = values
            cut = self.machine.follower_opened(sending.follower_id, incarnation, lineage, end_offset)
            disk, begin = self.disk, None
            if cut < disk.first_offset:
                cut, begin = disk.first_offset, (list(disk.lineage), list(disk.producers))
            sending.next_offset = cut
            stream.send(self, ("cut", cut, begin))
            self._pump(stream)
        else:
            while sending.under_way and sending.under_way[0] <= values[0]:
                sending.under_way.popleft()
            self.machine.follower_has(sending.follower_id, values[0])
            self._changed()

    def _pump(self, stream: Stream) -> None:
        sending: _Sending = stream.state
        if sending.next_offset < 0 or self.machine.leading_epoch != sending.epoch:
            return
        if sending.next_offset < self.disk.first_offset:
            stream.close()
            return
        count = self.world.random.randint(1, _CHUNK_MAX)
        while len(sending.under_way) < _UNDER_WAY_MAX and (
            entries := self._entries_from(sending.next_offset)[:count]
        ):
            sending.under_way.append(entries[-1].end_offset)
            sending.next_offset = entries[-1].end_offset
            stream.send(self, ("entries", entries, self.machine.commit_offset))

    def _entries_from(self, offset: int) -> list[Entry]:
        entries = self.disk.entries
        return entries[bisect_left(entries, offset, key=lambda each: each.offset) :]

    def take_entries(self, stream: Stream, message: Any) -> None:
        """Be a follower; called by the stream from a leader."""
        kind, *values = message
        machine = self.machine
        if not self.has_replica:
            stream.close()
            return
        if kind == "open":
            (epoch,) = values
            if not machine.accepts(epoch):
                stream.send(self, ("promised", machine.promised_epoch))
                return
            if not self._promise(epoch):
                stream.close()
                return
            self._accepted, self._is_cut = (stream, epoch), False
            stream.send(self, ("has", list(machine.lineage.starts), machine.incarnation, machine.end_offset))
            return
        if (
            self._accepted is None
            or self._accepted[0] is not stream
            or not machine.accepts(self._accepted[1])
        ):
            stream.send(self, ("promised", machine.promised_epoch))
            return
        if self.is_full and kind == "entries" and values[0]:
            stream.close()
            return
        try:
            self._take(kind, values)
        except InvalidTransitionError as error:
            self._judge.refused(self, error)
            stream.close()
            return
        self._judge.committed(self)
        self._progress(stream)

    def _take(self, kind: str, values: list[Any]) -> None:
        machine, disk = self.machine, self.disk
        if kind == "cut":
            self._is_cut = True
            offset, begin = values
            if begin is None:
                self._cut(offset)
                return
            lineage, producers = begin
            self.disk = Disk(
                disk.incarnation, disk.promised_epoch, [], offset, lineage, producers, has_replica=True
            )
            self.producers.restore(begin[1] if self._machines.keeps_producers else [])
            machine.began_at(begin[0], offset)
            return
        entries, commit_offset = values
        for entry in entries:
            machine.appended(entry.epoch, entry.offset, entry.end_offset)
            disk.entries.append(entry)
            if self._machines.followers_note_producers:
                self.producers.note(entry.header, entry.offset)
        self._settle()
        machine.learn_commit(commit_offset)

    def _progress(self, stream: Stream) -> None:
        stream.send(self, ("progress", self.machine.durable_offset))

    # -- producers

    def take_batch(self, stream: Stream, message: Any) -> None:
        """Serve a producer; called by its stream."""
        kind, *values = message
        if kind == "open":
            producer_id, epoch = values
            if not self.machine.leading_epoch:
                stream.send(self, ("elsewhere",))
                return
            if self.is_full:
                stream.close()
                return
            stream.state = _Producing(self.machine.leading_epoch)
            self._producings[stream] = None
            if not epoch:
                epoch = self.producers.epoch_of(producer_id) + 1
                offset = self._append(Header(CONTROL, 1, 0, 0, producer_id, epoch, 0, 0, 0), ())
                stream.state.waiting.append((-epoch, offset, offset + 1))
                self._answer(stream)
            else:
                stream.send(self, ("opened", epoch))
            return
        header, ids = values
        state = stream.state
        if self.machine.leading_epoch != state.epoch or state.has_refused:
            self._answer(stream)
            return
        if self.is_full:
            self._producings.pop(stream, None)
            stream.close()
            return
        verdict, offset = self.producers.judge(header)
        if verdict is Verdict.APPEND:
            offset = self._append(header, ids)
        if verdict in (Verdict.APPEND, Verdict.DUPLICATE):
            state.waiting.append((header.sequence, offset, offset + header.record_count))
            self._answer(stream)
        else:
            # Once it is sure that this broker leads.
            state.has_refused = True
            offset = self._append(Header(CONTROL, 1, 0, 0, EPOCH_START_PRODUCER, 0, 0, 0, 0), ())
            state.waiting.append((header.sequence, -1, offset + 1))
            self._answer(stream)

    def _answer(self, stream: Stream) -> None:
        state = stream.state
        while state.waiting and state.waiting[0][2] <= self.machine.commit_offset:
            sequence, offset, _ = state.waiting.popleft()
            if offset < 0:
                stream.send(self, ("rejected", sequence))
            else:
                stream.send(self, ("opened", -sequence) if sequence < 0 else ("ok", sequence, offset))
        if self.machine.leading_epoch != state.epoch:
            self._producings.pop(stream, None)
            stream.close()

    def producer_ended(self, stream: Stream) -> None:
        """Forget a producer's stream."""
        self._producings.pop(stream, None)

    # -- readers

    def take_reading(self, stream: Stream, begin_offset: int) -> None:
        """Serve a reader; called by its stream."""
        epoch = self.machine.leading_epoch
        if not epoch or self.is_full:
            stream.close()
            return
        confirmed = 0
        if self._machines.confirms_reads:
            confirmed = self._append(Header(CONTROL, 1, 0, 0, EPOCH_START_PRODUCER, 0, 0, 0, 0), ()) + 1
        stream.state = _Reading(epoch, begin_offset, confirmed)
        self._readings[stream] = None
        self._answer_reader(stream)

    def _answer_reader(self, stream: Stream) -> None:
        reading: _Reading = stream.state
        machine, end_offset = self.machine, self.machine.commit_offset
        if machine.leading_epoch != reading.epoch:
            self._readings.pop(stream, None)
            stream.close()
        elif machine.serves and end_offset >= reading.confirmed_offset:
            self._readings.pop(stream, None)
            begin = max(reading.begin_offset, self.disk.first_offset)
            entries = [each for each in self._entries_from(begin) if each.end_offset <= end_offset]
            stream.send(self, (begin, end_offset, entries))

    def reader_ended(self, stream: Stream) -> None:
        """Forget a reader's stream."""
        self._readings.pop(stream, None)
