"""A subtask without rows sleeps until an operator has something to do, and not sooner."""

from task_manager.exchange.inbox import Inbox
from task_manager.progress import SubtaskState
from tests.task_manager.subtasks.made_subtasks import input_channels, task_subtask
from weir.author.operator import NEVER_US, TimedOperator
from weir.testing import ManualClock

BEGINS_S = 0.2
DUE_US = [150_000, 300_000]


class Alarm(TimedOperator):
    """Is due at some moments."""

    def __init__(self, clock):
        self.clock, self.fails = clock, False
        began_us = clock.now_us()
        self.due = [began_us + delay_us for delay_us in DUE_US]
        #: When it was called, in microseconds since the beginning, and when it was asked.
        self.called, self.asked = [], []

    def process(self, batch):
        return ()

    def due_us(self):
        self.asked.append(self.clock.monotonic_s())
        return self.due[0] if self.due else NEVER_US

    def on_time(self):
        if self.fails:
            raise ValueError("asked to")
        while self.due and self.due[0] <= self.clock.now_us():
            self.called.append(int(self.clock.monotonic_s() * 1e6))
            self.due.pop(0)
        return ()


class Quiet(Inbox):
    """Nothing comes: the time for which the subtask wants to sleep passes at once. The job begins after a while."""

    def __init__(self, clock, ends_s):
        super().__init__()
        self.clock, self.ends_s, self.has_begun = clock, ends_s, False
        self.subtask = None

    def poll(self, timeout_s, gather_s=0.0):
        now_s = self.clock.monotonic_s()
        if now_s >= self.ends_s:
            self.subtask.cancel()
        elif now_s >= BEGINS_S and not self.has_begun:
            self.has_begun = True
            self.subtask.begin(1)
        else:
            until_s = self.ends_s if self.has_begun else BEGINS_S
            self.clock.advance_ms(min(timeout_s, until_s - now_s) * 1e3 + 0.001)


def made(ends_s):
    """A subtask that runs in the test's thread, and its only operator."""
    clock = ManualClock()
    alarm, inbox = Alarm(clock), Quiet(clock, ends_s)
    inbox.subtask = task_subtask("alarm", alarm, inbox, input_channels(1), clock)
    return inbox.subtask, alarm


def test_it_wakes_when_something_is_due_and_asks_seldom():
    subtask, alarm = made(ends_s=3.0)
    subtask.run()
    assert subtask.progress.state is SubtaskState.CANCELED
    first_us, second_us = alarm.called
    # Nothing happens before the job has started.
    assert BEGINS_S * 1e6 <= first_us < BEGINS_S * 1e6 + 1_000
    assert DUE_US[1] <= second_us < DUE_US[1] + 1_000
    until_done = [asked_s for asked_s in alarm.asked if asked_s <= second_us / 1e6]
    assert len(until_done) < 20
    assert len(alarm.asked) - len(until_done) <= 11


def test_what_it_raises_fails_the_subtask_and_names_the_step():
    subtask, alarm = made(ends_s=3.0)
    alarm.fails = True
    subtask.run()
    assert subtask.progress.state is SubtaskState.FAILED
    assert subtask.progress.cause == "step 'alarm' failed: ValueError: asked to"
