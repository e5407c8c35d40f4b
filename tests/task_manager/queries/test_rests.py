"""A question that takes long leaves most of the time to the subtasks, and is still answered in its time."""

from task_manager.queries.rests import rest_s
from weir.protocol.queries import TIMEOUT_S


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
