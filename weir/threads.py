"""How threads start, wait and wake each other: on the machine, or in a simulation, which lets one run at a time.

What may wait goes through here: a simulation installs threads of its own, whose waits are steps of its scheduler and
take virtual time. A lock that is held for a moment only, by nobody who waits meanwhile, is a plain ``threading.Lock``.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from functools import partial
from types import TracebackType
from typing import Any, Protocol

#: Of ``prctl``: how much later than asked for the kernel may end a sleep of a thread, in ns.
_PR_SET_TIMERSLACK = 29


class Lock(Protocol):
    """As ``threading.Lock``."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; False: somebody else has it, and this call was not to wait."""

    def release(self) -> None:
        """Let go of it."""

    def __enter__(self) -> bool:
        """Take it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Let go of it."""


class Condition(Lock, Protocol):
    """As ``threading.Condition`` over a plain lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until somebody notifies, or for so many seconds; False: the time was over."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until it is true, or for so many seconds; returns what it is then."""

    def notify(self, n: int = 1) -> None:
        """Wake some who wait; the caller has the lock."""

    def notify_all(self) -> None:
        """Wake all who wait; the caller has the lock."""


class Event(Protocol):
    """As ``threading.Event``."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    def set(self) -> None:
        """Note that it has happened, and wake all who wait."""

    def clear(self) -> None:
        """Begin anew, as if it had not happened."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has happened, or for so many seconds; returns whether it has."""


class Running(Protocol):
    """A thread that was started."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or for so many seconds."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""


class Threads(Protocol):
    """Where threads come from."""

    def start(self, work: Callable[[], None], name: str) -> Running:
        """Run this in a thread that does not keep the process alive."""

    def is_current(self, thread: Running) -> bool:
        """Whether this is the thread that calls."""

    def lock(self) -> Lock:
        """A lock under which its holder may wait."""

    def condition(self) -> Condition:
        """A condition over a lock of its own."""

    def condition_of_one(self) -> Condition:
        """A condition on which one thread at a time waits, for which that costs less."""

    def event(self) -> Event:
        """An event that has not happened."""

    def pool(self, threads_max: int, name: str) -> Executor:
        """Threads that are made on demand."""

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> bool:
        """Wait until all are done, or for so many seconds; returns whether they are."""

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""


class _ConditionOfOne:
    """As ``threading.Condition``, which makes a lock for every wait; here is one for all waits of one thread.

    A subtask with small batches waits a thousand times a second, and half of what a wait costs are calls.
    """

    __slots__ = ("_lock", "_sleep", "_sleeps", "acquire", "release")

    def __init__(self) -> None:
        self._lock, self._sleep = threading.Lock(), threading.Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release
        #: Taken, but between a notification and the end of the wait that it ends.
        self._sleep.acquire()
        #: Somebody waits, and was not notified.
        self._sleeps = False

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """See :class:`Condition`."""
        self._sleeps = True
        self._lock.release()
        is_notified = False
        try:
            is_notified = self._sleep.acquire(True, -1 if timeout is None else max(timeout, 0.0))
        finally:
            self._lock.acquire()
            if not is_notified and not self._sleeps:
                # The notification came when the time was over.
                is_notified = self._sleep.acquire()
            self._sleeps = False
        return is_notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """See :class:`Condition`; woken early it begins the time again, which no caller minds."""
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        """See :class:`Condition`."""
        if self._sleeps:
            self._sleeps = False
            self._sleep.release()

    def notify_all(self) -> None:
        """See :class:`Condition`."""
        self.notify()


class MachineThreads:
    """Implements :class:`Threads`."""

    def start(self, work: Callable[[], None], name: str) -> Running:
        """See :class:`Threads`."""
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def is_current(self, thread: Running) -> bool:
        """See :class:`Threads`."""
        return thread is threading.current_thread()

    def lock(self) -> Lock:
        """See :class:`Threads`."""
        return threading.Lock()

    def condition(self) -> Condition:
        """See :class:`Threads`."""
        return threading.Condition(threading.Lock())

    def condition_of_one(self) -> Condition:
        """See :class:`Threads`."""
        return _ConditionOfOne()

    def event(self) -> Event:
        """See :class:`Threads`."""
        return threading.Event()

    def pool(self, threads_max: int, name: str) -> Executor:
        """See :class:`Threads`."""
        return ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def wait(self, futures: Collection[Future[Any]], timeout_s: float) -> bool:
        """See :class:`Threads`."""
        return not wait_for_futures(futures, timeout_s).not_done

    def sleep(self, seconds: float) -> None:
        """See :class:`Threads`."""
        time.sleep(seconds)


_MACHINE = MachineThreads()
_installed: Threads = _MACHINE
_rows: list[threading.Thread] = []
_rows_lock = threading.Lock()


def install(threads: Threads | None) -> None:
    """Let all that is made from now on use these; None: the machine's. Called by simulations only."""
    global _installed
    _installed = _MACHINE if threads is None else threads


def start(work: Callable[[], None], name: str) -> Running:
    """See :class:`Threads`."""
    return _installed.start(work, name)


@contextlib.contextmanager
def beside(work: Callable[[], None], name: str) -> Iterator[None]:
    """Run this in a thread while the block runs, and wait for it at the end; what it raises is raised there."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(error)

    thread = start(run, name)
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]


def is_current(thread: Running) -> bool:
    """See :class:`Threads`."""
    return _installed.is_current(thread)


def lock() -> Lock:
    """See :class:`Threads`."""
    return _installed.lock()


def condition() -> Condition:
    """See :class:`Threads`."""
    return _installed.condition()


def condition_of_one() -> Condition:
    """See :class:`Threads`."""
    return _installed.condition_of_one()


def event() -> Event:
    """See :class:`Threads`."""
    return _installed.event()


def pool(threads_max: int, name: str) -> Executor:
    """See :class:`Threads`."""
    return _installed.pool(threads_max, name)


def wait(futures: Collection[Future[Any]], timeout_s: float) -> bool:
    """See :class:`Threads`."""
    return _installed.wait(futures, timeout_s)


def sleep(seconds: float) -> None:
    """See :class:`Threads`."""
    _installed.sleep(seconds)


def works_on_rows() -> None:
    """Tell that the calling thread works on rows until it ends, for who decides on which processors these run."""
    with _rows_lock:
        _rows[:] = [each for each in _rows if each.is_alive()]
        _rows.append(threading.current_thread())


def that_work_on_rows() -> set[int]:
    """Returns the kernel's numbers of the threads that have called :func:`works_on_rows` and have not ended."""
    with _rows_lock:
        return {each.native_id for each in _rows if each.native_id is not None and each.is_alive()}


def processor_clock() -> Callable[[], float] | None:
    """Returns what tells, in any thread, the processors' time in s that the calling one has used; None: nothing does.

    What is returned raises OSError once the thread has ended.
    """
    if _installed is not _MACHINE or not hasattr(time, "pthread_getcpuclockid"):
        return None
    # By the thread itself: of one that has ended this would be undefined.
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def sleep_to_the_point() -> None:
    """Let sleeps of the calling thread end when they should: else Linux ends them 50 µs later, to wake others, too."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
