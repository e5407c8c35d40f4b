"""What a round of small batches costs a subtask beside its operators: calls, on caches that others have emptied."""

import statistics
import sys

import pyarrow as pa

from task_manager.exchange.inbox import Delivery, Inbox, no_release
from task_manager.progress import SubtaskState
from tests.task_manager.subtasks.made_subtasks import input_channels, task_subtask
from weir.author.operator import Operator
from weir.clock import SystemClock

INPUTS = input_channels(2)
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
    inbox.subtask = task_subtask("counts", counts, inbox, INPUTS, clock)
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
