"""How far a source is behind, as others see it."""

import threading

from weir.operators.sources.user.split_lags import SplitLags
from weir.testing import ManualClock


class Brokers:
    """Answers one question at a time, when it is told to."""

    def __init__(self):
        self.ends = {"a[0]": 10, "a[1]": 20}
        self.asked = threading.Semaphore(0)
        self.may_answer = threading.Semaphore(0)

    def find(self):
        self.asked.release()
        self.may_answer.acquire()
        if self.ends is None:
            raise ConnectionError("away")
        return dict(self.ends)


def answered(lags, positions, expected):
    """Ask until the thread has its answer."""
    for _ in range(10_000):
        if lags.of(positions) == expected:
            return True
        threading.Event().wait(0.001)
    return False


def test_lags_are_ends_less_positions_and_nobody_waits_for_an_answer():
    brokers, clock = Brokers(), ManualClock()
    lags = SplitLags(brokers.find, clock)
    positions = {"a[0]": 4, "a[1]": 25, "a[2]": 0}
    assert lags.of(positions) == {}
    assert brokers.asked.acquire(timeout=30)
    assert lags.of(positions) == {}
    brokers.may_answer.release()
    # A partition that has gone on since is not behind; of one that nobody told of nothing is said.
    assert answered(lags, positions, {"a[0]": 6, "a[1]": 0})
    assert not brokers.asked.acquire(blocking=False)
    lags.close()


def test_brokers_are_asked_now_and_then_and_what_is_known_stays_while_they_are_away():
    brokers, clock = Brokers(), ManualClock()
    lags = SplitLags(brokers.find, clock)
    for ends, expected in (({"a[0]": 10}, 10), (None, 10), ({"a[0]": 30}, 30)):
        brokers.ends = ends
        while not brokers.asked.acquire(timeout=0.001):
            lags.of({"a[0]": 0})
        brokers.may_answer.release()
        assert answered(lags, {"a[0]": 0}, {"a[0]": expected})
        clock.advance_ms(6_000)
    lags.close()
