"""Which threads of a task manager get a processor first: while many ask for single keys, the one that answers them.

An answer takes less than a millisecond of processor time in several pieces, each of which waits for the threads that
work on rows, unless these have a lower priority.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_NICENESS_MAX = 19
#: So many questions within so many seconds are many.
_MANY, _WINDOW_S = 50, 1.0
#: As long as so many come within this time they still are: from 50 a second to 5.
REST_S = 10.0
_THREADS = Path("/proc/self/task")


class AnsweringPriority:
    """The priority of a process's answers; used in the thread that answers questions, but :meth:`begin_thread`."""

    def __init__(self, steps: int) -> None:
        """``steps``: of niceness, by which other threads are below this one once many ask; 0: never."""
        # Elsewhere threads have no priority of their own.
        self._steps = steps if sys.platform == "linux" else 0
        self._began_s = float("-inf")
        self._count = 0
        #: Of all other threads, now and before; None: many do not ask.
        self._niceness: int | None = None
        self._usual = 0

    def asked(self, now_s: float) -> bool:
        """A question for a single key has come, at a monotonic second.

        Returns:
            Whether other threads go below this one now: :meth:`rested` is to be called every ``REST_S`` from then on.
        """
        if not self._steps:
            return False
        if self._niceness is None and now_s - self._began_s > _WINDOW_S:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._niceness is not None or self._count < _MANY:
            return False
        self._lower_others()
        self._count = 0
        return True

    def rested(self) -> bool:
        """Let all threads have their priority again if few have asked since the last call.

        Without a privilege (``CAP_SYS_NICE``, or a limit ``RLIMIT_NICE``) nobody can raise a priority: then it stays.

        Returns:
            Whether there is nothing more to look at.
        """
        count, self._count = self._count, 0
        if count >= _MANY:
            return False
        if self._raise_others():
            self._niceness = None
        return True

    def begin_thread(self) -> None:
        """Called by threads that are started by the one that answers, for what takes longer."""
        if self._niceness is not None:
            _lower(0, self._niceness)

    def _lower_others(self) -> None:
        """Threads have the priority of who starts them."""
        own = threading.get_native_id()
        self._usual = os.getpriority(os.PRIO_PROCESS, own)
        self._niceness = min(self._usual + self._steps, _NICENESS_MAX)
        # Another round for threads that were started meanwhile by such as had not been lowered yet.
        while any([_lower(each, self._niceness) for each in _thread_ids() if each != own]):
            pass

    def _raise_others(self) -> bool:
        """Return whether that is allowed."""
        try:
            while any([self._raise(each) for each in _thread_ids()]):
                pass
        except PermissionError:
            log.info(
                "threads stay at nice %d after many questions: raising them takes CAP_SYS_NICE",
                self._niceness,
            )
            return False
        return True

    def _raise(self, thread_id: int) -> bool:
        """Return whether the thread had been lowered.

        Raises:
            PermissionError: nobody here can raise it.
        """
        try:
            if os.getpriority(os.PRIO_PROCESS, thread_id) != self._niceness:
                return False
            os.setpriority(os.PRIO_PROCESS, thread_id, self._usual)
        except ProcessLookupError:
            return False
        return True


def _thread_ids() -> list[int]:
    return [int(each.name) for each in _THREADS.iterdir()]


def _lower(thread_id: int, niceness: int) -> bool:
    """Return whether the thread (0: this one) had a higher priority than that."""
    try:
        if os.getpriority(os.PRIO_PROCESS, thread_id) >= niceness:
            return False
        os.setpriority(os.PRIO_PROCESS, thread_id, niceness)
    except (ProcessLookupError, PermissionError):
        # It has ended; or it is of somebody else now, or a guard forbids it, and answers wait as without this.
        return False
    return True
