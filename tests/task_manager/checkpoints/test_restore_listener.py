import logging

import pytest

from task_manager.checkpoints.restore_listener import RestoreListener
from task_manager.progress import SubtaskProgress
from weir.testing.manual_clock import ManualClock
from weir.types import SubtaskId

SUBTASK = SubtaskId(1, 0)


@pytest.fixture
def clock():
    return ManualClock(5_000_000)


@pytest.fixture
def listener(clock, caplog):
    caplog.set_level(logging.INFO, "task_manager")
    return RestoreListener(clock, clock.now_us(), lambda subtask: f"subtask {subtask}")


def test_start_progress_and_end(listener, clock, caplog):
    progress = SubtaskProgress()
    listener.began(SUBTASK, progress, 8, 5)
    assert (progress.restore_groups, progress.restoring_groups) == (8, 5)
    assert progress.restore_started_us == 5_000_000
    clock.advance_ms(500)
    listener.progressed(SUBTASK, 2)
    assert (progress.restoring_groups, progress.restore_s) == (2, 0.5)
    clock.advance_ms(1000)
    listener.progressed(SUBTASK, 0)
    clock.advance_ms(1000)
    listener.progressed(SUBTASK, 0)
    assert (progress.restoring_groups, progress.restore_s) == (0, 1.5)
    listener.gave_up(SUBTASK)
    assert caplog.messages == [
        "restoring subtask 1/0: 8 key groups, 5 of them in the background",
        "restored subtask 1/0: 8 key groups in 1.500 s",
    ]


def test_everything_is_in_the_own_store(listener, caplog):
    listener.began(SUBTASK, SubtaskProgress(), 8, 0)
    assert caplog.messages[-1] == "restored subtask 1/0: 8 key groups in 0.000 s"


def test_a_subtask_that_goes_before_the_end(listener, caplog):
    listener.began(SUBTASK, SubtaskProgress(), 8, 5)
    listener.gave_up(SUBTASK)
    listener.gave_up(SUBTASK)
    assert caplog.messages[1:] == ["the restore of subtask 1/0 ended with it: 5 of 8 key groups were left"]


def test_a_subtask_that_was_not_restored(listener, caplog):
    progress = SubtaskProgress()
    listener.began(SUBTASK, progress, 0, 0)
    listener.progressed(SUBTASK, 0)
    listener.gave_up(SUBTASK)
    assert (progress, caplog.messages) == (SubtaskProgress(), [])
