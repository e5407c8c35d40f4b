"""Threads that work on rows run together on one processor while that has room for them."""

import os
import sys
import threading
import time
from random import Random

import pytest

from task_manager.processors import Load, Placement, Processors, Times, least_busy
from weir import threads
from weir.clock import SystemClock

ROOM = Load({0: 0.3, 1: 0.2}, rows=0.2)


def look_often(placement, load, times=60):
    return [placement.look(load) for _ in range(times)]


def other_work(zero, one, rows, at):
    """What the kernel tells of two processors with this work of others, and with rows on one of them, or on both."""
    ours = {0: rows / 2, 1: rows / 2} if at is None else {0: 0.0, 1: 0.0, at: rows}
    return Load({0: zero + ours[0], 1: one + ours[1]}, rows)


@pytest.mark.parametrize(("zero", "one", "best"), [(0.1, 0.3, 0), (0.3, 0.1, 1), (0.2, 0.2, 0)])
def test_rows_that_run_everywhere_run_best_on_the_least_busy_processor(zero, one, best):
    assert least_busy(other_work(zero, one, 0.2, at=None), None) == best


def test_rows_stay_where_they_are_unless_another_processor_is_clearly_better():
    assert least_busy(other_work(0.2, 0.1, 0.2, at=0), 0) == 0
    assert least_busy(other_work(0.3, 0.1, 0.2, at=0), 0) == 1


def test_no_processor_has_room_for_rows_that_take_a_third_of_one_or_beside_much_else():
    assert least_busy(other_work(0.0, 0.0, 0.35, at=None), None) is None
    assert least_busy(other_work(0.6, 0.5, 0.2, at=None), None) is None


def test_rows_are_placed_after_some_looks_that_found_room_and_not_by_one_quiet_moment():
    placement = Placement(Random(1))
    assert placement.look(ROOM) is None
    assert look_often(placement, Load({0: 0.9, 1: 0.9}, rows=0.9)) == [None] * 60
    assert placement.look(ROOM) is None
    assert look_often(placement, ROOM)[-1] == 1


def test_a_full_processor_is_left_at_once_and_for_long():
    placement = Placement(Random(1))
    look_often(placement, ROOM)
    assert placement.look(Load({0: 0.3, 1: 0.9}, rows=0.5)) is None
    assert look_often(placement, ROOM, 40) == [None] * 40
    assert look_often(placement, ROOM)[-1] == 1


def test_threads_that_begin_run_everywhere_first():
    placement = Placement(Random(1))
    look_often(placement, ROOM)
    assert placement.look(Load(ROOM.busy, ROOM.rows, is_new=True)) is None
    assert look_often(placement, ROOM)[-1] == 1


@pytest.mark.parametrize("seed", range(20))
def test_two_task_managers_end_on_different_processors(seed):
    both = [Placement(Random(seed)), Placement(Random(seed + 1000))]
    ends = []
    for _ in range(200):
        at = [each.processor for each in both]
        busy = {
            each: 0.1 + sum(0.2 if where == each else 0.1 if where is None else 0.0 for where in at)
            for each in (0, 1)
        }
        ends.append([each.look(Load(busy, 0.2)) for each in both])
    assert sorted(ends[-1]) == [0, 1]
    assert ends[-50:] == [ends[-1]] * 50


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_kernel_tells_what_the_threads_of_the_rows_take_and_that_some_have_begun():
    done, over = threading.Event(), threading.Event()

    def work():
        threads.works_on_rows()
        while time.thread_time() < 0.05:
            pass
        done.set()
        over.wait()

    row, clock, allowed = threading.Thread(target=work), SystemClock(), os.sched_getaffinity(0)
    before = Times.at(clock.monotonic_s(), allowed)
    row.start()
    done.wait()
    try:
        now_s = clock.monotonic_s()
        now = Times.at(now_s, allowed)
        again = Times.at(now_s + 1, allowed)
    finally:
        over.set()
        row.join()
    # Of a thread that was not there before, what it took before counts with the next look.
    assert now.since(before).is_new
    assert now.rows_s[row.native_id] >= 0.045
    assert not again.since(now).is_new
    assert 0 <= again.since(now).rows < 0.05
    assert set(again.since(now).busy) == allowed
    assert all(0 <= each <= 1 for each in now.since(before).busy.values())


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="there is nothing to choose"
)
def test_threads_of_the_rows_are_placed_and_those_that_they_start_are_not():
    allowed = os.sched_getaffinity(0)
    first = min(allowed)
    begun, goes_on, over = threading.Event(), threading.Event(), threading.Event()
    child = threading.Thread(target=over.wait)

    def work():
        threads.works_on_rows()
        begun.set()
        goes_on.wait()
        child.start()
        over.wait()

    row, other = threading.Thread(target=work), threading.Thread(target=over.wait)
    row.start()
    other.start()
    begun.wait()
    processors = Processors(SystemClock())

    def runs_on():
        return [os.sched_getaffinity(each.native_id) for each in (row, other)]

    try:
        processors.place(first)
        assert runs_on() == [{first}, allowed]
        goes_on.set()
        while child.native_id is None:
            pass
        assert os.sched_getaffinity(child.native_id) == {first}
        processors.place(first)
        assert os.sched_getaffinity(child.native_id) == allowed
        assert runs_on() == [{first}, allowed]
        processors.place(max(allowed))
        assert runs_on() == [{max(allowed)}, allowed]
        processors.place(None)
        assert runs_on() == [allowed, allowed]
    finally:
        goes_on.set()
        over.set()
        for each in (row, other, child):
            each.join()
