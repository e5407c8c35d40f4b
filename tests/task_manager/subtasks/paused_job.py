"""A keyed step in a subtask of its own, whose functions take long while barriers come; it dies, and goes on.

All but the clock, the store and the channels are the parts of a task manager. The subtask runs in the test's thread.
What is slow moves the clock, and lets the elements come that are due then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Delivery, Inbox, no_release
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from task_manager.progress import SubtaskProgress, SubtaskState
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.author.operator import OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.step_flow import WaitingRows
from weir.operators.user_errors import UserErrors
from weir.plan.graph import Edge, Exchange
from weir.protocol.watermarks.input_times import restored_times
from weir.rows.records import Barrier, EndOfStream, InputRows, user_columns
from weir.rows.row_watermarks import RowWatermarks
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId

SUBTASK, DOWN = SubtaskId(1, 0), SubtaskId(2, 0)
CHANNEL = ChannelId(SubtaskId(0, 0), SUBTASK, 0)
GROUPS = 8
ALIGNMENT_MS = 1000


@dataclass
class Kept:
    """A checkpoint."""

    operators: dict
    entries: dict
    rows: list[InputRows]
    #: Elements of the channel before its barrier, and rows that had left before it was passed on.
    taken: int
    told: list


@dataclass
class Job:
    """Elements of the one channel, barriers among them by their ids, and what came of them."""

    #: Returns the operator, or several as (name, operator, numbers of states), given what is called with the virtual
    #: milliseconds that something takes.
    make: object
    states: dict[str, int]
    elements: list
    #: Milliseconds between two elements.
    apart_ms: int = 20
    row_watermarks: RowWatermarks = RowWatermarks.ALL
    told: list = field(default_factory=list)
    checkpoints: dict[int, Kept] = field(default_factory=dict)
    #: Virtual seconds from the barrier to the part of each.
    durations_s: list[float] = field(default_factory=list)

    def run(self, start: Kept | None = None) -> list:
        """Rows that left, from nothing or a checkpoint on, whatever leaves before that included."""
        first = 0 if start is None else start.taken
        self.told = [] if start is None else list(start.told)
        self._run(first, start)
        return self.told

    def _run(self, first: int, start: Kept | None) -> None:
        self.clock, self.inbox, self.backend = ManualClock(), Inbox(), MemoryBackend()
        self.inbox._clock = self.clock
        if start is not None:
            self.backend.write(list(start.entries.items()))
        self._first = self._next = first
        self._began_s, self._came_s = self.clock.monotonic_s(), dict[int, float]()
        mailbox = Mailbox(self.inbox)
        down = Inbox()
        gate = CreditGate(ChannelLimits(1 << 20, 1 << 40, 1e6), self.inbox, self.clock)
        channel = LocalChannel(gate, down, ChannelId(SUBTASK, DOWN, 0))
        edge = OutputEdge(Edge(1, 2, Exchange.ROUND_ROBIN, (), 0), {0: channel}, BatchPolicy(1000, 0.0))
        tables = StateTables(self.backend, 1 << 20, GROUPS)
        restored = {} if start is None else start.operators

        def context(name, states):
            return OperatorContext(
                "job",
                name,
                1,
                0,
                1,
                GROUPS,
                clock=self.clock,
                tables=tables.of(name, states),
                row_watermarks=self.row_watermarks,
                restored={0: restored[name]} if name in restored else {},
                fires_in_parts=True,
                sides_read=frozenset(),
            )

        made = self.make(self.passes)
        steps = made if isinstance(made, list) else [("slow", made, self.states)]
        chain = OperatorChain(
            [(operator, context(name, states)) for name, operator, states in steps],
            Output([edge], lambda timeout_s: self._hear(), self.clock),
            mailbox.check_cancelled,
            tables,
        )
        times = {0: restored["slow#times"]} if restored else {}
        restored_rows = [] if start is None else start.rows
        self.down = down
        self.subtask = TaskSubtask(
            SubtaskParts(
                SUBTASK,
                "step 'slow', subtask 0",
                chain,
                mailbox,
                SubtaskTimers(200, 0, 1e9, 1000, ALIGNMENT_MS, 0, 100),
                self.clock,
                lambda: None,
                self,
                SubtaskProgress(),
                UserErrors(),
                "slow#times",
                restored_times(times, 0, [0]),
                [WaitingRows(rows.step, rows.batch, rows.known_ms) for rows in restored_rows if rows.step],
            ),
            [CHANNEL],
            restored_rows=[rows for rows in restored_rows if not rows.step],
        )
        poll = self.inbox.poll

        def wait(timeout_s):
            """Nobody waits by the machine's clock."""
            self._let_come()
            if not len(self.inbox) and self._next < len(self.elements):
                self.passes(self.apart_ms)

        self.inbox.rest = wait
        self.inbox.wait_for_one = lambda timeout_s: bool(wait(timeout_s))
        self.inbox.poll = lambda timeout_s: wait(timeout_s) or poll(0.0)
        self.subtask.begin(1)
        self.subtask.run()
        assert self.subtask.progress.state is SubtaskState.FINISHED, self.subtask.progress.cause
        self._hear()

    def passes(self, ms: int) -> None:
        """Something takes so long."""
        self.clock.advance_ms(ms)
        self._let_come()

    def _let_come(self) -> None:
        passed_ms = (self.clock.monotonic_s() - self._began_s) * 1e3
        while self._next < len(self.elements) and (self._next - self._first) * self.apart_ms <= passed_ms:
            element = self.elements[self._next]
            self._next += 1
            if isinstance(element, Barrier):
                self._came_s[element.checkpoint_id] = self.clock.monotonic_s()
            self.inbox.put(Delivery(CHANNEL, element, no_release))

    def _hear(self) -> None:
        """Take what has left."""
        while (delivery := self.down.poll(0.0)) is not None:
            element = delivery.element
            delivery.release()
            if isinstance(element, pa.RecordBatch):
                self.told += element.select(user_columns(element.schema)).to_pylist()

    # --- as ``Checkpoints`` ---

    def take(self, subtask, checkpoint_id, operators, captures, backend, passed_id):
        for capture in captures:
            capture.write()
        self._hear()
        at = self.elements.index(Barrier(checkpoint_id)) + 1 if checkpoint_id else 0
        self._kept = Kept(dict(operators), dict(self.backend.scan()), [], at, list(self.told))
        return TakenPart(subtask, checkpoint_id, operators, passed_id)

    def deliver(self, part, rows=()):
        if part.checkpoint_id:
            self.checkpoints[part.checkpoint_id] = replace(self._kept, rows=[*part.waiting, *rows])
            self.durations_s.append(self.clock.monotonic_s() - self._came_s[part.checkpoint_id])

    def fail(self, subtask, checkpoint_id, cause):
        raise AssertionError(cause)


def ended(elements):
    """The elements, then the end of the channel."""
    return [*elements, EndOfStream()]
