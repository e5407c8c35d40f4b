"""A subtask with inputs in the test's thread: its inbox is a script, its clock moves when the script says so."""

from __future__ import annotations

import pyarrow as pa

from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.channels import ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Delivery, Inbox
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from task_manager.progress import SubtaskProgress
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.author.operator import Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.user_errors import UserErrors
from weir.plan.graph import Edge, Exchange
from weir.rows.row_watermarks import RowWatermarks
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId

SUBTASK, DOWN = SubtaskId(1, 0), SubtaskId(2, 0)
LEFT, RIGHT = (ChannelId(SubtaskId(0, index), SUBTASK, 0) for index in range(2))


def rows(*numbers):
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


class Script(Inbox):
    """Gives what a test lists: elements with their channel, or calls; then the subtask is told to stop."""

    def __init__(self, steps):
        super().__init__()
        self.steps = list(steps)
        self.released = 0
        self.mailbox: Mailbox | None = None

    def release(self):
        self.released += 1

    def poll(self, timeout_s, gather_s=0.0):
        if not self.steps:
            if len(self):
                return super().poll(0.0)
            self.mailbox.cancel()
            return None
        step = self.steps.pop(0)
        if callable(step):
            step()
            return None
        channel, element = step
        return Delivery(channel, element, self.release)


class Notes(Operator):
    """Passes rows on and notes what it is told; it may raise."""

    def __init__(self, error=None):
        self.calls, self.error = [], error
        #: Called after batches, one each.
        self.after_rows = []

    def process(self, batch):
        if self.error is not None:
            raise self.error
        self.calls.append(batch.column("n").to_pylist())
        if self.after_rows:
            self.after_rows.pop(0)()
        yield batch

    def on_watermark(self, time_ms):
        self.calls.append(f"watermark {time_ms}")
        return ()

    def snapshot(self, checkpoint_id):
        self.calls.append(f"snapshot {checkpoint_id}")
        return None

    def close(self):
        self.calls.append("close")


class Parts:
    """Implements ``Checkpoints``."""

    def __init__(self):
        self.delivered, self.failed = [], []
        self.error = None

    def take(self, subtask, checkpoint_id, operators, captures, backend, passed_id):
        if self.error is not None:
            raise self.error
        return TakenPart(subtask, checkpoint_id, operators, passed_id)

    def deliver(self, part, rows=()):
        self.delivered.append((part.checkpoint_id, [item.batch.column("n").to_pylist() for item in rows]))

    def fail(self, subtask, checkpoint_id, cause):
        self.failed.append((checkpoint_id, cause))


class Setup:
    """A subtask that runs a script to its end."""

    def __init__(
        self,
        *steps,
        error=None,
        alignment_timeout_ms=1000.0,
        before=(),
        script=Script,
        restored_rows=(),
        row_watermarks=RowWatermarks.NONE,
    ):
        self.clock, self.parts, self.operator = ManualClock(), Parts(), Notes(error)
        self.inbox = script(steps)
        self.inbox._clock = self.clock
        mailbox = Mailbox(self.inbox)
        self.inbox.mailbox = mailbox
        self.down = Inbox()
        gate = CreditGate(ChannelLimits(100, 1 << 30, 1e6), self.inbox, self.clock)
        channel = LocalChannel(gate, self.down, ChannelId(SUBTASK, DOWN, 0))
        edge = OutputEdge(Edge(1, 2, Exchange.ROUND_ROBIN, (), 0), {0: channel}, BatchPolicy(1000, 0.0))
        context = OperatorContext("job", "notes", 1, 0, 1, clock=self.clock, row_watermarks=row_watermarks)
        self.chain = OperatorChain(
            [(operator, context) for operator in (*before, self.operator)],
            Output([edge], mailbox.wait_for_credit, self.clock),
            mailbox.check_cancelled,
            StateTables(MemoryBackend(), 1 << 20, 128),
            None,
        )
        timers = SubtaskTimers(200, 0, 1000, 1000, alignment_timeout_ms, 5, 100)
        self.states = []
        self.subtask = TaskSubtask(
            SubtaskParts(
                SUBTASK,
                "step 'both', subtask 0",
                self.chain,
                mailbox,
                timers,
                self.clock,
                lambda: self.states.append(self.subtask.progress.state),
                self.parts,
                SubtaskProgress(),
                UserErrors(),
            ),
            [LEFT, RIGHT],
            restored_rows=restored_rows,
        )

    def run(self):
        self.subtask.begin(1)
        self.subtask.run()
        return self

    @property
    def sent(self):
        """What went downstream."""
        found = []
        while (delivery := self.down.poll(0.0)) is not None:
            element = delivery.element
            found.append(element.column("n").to_pylist() if isinstance(element, pa.RecordBatch) else element)
        return found
