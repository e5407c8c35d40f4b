"""The machine's threads behind their port, and that of a simulation in its place."""

from concurrent.futures import Future

from weir import threads
from weir.threads import MachineThreads


def test_threads_of_the_machine_wait_for_each_other():
    event, condition, lock = threads.event(), threads.condition(), threads.lock()
    seen = []

    def work():
        with condition:
            seen.append(1)
            condition.notify()
        event.set()

    with condition:
        thread = threads.start(work, "work")
        assert condition.wait_for(lambda: seen, 10)
    assert event.wait(10)
    thread.join(10)
    assert not thread.is_alive()
    assert not threads.is_current(thread)
    assert lock.acquire(blocking=False)
    assert not lock.acquire(blocking=False)


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
