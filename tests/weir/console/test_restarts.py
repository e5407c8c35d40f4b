"""When a process of ``weir log start`` that has ended is started again."""

import queue
import signal
import time
from types import SimpleNamespace

from weir.console import restarts
from weir.console.log_processes import _watch
from weir.console.processes import Ended, Signalled
from weir.console.restarts import Restarts

LONG_S = restarts.SETTLED_S


class Process:
    """In place of one that has ended by the time that anybody looks."""

    def __init__(self, name):
        self.name = name

    def cut_off(self):
        """Nobody talks to it."""


def test_what_is_killed_at_each_start_is_started_again_after_longer_and_longer_pauses():
    found = Restarts()
    pauses = [found.ended(-signal.SIGKILL, 0.4) for _ in range(9)]
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert found.told("broker 2", -9, 0.4, 30.0) == (
        "broker 2 was killed (SIGKILL) 0.4 s after its start, 9 times in a row; look into dmesg: the machine may have "
        "no memory left; it is started again in 30 s"
    )
    # It has run since.
    assert found.ended(-signal.SIGKILL, LONG_S) == 0
    assert found.told("broker 2", -9, LONG_S, 0.0) == "broker 2 was killed (SIGKILL); it is started again"
    assert (
        found.told("broker 2", -300, LONG_S, 0.0) == "broker 2 was killed (signal 300); it is started again"
    )


def test_what_cannot_begin_ends_the_log_and_what_has_run_is_tried_again():
    assert Restarts().ended(1, 0.2) is None
    assert Restarts().told("broker 1", 1, 0.2, None) == (
        "broker 1 ended (code 1) 0.2 s after its start; mend what it says above, and start the log again"
    )
    found = Restarts()
    assert [found.ended(1, ran_s) for ran_s in (LONG_S, 0.2, 0.2, LONG_S)] == [0, 0, 1, 0]


def test_a_broker_that_waits_for_its_start_keeps_nobody_from_starting_or_ending(monkeypatch, capsys):
    monkeypatch.setattr(restarts, "_PAUSE_S", 0.05)
    children = SimpleNamespace(events=queue.SimpleQueue())
    running, started_s = {}, []

    def begin(name):
        child = Process(name)
        running[child] = time.monotonic()
        started_s.append(time.monotonic())
        children.events.put(Ended(child, -9) if len(started_s) < 4 else Signalled(signal.SIGTERM))

    begin("broker 1")
    assert _watch(children, running, begin, time.monotonic) == 0
    _, second, third, fourth = started_s
    assert fourth - third >= 0.1
    assert third - second >= 0.05
    assert capsys.readouterr().out.count("broker 1 was killed (SIGKILL)") == 3
