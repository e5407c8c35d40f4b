"""A question that takes long leaves most of the time to the subtasks, and is still answered in its time."""

import time

import pytest

from task_manager.queries import rests
from task_manager.queries.rests import checking, rest_s
from weir.clock import SystemClock
from weir.protocol.queries import TIMEOUT_S
from weir.state import waits


def work_within(stint_s):
    """Seconds of work that a question has until its time is over, in stints."""
    now_s = work_s = 0.0
    while now_s < TIMEOUT_S:
        now_s, work_s = now_s + stint_s, work_s + stint_s
        now_s += rest_s(stint_s, now_s)
    return work_s


def test_a_scan_works_a_third_of_the_time_at_first():
    assert rest_s(0.001, 0.0) == 0.002
    assert rest_s(0.001, TIMEOUT_S / 4) < 0.002


def test_a_scan_that_takes_long_rests_less():
    assert rest_s(0.001, TIMEOUT_S / 2) == rest_s(0.001, TIMEOUT_S) == 0.0005
    assert work_within(0.001) > TIMEOUT_S / 2


def test_rests_are_short():
    assert rest_s(1.0, 0.0) == 0.02


@pytest.mark.parametrize(("waited_s", "rested"), [(0.0, True), (60.0, False)])
def test_what_a_scan_waits_for_a_store_is_rest(waited_s, rested, monkeypatch):
    slept = []
    monkeypatch.setattr(rests.threads, "sleep", slept.append)
    check = checking(SystemClock(), lambda: True)
    until_s = time.thread_time() + 0.002
    while time.thread_time() < until_s:
        pass
    waits.of_thread.seconds += waited_s
    check()
    assert bool(slept) == rested
