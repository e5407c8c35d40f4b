"""Implements ``weir.threads`` for simulated processes: locks, events, pools, and threads that take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from experiments.simulation.turns import SimulatedThread, Waits, WorldIsOverError
from experiments.simulation.world import SCALE, Process
from weir import threads

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
_Work = Callable[[], None]


class _Lock:
    """Implements ``weir.threads.Lock``."""

    def __init__(self, owner: SimulatedThreads) -> None:
        self._waits = Waits(owner)
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
        self._notified = Waits(owner)

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
        self._waits = Waits(owner)
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
                waits = Waits(self)
                future.add_done_callback(waits.done)
                waits.wait(left_s)
        return True

    def sleep(self, seconds: float) -> None:
        """See ``weir.threads.Threads``."""
        Waits(self).wait(max(seconds, 0.0))

    def _now_ms(self) -> float:
        return 0.0 if self.current is None else self.current.process.world.now_ms
