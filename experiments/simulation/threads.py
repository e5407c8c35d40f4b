"""Threads of simulated processes: one runs at a time, and every wait is a step of the world and takes virtual time.

What runs in them is production code, so that a simulated thread needs a stack of its own: it is carried by a thread of
the machine, which waits for its turn. The world, in the main thread, gives one of them the turn and waits until that
one waits or ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from experiments.simulation.world import SCALE, Process
from weir import threads

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
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
        self._joins = _Waits(owner)

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


class _Waits:
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


class _Lock:
    """Implements ``weir.threads.Lock``."""

    def __init__(self, owner: SimulatedThreads) -> None:
        self._waits = _Waits(owner)
        self._is_taken = False

    def acquire(self, blocking: bool = True) -> bool:
        """See ``weir.threads.Lock``."""
        while self._is_taken:
            if not blocking:
                return False
            self._waits.wait()
        self._is_taken = True
        return True

    def release(self) -> None:
        """See ``weir.threads.Lock``."""
        self._is_taken = False
        self._waits.wake()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class _Condition(_Lock):
    """Implements ``weir.threads.Condition``."""

    def __init__(self, owner: SimulatedThreads) -> None:
        super().__init__(owner)
        self._notified = _Waits(owner)

    def wait(self, timeout: float | None = None) -> bool:
        """See ``weir.threads.Condition``."""
        self.release()
        try:
            return self._notified.wait(timeout)
        finally:
            # The world may be over: then nobody lets go of it any more.
            self._is_taken = True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See ``weir.threads.Condition``; woken early it begins the time again, which no caller minds."""
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        """See ``weir.threads.Condition``."""
        for _ in range(n):
            self._notified.wake()

    def notify_all(self) -> None:
        """See ``weir.threads.Condition``."""
        self._notified.wake_all()


class _Event:
    """Implements ``weir.threads.Event``."""

    def __init__(self, owner: SimulatedThreads) -> None:
        self._waits = _Waits(owner)
        self._is_set = False

    def is_set(self) -> bool:
        """See ``weir.threads.Event``."""
        return self._is_set

    def set(self) -> None:
        """See ``weir.threads.Event``."""
        self._is_set = True
        self._waits.wake_all()

    def clear(self) -> None:
        """See ``weir.threads.Event``."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """See ``weir.threads.Event``."""
        return self._is_set or self._waits.wait(timeout) or self._is_set


class _Future(Future[Result]):
    """A future whose result simulated threads wait for."""

    def __init__(self, owner: SimulatedThreads) -> None:
        super().__init__()
        self._owner = owner

    def result(self, timeout: float | None = None) -> Result:
        """As of any future."""
        if not self._owner.wait([self], timeout):
            raise FutureTimeoutError
        return super().result(0)


class _Pool(Executor):
    """Threads that are made on demand, and end when there is nothing to do."""

    def __init__(self, owner: SimulatedThreads, threads_max: int, name: str) -> None:
        self._owner, self._threads_max, self._name = owner, threads_max, name
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._working: list[threads.Running] = []
        self._is_shut_down = False

    def submit(
        self, fn: Callable[Parameters, Result], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Result]:
        """See ``concurrent.futures.Executor``."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: _Future[Result] = _Future(self._owner)
        self._work.append((future, lambda: fn(*args, **kwargs)))
        self._working = [thread for thread in self._working if thread.is_alive()]
        if len(self._working) < self._threads_max:
            self._working.append(self._owner.start(self._run, self._name))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See ``concurrent.futures.Executor``."""
        self._is_shut_down = True
        while cancel_futures and self._work:
            future, _ = self._work.popleft()
            future.cancel()
            future.set_running_or_notify_cancel()
        for thread in self._working if wait else ():
            thread.join()

    def _run(self) -> None:
        while self._work:
            future, call = self._work.popleft()
            # Nobody waits for it, and others are as busy.
            self._owner.sleep(self._owner.work_ms() * SCALE / 1e3)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except WorldIsOverError:
                raise
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)


class SimulatedThreads:
    """Implements ``weir.threads.Threads`` for all processes of one world."""

    def __init__(self, lag_ms: Callable[[], float], work_ms: Callable[[], float]) -> None:
        """Both return milliseconds of the world.

        Args:
            lag_ms: how long a thread takes to go on after it was woken.
            work_ms: how long work takes that is done beside the data.
        """
        self.lag_ms, self.work_ms = lag_ms, work_ms
        #: The one that runs; None: the world itself does.
        self.current: SimulatedThread | None = None
        self.is_over = False
        self._alive: dict[SimulatedThread, None] = {}

    def spawn(self, process: Process, work: _Work, name: str) -> SimulatedThread:
        """Start a thread of a process, from anywhere."""
        thread = SimulatedThread(self, process, work, name)
        if not self.is_over:
            self._alive[thread] = None
            process.later(self.lag_ms(), thread.go_on)
        return thread

    def ended(self, thread: SimulatedThread) -> None:
        """Called by threads."""
        self._alive.pop(thread, None)

    def close(self) -> None:
        """The run has ended: let all threads end."""
        self.is_over = True
        while self._alive:
            thread, _ = self._alive.popitem()
            thread.end()

    def start(self, work: _Work, name: str) -> threads.Running:
        """See ``weir.threads.Threads``."""
        assert self.current is not None, "only a simulated thread can start one"
        return self.spawn(self.current.process, work, name)

    def is_current(self, thread: threads.Running) -> bool:
        """See ``weir.threads.Threads``."""
        return thread is self.current

    def lock(self) -> threads.Lock:
        """See ``weir.threads.Threads``."""
        return _Lock(self)

    def condition(self) -> threads.Condition:
        """See ``weir.threads.Threads``."""
        return _Condition(self)

    def condition_of_one(self) -> threads.Condition:
        """See ``weir.threads.Threads``."""
        return _Condition(self)

    def event(self) -> threads.Event:
        """See ``weir.threads.Threads``."""
        return _Event(self)

    def pool(self, threads_max: int, name: str) -> Executor:
        """See ``weir.threads.Threads``."""
        return _Pool(self, threads_max, name)

    def wait(self, futures: Collection[Future[Any]], timeout_s: float | None) -> bool:
        """See ``weir.threads.Threads``."""
        deadline_ms = None if timeout_s is None else self._now_ms() + timeout_s * 1e3 / SCALE
        for future in futures:
            while not future.done():
                left_s = None if deadline_ms is None else (deadline_ms - self._now_ms()) * SCALE / 1e3
                if left_s is not None and left_s <= 0:
                    return False
                waits = _Waits(self)
                future.add_done_callback(waits.done)
                waits.wait(left_s)
        return True

    def sleep(self, seconds: float) -> None:
        """See ``weir.threads.Threads``."""
        _Waits(self).wait(max(seconds, 0.0))

    def _now_ms(self) -> float:
        return 0.0 if self.current is None else self.current.process.world.now_ms
