"""The machine's threads behind their port, and that of a simulation in its place."""

import ctypes
import sys
from concurrent.futures import Future

import pytest

from weir import threads
from weir.threads import MachineThreads


@pytest.mark.parametrize("make", [threads.condition, threads.condition_of_one])
def test_threads_of_the_machine_wait_for_each_other(make):
    event, condition, lock = threads.event(), make(), threads.lock()
    seen = []

    def work():
        with condition:
            seen.append(1)
            condition.notify()
        event.set()

    with condition:
        thread = threads.start(work, "work")
        assert condition.wait_for(lambda: seen, 10)
    assert event.wait(60)
    thread.join(60)
    assert not thread.is_alive()
    assert not threads.is_current(thread)
    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)


def test_a_condition_of_one_is_woken_once_for_each_time_that_it_is_notified():
    condition = threads.condition_of_one()
    with condition:
        # Nobody waits: nothing is left of it for a later wait.
        condition.notify()
        assert not condition.wait(0.0)
        assert not condition.wait_for(lambda: False, 0.001)
    told, seen = [], []

    def work():
        for number in range(500):
            with condition:
                told.append(number)
                condition.notify_all()

    thread = threads.start(work, "work")
    with condition:
        # Time-outs and notifications come at about the same moments.
        while len(seen) < 500:
            if len(told) == len(seen):
                condition.wait(0.00001 if len(seen) % 2 else 10)
            seen += told[len(seen) :]
    thread.join(60)
    assert seen == list(range(500))


def test_a_wait_for_futures_tells_whether_all_are_done():
    done, open_one = Future(), Future()
    done.set_result(None)
    assert threads.wait([done], 0)
    assert not threads.wait([done, open_one], 0)
    with threads.pool(1, "work") as pool:
        assert pool.submit(lambda: 3).result() == 3


def test_a_simulation_takes_the_place_of_the_machine():
    slept = []

    class Simulated(MachineThreads):
        def sleep(self, seconds):
            slept.append(seconds)

    threads.install(Simulated())
    try:
        threads.sleep(1e6)
    finally:
        threads.install(None)
    threads.sleep(0)
    assert slept == [1e6]


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of Linux")
def test_sleeps_of_a_thread_can_be_made_to_end_in_time():
    slack_ns = ctypes.CDLL(None).prctl
    # Another test may have set that of this thread.
    seen, before = [], slack_ns(30, 0, 0, 0, 0)

    def work():
        threads.sleep_to_the_point()
        seen.append(slack_ns(30, 0, 0, 0, 0))

    threads.start(work, "work").join(60)
    assert seen == [1]
    assert slack_ns(30, 0, 0, 0, 0) == before


def test_what_runs_beside_a_block_is_waited_for_and_raises_at_its_end():
    gate, seen = threads.event(), []

    def work():
        assert gate.wait(60)
        seen.append("work")
        raise LookupError("not there")

    def run(error=None):
        with threads.beside(work, "work"):
            seen.append("block")
            gate.set()
            if error is not None:
                raise error

    with pytest.raises(LookupError, match="not there"):
        run()
    assert seen == ["block", "work"]
    with pytest.raises(ValueError, match="of the block"):
        run(ValueError("of the block"))
    assert sorted(seen) == ["block", "block", "work", "work"]
