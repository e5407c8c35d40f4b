"""Sources that read no row after a restart become idle, and so does what reads them, on virtual time.

Two sources, each of a subtask with a few splits, and the subtask that both go to. All are the production parts; each
runs alone in the test's thread, and what the sources sent comes to the consumer in the order of virtual time, some of
it late. A savepoint is taken somewhere, and the job goes on from it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

import weir
from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Delivery, Inbox
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.pace import Gathering
from task_manager.exchange.writer import BatchPolicy
from task_manager.progress import SubtaskProgress
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from tests.effort import cases
from weir.author.operator import Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.registry import create_reader
from weir.operators.user_errors import UserErrors
from weir.plan.graph import Edge, Exchange
from weir.protocol.watermarks.input_times import InputTimes, restored_times
from weir.rows.records import WATERMARK_MIN_MS, Barrier, Idle
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId

IDLE_MS, BOUND_MS, INTERVAL_MS = 250, 5, 200
#: Rows come in this part of a run; after it there is time for all to become idle.
ROWS_S, RUN_S = 0.8, 1.8
BOTH = SubtaskId(2, 0)
SAVEPOINT = 7
#: Restarts of each of four tests.
SEEDS = cases(25)


@dataclass
class Split:
    """When a split turns up, and when which rows of it come: virtual seconds since the job first began."""

    turns_up_s: float
    rows: list[tuple[float, int]] = field(default_factory=list)


class Topic(weir.Source):
    """What a broker has at a time."""

    def __init__(self, splits, clock, began_s):
        self._splits, self._clock, self._began_s = splits, clock, began_s

    def _now_s(self):
        return self._clock.monotonic_s() + self._began_s

    def splits(self):
        return [name for name, split in self._splits.items() if split.turns_up_s <= self._now_s()]

    def read(self, split, position):
        at, rows = position or 0, self._splits[split].rows
        while True:
            if at < len(rows) and rows[at][0] <= self._now_s():
                at += 1
                yield [{"at": rows[at - 1][1]}], at
            else:
                yield None


class Notes(Operator):
    """Notes the watermark and the times of rows."""

    def __init__(self):
        self.watermark_ms, self.times_ms = WATERMARK_MIN_MS, []

    def process(self, batch):
        self.times_ms += batch.column("at").to_pylist()
        yield batch

    def on_watermark(self, time_ms):
        self.watermark_ms = time_ms
        return ()


class Parts:
    """Implements ``Checkpoints``; keeps what the savepoint has."""

    def __init__(self):
        self.operators = None

    def take(self, subtask, checkpoint_id, operators, captures, backend, passed_id):
        self.operators = operators
        return TakenPart(subtask, checkpoint_id, operators, passed_id)

    def deliver(self, part, rows=()):
        pass


class Timed(Inbox):
    """Sleeps in virtual time, in which listed things happen; the subtask is told to stop when all have."""

    def __init__(self, clock, happens):
        super().__init__(clock)
        self._happens = sorted(happens, key=lambda item: item[0])
        self.mailbox = None

    def poll(self, timeout_s):
        if timeout_s > 0:
            self.wait_for_one(timeout_s)
        return super().poll(0.0)

    def wait_for_one(self, timeout_s):
        if not len(self):
            now_s = self._clock.monotonic_s()
            next_s = self._happens[0][0] if self._happens else float("inf")
            self._clock.advance_ms(max(1.0, min(timeout_s, next_s - now_s) * 1e3))
            while self._happens and self._happens[0][0] <= self._clock.monotonic_s():
                self._happens.pop(0)[1]()
        return len(self) > 0

    wait = rest = gather = lambda self, *_: None


class Sent(Inbox):
    """What a subtask sends, with the virtual second."""

    def __init__(self, clock):
        super().__init__(clock)
        self.elements = []

    def put(self, delivery):
        self.elements.append((self._clock.monotonic_s(), delivery.element))


def made(subtask, consumer, inbox, clock, parts, times, operators=(), gathering=None):
    """What a subtask is made of, and what it sends."""
    mailbox = inbox.mailbox = Mailbox(inbox)
    sent = Sent(clock)
    gate = CreditGate(ChannelLimits(1_000, 1 << 30, 1e6), inbox, clock)
    channel = LocalChannel(gate, sent, ChannelId(subtask, consumer, 0))
    edge = OutputEdge(
        Edge(subtask.stage_index, 9, Exchange.ROUND_ROBIN, (), 0), {0: channel}, BatchPolicy(1_000, 0.0)
    )
    context = OperatorContext("job", "both", 2, 0, 1, clock=clock)
    chain = OperatorChain(
        [(operator, context) for operator in operators],
        Output([edge], mailbox.wait_for_credit, clock),
        mailbox.check_cancelled,
        StateTables(MemoryBackend(), 1 << 20, 128),
        None,
    )
    timers = SubtaskTimers(INTERVAL_MS, BOUND_MS, IDLE_MS, 1_000, 1_000, 5, 100, gathering)
    return SubtaskParts(
        subtask, "step", chain, mailbox, timers, clock, lambda: None, parts, SubtaskProgress(), UserErrors(),
        times_key="times", restored_times=times,
    ), sent  # fmt: skip


def times_of(operators):
    return InputTimes() if operators is None else restored_times({0: operators["times"]}, 0, (0,))


def run_source(number, splits, began_s, run_s, saved, ends_with_savepoint, cores):
    """One subtask of a source; returns what it sent, its part of the savepoint, and whether it says it is idle."""
    subtask, clock, parts = SubtaskId(number, 0), ManualClock(), Parts()

    def stop():
        if ends_with_savepoint:
            source.checkpoint(SAVEPOINT, holds=True)
        inbox.mailbox.cancel()

    inbox = Timed(clock, [(run_s, stop)])
    # In a process that is busy, sources read and tell at the same moments.
    gathering, crowd = (
        Gathering(clock.monotonic_s, lambda: clock.monotonic_s() * cores),
        [Parts() for _ in range(8)],
    )
    for other in crowd:
        gathering.join(other)
    given, sent = made(subtask, BOTH, inbox, clock, parts, times_of(saved), gathering=gathering)
    strategy = weir.bounded_out_of_orderness(f"{BOUND_MS}ms")
    spec = weir.UserSource(
        lambda: Topic(splits, clock, began_s), schema={"at": int}, event_time="at", discover_ms=100
    ).to_spec()
    context = OperatorContext(
        "job", "source", number, 0, 1, clock=clock, idle_timeout_ms=IDLE_MS, grace_period_ms=BOUND_MS,
        restored={} if saved is None else {0: saved["source"]}, subtask_indices=(0,),
    )  # fmt: skip
    source = SourceSubtask(given, create_reader(spec), lambda start_us: context, 100, strategy)
    source.begin(1)
    source.run()
    assert source.progress.cause == ""
    return sent.elements, parts.operators, source.progress.is_idle


def run_consumer(sent, run_s, saved, dice):
    """The subtask that both sources go to; returns it, its operator, and its part of the savepoint."""
    clock, parts, operator = ManualClock(), Parts(), Notes()
    channels = [ChannelId(SubtaskId(number, 0), BOTH, number) for number in range(len(sent))]
    happens = [(run_s + 1, lambda: inbox.mailbox.cancel())]
    for channel, elements in zip(channels, sent, strict=True):
        late_s = 0.0
        for at_s, element in elements:
            # Each channel keeps its order.
            late_s = max(late_s, at_s + dice.choice([0.0, 0.0, dice.random() / 5]))
            delivery = Delivery(channel, element, lambda: None)
            happens.append((late_s, lambda delivery=delivery: inbox.put(delivery)))
    inbox = Timed(clock, happens)
    given, down = made(BOTH, SubtaskId(3, 0), inbox, clock, parts, times_of(saved), [operator])
    subtask = TaskSubtask(given, channels)
    subtask.begin(1)
    subtask.run()
    assert subtask.progress.cause == ""
    return operator, down.elements, subtask, parts.operators


def drawn_splits(dice):
    """Splits of one source: some have no rows, some turn up late, some were read to their end long ago."""
    splits = {}
    for number in range(dice.choice([1, 1, 2, 3])):
        turns_up_s = dice.choice([0.0, 0.0, 0.0, dice.random() * ROWS_S])
        at_ms, rows = dice.randrange(1_000), []
        for come_s in sorted(dice.uniform(turns_up_s, ROWS_S) for _ in range(dice.choice([0, 1, 4]))):
            at_ms += dice.randrange(40)
            rows.append((come_s, at_ms))
        splits[f"split-{number}"] = Split(turns_up_s, rows)
    return splits


@pytest.mark.parametrize("part", range(4))
def test_all_become_idle_after_a_restart_and_the_highest_watermark_counts(part):
    for seed in range(SEEDS * part, SEEDS * part + SEEDS):
        dice = random.Random(seed)
        topics = [drawn_splits(dice) for _ in range(2)]
        # Before, between or long after the rows.
        saved_s = dice.choice([dice.random() * ROWS_S, ROWS_S + dice.random()])
        cores = dice.choice([0.0, 0.1, 0.9])
        before = [run_source(n, splits, 0.0, saved_s, None, True, cores) for n, splits in enumerate(topics)]
        assert all(isinstance(sent[-1][1], Barrier) for sent, _, _ in before)
        seen, _, _, saved = run_consumer([sent for sent, _, _ in before], saved_s, None, dice)
        after = [
            run_source(n, splits, saved_s, RUN_S, before[n][1], False, cores)
            for n, splits in enumerate(topics)
        ]
        then, down, subtask, _ = run_consumer([sent for sent, _, _ in after], RUN_S, saved, dice)
        rows = sorted(at for splits in topics for split in splits.values() for _, at in split.rows)
        assert sorted(seen.times_ms + then.times_ms) == rows, seed
        assert [is_idle for _, _, is_idle in after] == [True, True], seed
        assert [known.is_idle for known in subtask.input_watermarks()] == [True, True], seed
        highest_ms = rows[-1] - BOUND_MS if rows else WATERMARK_MIN_MS
        assert then.watermark_ms == highest_ms, seed
        assert isinstance(down[-1][1], Idle), seed
