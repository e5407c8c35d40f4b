"""One run: a random schedule of faults, and what must hold meanwhile and at the end."""

from __future__ import annotations

from functools import partial
from random import Random

from experiments.log_check import check_history
from experiments.log_linear import violations
from experiments.log_simulation.broker import BROKERS, REPLICAS, Entry, SimBroker
from experiments.log_simulation.machines import Machines
from experiments.log_simulation.others import SimController, SimProducer, SimReader
from experiments.log_simulation.world import World

_TROUBLE_MS = 3_000.0
_HEALING_MS = 5_000.0
_IDS_OF_A_PRODUCER = 1_000_000
#: Disks fill up in one seed of so many.
_FULL_DISKS_EVERY = 5


class ViolationError(AssertionError):
    """Something that must hold does not; the message has what and when."""


class Judge:
    """Keeps the one true log: what any replica has called committed."""

    def __init__(self, world: World) -> None:
        self._world = world
        #: By offset of their first records.
        self.log: dict[int, Entry] = {}

    def committed(self, broker: SimBroker) -> None:
        """Compare what a replica calls committed with what was called so before."""
        machine = broker.machine
        for entry in reversed(broker.disk.entries):
            if entry.end_offset > machine.commit_offset:
                continue
            known = self.log.setdefault(entry.offset, entry)
            if known is entry and entry.offset <= broker.checked_offset:
                break
            if known != entry:
                raise ViolationError(
                    f"at {self._world.now_ms:.1f} ms {broker.name} has {entry} committed, another one has {known}"
                )
            if entry.end_offset <= broker.checked_offset:
                break
        broker.checked_offset = machine.commit_offset

    def refused(self, broker: SimBroker, error: Exception) -> None:
        """Hear that a follower was asked to lose what is committed."""
        if "is committed" in str(error):
            raise ViolationError(f"at {self._world.now_ms:.1f} ms: {error}")


class Run:
    """Brokers, a controller and two producers, by the seed."""

    def __init__(self, seed: int, machines: Machines) -> None:
        self.world = World(seed)
        random = self.world.random
        self.judge = Judge(self.world)
        is_synced = random.random() < 0.4
        self._moves_replicas = random.random() < 0.5
        #: Of its own, so that the other faults of a seed do not depend on it; None: disks have room.
        self._full_disks = Random(seed) if seed % _FULL_DISKS_EVERY == 0 else None
        self.controller = SimController(self.world, machines)
        self.brokers = [
            SimBroker(self.world, number, machines, is_synced=is_synced, judge=self.judge)
            for number in range(1, (BROKERS if self._moves_replicas else REPLICAS) + 1)
        ]
        for broker in self.brokers:
            broker.controller = self.controller
            broker.peers = {each.broker_id: each for each in self.brokers if each is not broker}
        #: A producer with a long one is never refused anything.
        self._is_patient = random.random() < 0.5
        deadline_ms = 30_000.0 if self._is_patient else 400.0
        self.producers = [SimProducer(self.world, number, self.brokers, deadline_ms) for number in (1, 2)]
        self.readers = [SimReader(self.world, number, self.brokers) for number in (1, 2)]

    @property
    def _clients(self) -> list[SimProducer | SimReader]:
        return [*self.producers, *self.readers]

    def go(self) -> int:
        """Let it run, heal and end; returns how many records were acknowledged.

        Raises:
            ViolationError: something does not hold.
        """
        self.controller.boot()
        for broker in self.brokers:
            broker.boot()
        for client in self._clients:
            client.boot()
        self.world.later(self.world.random.uniform(200, 600), self._trouble)
        self.world.later(200.0, self._fill_a_disk)
        self.world.run(_TROUBLE_MS)
        self._heal()
        self.world.run(_TROUBLE_MS + _HEALING_MS / 5)
        for client in self._clients:
            client.is_done = True
        self.world.run(_TROUBLE_MS + _HEALING_MS)
        return self._check()

    # -- faults

    def _fill_a_disk(self) -> None:
        random = self._full_disks
        if random is None or self.world.now_ms >= _TROUBLE_MS:
            return
        broker = random.choice(self.brokers)
        broker.is_full = True
        # Some crash with what they could not store.
        if random.random() < 0.3:
            self.world.later(random.uniform(1, 200), lambda: self._crash(broker, random.uniform(10, 300)))
        self.world.later(random.uniform(50, 900), lambda: self._free(broker))
        self.world.later(random.expovariate(1 / 300), self._fill_a_disk)

    @staticmethod
    def _free(broker: SimBroker) -> None:
        broker.is_full = False

    def _crash(self, broker: SimBroker, down_ms: float) -> None:
        if broker.is_up:
            broker.crash()
            self.world.later(down_ms, lambda: self._start(broker))

    def _trouble(self) -> None:
        if self.world.now_ms >= _TROUBLE_MS:
            return
        random = self.world.random
        kinds = (
            self._crash_one,
            self._crash_one,
            self._crash_all,
            self._lose_power,
            self._lose_power_in_turn,
            self._pause,
            self._cut,
            self._cut_controller,
            self._keep_old_leader,
            self.world.cuts.clear,
            self._break,
            self._retain,
            self._crash_controller,
            *((self._rearrange,) * 4 if self._moves_replicas else ()),
        )
        random.choice(kinds)()
        self.world.later(random.expovariate(1 / 120), self._trouble)

    def _one(self) -> SimBroker:
        """Return some broker, of those with a replica more often than of the others."""
        having = [each for each in self.brokers if each.is_up and each.has_replica]
        random = self.world.random
        return random.choice(having if having and random.random() < 0.9 else self.brokers)

    def _crash_one(self) -> None:
        broker = self._one()
        if broker.is_up:
            broker.crash()
            self.world.later(self.world.random.uniform(10, 800), lambda: self._start(broker))

    def _crash_all(self) -> None:
        for broker in self.brokers:
            if broker.is_up:
                if self.world.random.random() < 0.5:
                    broker.retain()
                broker.crash()
                self.world.later(self.world.random.uniform(10, 200), partial(self._start, broker))

    def _lose_power(self) -> bool:
        """Take one broker's unsynced data.

        "os" promises only that a minority may lose its data, and another broker once the first is filled again.
        """
        broker = self._one()
        record = self.controller.record
        counted = [each for each in self.brokers if each.broker_id in record.replicas]
        if broker.broker_id == record.learner:
            # It may count the next moment, and with one of the others that would be two.
            return False
        if broker in counted and not all(
            record.members.get(each.broker_id) == each.disk.incarnation for each in counted
        ):
            return False
        broker.lose_power()
        self.world.later(self.world.random.uniform(1, 300), lambda: self._start(broker))
        return True

    def _lose_power_in_turn(self, times: int = 3) -> None:
        """Take the next broker's data as soon as that of the one before counts as filled again."""
        if times and self.world.now_ms < _TROUBLE_MS:
            left = times - 1 if self._lose_power() else times
            self.world.later(5.0, lambda: self._lose_power_in_turn(left))

    def _pause(self) -> None:
        random = self.world.random
        self._one().pause(random.uniform(20, 900))

    def _cut(self) -> None:
        having = [each for each in self.brokers if each.is_up and each.has_replica]
        names = [each.name for each in (*having, self.controller, *self.producers)]
        self.world.cuts.add(frozenset(self.world.random.sample(names, 2)))

    def _cut_controller(self) -> None:
        """Let some brokers go on without it; it takes over from a leader among them."""
        random = self.world.random
        for broker in {self._one().broker_id: None for _ in range(random.randint(1, 2))}:
            self.world.cuts.add(frozenset((self.controller.name, f"broker-{broker}")))

    def _keep_old_leader(self) -> None:
        """Cut a leader off; then start one that has promised a higher epoch again, and let only these two talk."""
        leading = [broker for broker in self.brokers if broker.is_up and broker.machine.leading_epoch]
        if not leading:
            return
        old, cuts = leading[0], self.world.cuts
        others = [broker for broker in self.brokers if broker is not old]
        self.world.random.shuffle(others)
        # Those with a replica first.
        others.sort(key=lambda each: not each.has_replica)
        cuts.update(frozenset((old.name, each.name)) for each in (self.controller, *others))

        def let_talk() -> None:
            again, third, *_ = others
            if again.is_up and self.world.now_ms < _TROUBLE_MS:
                cuts.update(frozenset((again.name, each.name)) for each in (self.controller, third))
                cuts.discard(frozenset((old.name, again.name)))
                again.crash()
                again.boot()

        self.world.later(self.world.random.uniform(300, 500), let_talk)

    def _break(self) -> None:
        broker = self._one()
        if broker.streams:
            self.world.random.choice(list(broker.streams)).close()

    def _retain(self) -> None:
        for broker in self.brokers:
            if broker.is_up:
                broker.retain()

    def _crash_controller(self) -> None:
        if self.controller.is_up:
            self.controller.crash()
            self.world.later(self.world.random.uniform(50, 600), self._start_controller)

    def _rearrange(self) -> None:
        """Let other brokers have the partition, or others lead."""
        if self.controller.is_up:
            numbers = [each.broker_id for each in self.brokers]
            self.controller.rearrange(self.world.random.sample(numbers, REPLICAS))
            record = self.controller.record
            others = [each for each in record.replicas if each != record.leader]
            leaving = [each for each in others if each not in record.target]
            if record.target and record.leader and leaving and self.world.random.random() < 0.7:
                # The others get nothing, so that all is with the leader and one that goes.
                self._isolate(record.leader, {*others, *record.target} - {leaving[0], record.learner})
                self._watch_step(record.leader, leaving[0], record.config)

    def _isolate(self, leader: int, others: set[int]) -> None:
        self.world.cuts.update(
            frozenset((f"broker-{leader}", f"broker-{each}")) for each in others - {leader}
        )

    def _watch_step(self, leader: int, leaving: int, config: int) -> None:
        """Once a replica has been added: let the leader talk to the one that goes alone, and crash it soon after."""
        if self.world.now_ms >= _TROUBLE_MS or self.controller.record.leader != leader:
            return
        if self.controller.record.config == config:
            self.world.later(0.5, lambda: self._watch_step(leader, leaving, config))
            return
        random = self.world.random
        self._isolate(leader, {each.broker_id for each in self.brokers} - {leaving})
        if random.random() < 0.4:
            self.world.cuts.add(frozenset((f"broker-{leader}", self.controller.name)))

        def end() -> None:
            broker = self.brokers[leader - 1]
            if broker.is_up:
                broker.crash()
                self.world.later(400.0, lambda: self._start(broker))
            self.world.later(200.0, self.world.cuts.clear)

        self.world.later(random.uniform(80, 250), end)

    def _start(self, broker: SimBroker) -> None:
        if not broker.is_up:
            broker.boot()

    def _start_controller(self) -> None:
        if not self.controller.is_up:
            self.controller.boot()

    def _heal(self) -> None:
        self.world.cuts.clear()
        for broker in self.brokers:
            self._free(broker)
            self._start(broker)
        self._start_controller()

    # -- what must hold

    def _check(self) -> int:
        acknowledged: dict[int, int] = {}
        for producer in self.producers:
            if not producer.is_idle:
                raise ViolationError(f"{producer.name} has no answers long after everything was mended")
            if self._is_patient and producer.refusals:
                raise ViolationError(
                    f"{producer.name} was refused {producer.refusals} batches without a reason"
                )
            acknowledged |= producer.acknowledged
        if not acknowledged:
            raise ViolationError("nothing was acknowledged")
        log = [self.judge.log[offset] for offset in sorted(self.judge.log)]
        read = [
            (entry.offset + index, record_id) for entry in log for index, record_id in enumerate(entry.ids)
        ]
        findings = check_history(acknowledged, read, _IDS_OF_A_PRODUCER)
        if findings:
            raise ViolationError(f"{findings}")
        written = {record_id for _, record_id in read}
        for producer in self.producers:
            if found := producer.rejected & written:
                raise ViolationError(f"{producer.name} was told that these were not written: {found}")
        self._check_order()
        self._check_replicas()
        return len(acknowledged)

    def _check_order(self) -> None:
        """What clients have seen could have happened one operation after the other."""
        appends = [append for producer in self.producers for append in producer.appends()]
        reads = [read for reader in self.readers for read in reader.reads]
        if len(reads) < len(self.readers):
            raise ViolationError("nobody has read anything")
        if found := violations(appends, reads):
            raise ViolationError(f"not linearizable: {found[0]}")

    def _check_replicas(self) -> None:
        """Every replica is level in the end, and has what is committed."""
        end = max(self.judge.log.values(), key=lambda each: each.offset).end_offset
        record = self.controller.record
        if record.target or record.leader != record.replicas[0]:
            raise ViolationError(f"the partition is not where it is to be: {record}")
        for broker in self.brokers:
            if broker.broker_id not in record.replicas:
                continue
            if broker.machine.end_offset < end:
                raise ViolationError(
                    f"{broker.name} ends at {broker.machine.end_offset}, and {end} is committed"
                )
            for entry in broker.disk.entries:
                if entry.end_offset <= end and self.judge.log.get(entry.offset) != entry:
                    raise ViolationError(f"{broker.name} has {entry} where another one is committed")


def run(seed: int, machines: Machines | None = None) -> int:
    """Run one seed; returns how many records were acknowledged.

    Raises:
        ViolationError: something does not hold.
    """
    return Run(seed, machines or Machines()).go()
