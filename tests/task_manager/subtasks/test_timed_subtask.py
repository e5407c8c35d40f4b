"""A subtask without rows sleeps until an operator has something to do, and not sooner."""

import threading
import time
from types import SimpleNamespace

import pytest

from task_manager.exchange.channels import Inbox
from task_manager.exchange.output import Output
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.progress import SubtaskProgress, SubtaskState
from task_manager.subtasks.subtask import SubtaskParts, SubtaskTimers
from task_manager.subtasks.task_subtask import TaskSubtask
from weir.clock import SystemClock
from weir.operators.base import NEVER_US, OperatorContext, TimedOperator
from weir.operators.chain import OperatorChain
from weir.operators.user_errors import UserErrors
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.types import ChannelId, SubtaskId

SUBTASK = SubtaskId(1, 0)
DELAYS_US = [150_000, 300_000]


class Alarm(TimedOperator):
    """Is due at some moments after its first question."""

    def __init__(self):
        self.clock = SystemClock()
        self.due = []
        self.called = []
        self.asked = 0
        self.done = threading.Event()
        self.fails = False

    def process(self, batch):
        return ()

    def due_us(self):
        self.asked += 1
        return self.due[0] if self.due else NEVER_US

    def on_time(self):
        if self.fails:
            raise ValueError("asked to")
        while self.due and self.due[0] <= self.clock.now_us():
            self.called.append(self.clock.now_us() - self.due.pop(0))
        if not self.due:
            self.done.set()
        return ()


@pytest.fixture
def alarm():
    return Alarm()


@pytest.fixture
def subtask(alarm):
    mailbox = Mailbox(Inbox())
    chain = OperatorChain(
        [(alarm, OperatorContext("job", "alarm", 1, 0, 1))],
        Output([], mailbox.wait_for_credit, SystemClock()),
        mailbox.check_cancelled,
        StateTables(MemoryBackend(), 1 << 20, 8),
    )
    made = TaskSubtask(
        SubtaskParts(
            SUBTASK,
            chain,
            mailbox,
            SubtaskTimers(200, 0, 1000, 60_000, 1000, 5, 100),
            SystemClock(),
            lambda: None,
            SimpleNamespace(),
            SubtaskProgress(),
            UserErrors(),
        ),
        [ChannelId(SubtaskId(0, 0), SUBTASK, 0)],
    )
    made.start()
    yield made
    made.cancel()
    assert made.join(10)


def test_it_wakes_when_something_is_due_and_asks_seldom(subtask, alarm):
    now_us = alarm.clock.now_us()
    alarm.due = [now_us + delay for delay in DELAYS_US]
    # Nothing happens before the job has started.
    time.sleep(0.2)
    assert alarm.called == []
    subtask.begin(1)
    assert alarm.done.wait(10)
    assert len(alarm.called) == len(DELAYS_US)
    assert all(late_us >= 0 for late_us in alarm.called)
    asked = alarm.asked
    assert asked < 20
    time.sleep(1.1)
    assert alarm.asked - asked <= 4


def test_what_it_raises_fails_the_subtask_and_names_the_step(subtask, alarm):
    alarm.fails, alarm.due = True, [alarm.clock.now_us()]
    subtask.begin(1)
    assert subtask.join(10)
    assert subtask.progress.state is SubtaskState.FAILED
    assert subtask.progress.cause == "step 'alarm' failed: ValueError: asked to"
