"""What a round of small batches costs a subtask beside its operators: calls, on caches that others have emptied."""

import statistics
import sys

import pyarrow as pa

from task_manager.exchange.channels import Delivery, Inbox, no_release
from task_manager.exchange.output import Output
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.progress import SubtaskProgress, SubtaskState
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.clock import SystemClock
from weir.operators.base import Operator, OperatorContext
from weir.operators.chain import OperatorChain
from weir.operators.user_errors import UserErrors
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.types import ChannelId, SubtaskId

SUBTASK = SubtaskId(1, 0)
INPUTS = [ChannelId(SubtaskId(0, index), SUBTASK, 0) for index in range(2)]
ROWS = pa.record_batch({"id": pa.array(range(5))})
ROUNDS = 60
#: Functions of Python from one round of two batches to the next: 58 when this was written, 108 before that.
CALLS_MAX = 70


class Rounds(Inbox):
    """Both inputs bring a batch whenever the subtask would sleep for one."""

    def __init__(self):
        super().__init__()
        self.subtask, self.left = None, ROUNDS

    def wait_for_one(self, timeout_s):
        self._bring()
        return super().wait_for_one(timeout_s)

    def await_round(self, wait_s, enough, late_s=0.0, *, borrows=True):
        self._bring()
        return super().await_round(wait_s, enough, late_s, borrows=borrows)

    def poll(self, timeout_s):
        if timeout_s > 0:
            self._bring()
        return super().poll(timeout_s)

    def _bring(self):
        if len(self):
            return
        if not self.left:
            self.subtask.cancel()
        self.left -= 1
        for channel in INPUTS:
            self.put(Delivery(channel, ROWS, no_release, 40))


class CountsCalls(Operator):
    """Notes how many functions were called when rows come."""

    def __init__(self):
        self.calls, self.noted, self.rows = 0, [], []

    def process(self, batch):
        self.noted.append(self.calls)
        self.rows.append(batch.num_rows)
        return ()

    def profile(self, frame, event, _):
        self.calls += event == "call" and frame.f_globals["__name__"] != __name__


def test_a_round_of_two_small_batches_is_one_batch_and_few_calls():
    counts, inbox, clock = CountsCalls(), Rounds(), SystemClock()
    mailbox = Mailbox(inbox)
    chain = OperatorChain(
        [(counts, OperatorContext("job", "counts", 1, 0, 1))],
        Output([], mailbox.wait_for_credit, clock),
        mailbox.check_cancelled,
        StateTables(MemoryBackend(), 1 << 20, 8),
    )
    parts = SubtaskParts(
        SUBTASK,
        chain,
        mailbox,
        SubtaskTimers(200, 0, 1000, 60_000, 1000, 5, 100),
        clock,
        lambda: None,
        None,
        SubtaskProgress(),
        UserErrors(),
    )
    inbox.subtask = TaskSubtask(parts, INPUTS)
    inbox.subtask.begin(1)
    before = sys.getprofile()
    sys.setprofile(counts.profile)
    try:
        inbox.subtask.run()
    finally:
        sys.setprofile(before)
    assert inbox.subtask.progress.state is SubtaskState.CANCELED
    assert counts.rows == [2 * ROWS.num_rows] * ROUNDS
    calls = [later - earlier for earlier, later in zip(counts.noted, counts.noted[1:], strict=False)]
    assert statistics.median(calls) <= CALLS_MAX
