"""Threads of simulated processes: one runs at a time, and every wait is a step of the world and takes virtual time.

What runs in them is production code, so that a simulated thread needs a stack of its own: it is carried by a thread of
the machine, which waits for its turn. The world, in the main thread, gives one of them the turn and waits until that
one waits or ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from experiments.simulation.world import SCALE, Process

if TYPE_CHECKING:
    from experiments.simulation.threads import SimulatedThreads

_Work = Callable[[], None]

#: A wait with an end takes this long at least: the next moment of a clock in floats may be the same one.
_WAIT_MS_MIN = 1e-3


class WorldIsOverError(BaseException):
    """Raised in threads that still wait when a run has ended; nothing of a process may take it for an error."""


def _taken_lock() -> threading.Lock:
    """One thread waits for it, and another one lets go of it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class _Carrier:
    """A thread of the machine that carries simulated ones, one after the other."""

    def __init__(self) -> None:
        self._turn = _taken_lock()
        self._work: _Work | None = None
        threading.Thread(target=self._run, name="carrier", daemon=True).start()

    def begin(self, work: _Work) -> None:
        """Carry this; returns when it waits or has ended."""
        self._work = work
        self.go_on()

    def go_on(self) -> None:
        """Give it the turn; returns when it waits or has ended."""
        self._turn.release()
        _MAIN.acquire()

    def give_back(self) -> None:
        """Wait for the next turn; called by what is carried."""
        _MAIN.release()
        self._turn.acquire()

    def _run(self) -> None:
        while True:
            self._turn.acquire()
            assert self._work is not None
            self._work()
            self._work = None
            _FREE.append(self)
            _MAIN.release()


_MAIN = _taken_lock()
_FREE: list[_Carrier] = []


class SimulatedThread:
    """Implements ``weir.threads.Running``."""

    def __init__(self, owner: SimulatedThreads, process: Process, work: _Work, name: str) -> None:
        self.process, self.name = process, name
        self._owner, self._work = owner, work
        self._carrier: _Carrier | None = None
        self._is_over = False
        self._joins = Waits(owner)

    def go_on(self) -> None:
        """Let it run until it waits or ends; called by the world."""
        if self._is_over:
            return
        before, self._owner.current = self._owner.current, self
        try:
            if self._carrier is None:
                self._carrier = _FREE.pop() if _FREE else _Carrier()
                self._carrier.begin(self._run)
            else:
                self._carrier.go_on()
        finally:
            self._owner.current = before

    def pause(self) -> None:
        """Wait until :meth:`go_on` is called again; called in this very thread."""
        if not self._owner.is_over:
            assert self._carrier is not None
            self._carrier.give_back()
        if self._owner.is_over:
            raise WorldIsOverError

    def end(self) -> None:
        """The run has ended: let the thread end, whatever it waits for."""
        if self._carrier is not None:
            self.go_on()

    def join(self, timeout: float | None = None) -> None:
        """See ``weir.threads.Running``."""
        if not self._is_over:
            self._joins.wait(timeout)

    def is_alive(self) -> bool:
        """See ``weir.threads.Running``."""
        return not self._is_over

    def _run(self) -> None:
        try:
            self._work()
        except WorldIsOverError:
            pass
        except BaseException as error:
            # Nothing may end a thread of ours.
            self.process.world.failure = self.process.world.failure or error
        self._is_over = True
        self._owner.ended(self)
        self._joins.wake_all()


class _Wait:
    """One thread that waits."""

    __slots__ = ("is_over", "thread", "was_woken")

    def __init__(self, thread: SimulatedThread) -> None:
        self.thread = thread
        self.was_woken = self.is_over = False

    def end(self) -> None:
        """The thread goes on, unless it has."""
        if not self.is_over:
            self.is_over = True
            self.thread.go_on()


class Waits:
    """Threads that wait for the same thing."""

    def __init__(self, owner: SimulatedThreads) -> None:
        self._owner = owner
        self._waiting: deque[_Wait] = deque()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody wakes this thread; False: the time was over before."""
        thread = self._owner.current
        assert thread is not None, "only a simulated thread can wait"
        wait = _Wait(thread)
        self._waiting.append(wait)
        if timeout_s is not None:
            thread.process.later(max(timeout_s * 1e3 / SCALE, _WAIT_MS_MIN), wait.end)
        thread.pause()
        if not wait.was_woken:
            self._waiting.remove(wait)
        return wait.was_woken

    def wake(self) -> None:
        """Wake the one that has waited longest."""
        if self._waiting:
            wait = self._waiting.popleft()
            wait.was_woken = True
            wait.thread.process.later(self._owner.lag_ms(), wait.end)

    def wake_all(self) -> None:
        """Wake all."""
        while self._waiting:
            self.wake()

    def done(self, future: Future[Any]) -> None:
        """Wake all, as what is called when a future is done."""
        self.wake_all()
