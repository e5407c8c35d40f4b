"""Which threads of a task manager get a processor first: while many ask for single keys, the one that answers them.

An answer takes less than a millisecond of processor time in several pieces, each of which waits for the threads that
work on rows, unless these have a lower priority.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

_NICENESS_MAX = 19
#: So many questions within so many seconds are many.
_MANY, _WINDOW_S = 50, 1.0
_THREADS = Path("/proc/self/task")


class AnsweringPriority:
    """One for each process; used in the thread that answers questions, but :meth:`begin_thread`."""

    def __init__(self, steps: int) -> None:
        """``steps``: of niceness, by which other threads are below this one once many ask; 0: never."""
        # Elsewhere threads have no priority of their own.
        self._steps = steps if sys.platform == "linux" else 0
        self._began_s = float("-inf")
        self._count = 0
        #: Of all other threads; None: many have not asked yet.
        self._niceness: int | None = None

    def asked(self, now_s: float) -> None:
        """A question for a single key has come, at a monotonic second."""
        if self._niceness is not None or not self._steps:
            return
        if now_s - self._began_s > _WINDOW_S:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count >= _MANY:
            self._lower_others()

    def begin_thread(self) -> None:
        """Called by threads that are started by the one that answers, for what takes longer."""
        if self._niceness is not None:
            _lower(0, self._niceness)

    def _lower_others(self) -> None:
        """For good: without a privilege nobody can raise a priority again. Threads have that of who starts them."""
        own = threading.get_native_id()
        self._niceness = min(os.getpriority(os.PRIO_PROCESS, own) + self._steps, _NICENESS_MAX)
        # Another round for threads that were started meanwhile by such as had not been lowered yet.
        while any([_lower(each, self._niceness) for each in _thread_ids() if each != own]):
            pass


def _thread_ids() -> list[int]:
    return [int(each.name) for each in _THREADS.iterdir()]


def _lower(thread_id: int, niceness: int) -> bool:
    """Whether the thread (0: this one) had a higher priority than that."""
    try:
        if os.getpriority(os.PRIO_PROCESS, thread_id) >= niceness:
            return False
        os.setpriority(os.PRIO_PROCESS, thread_id, niceness)
    except (ProcessLookupError, PermissionError):
        # It has ended; or it is of somebody else now, or a guard forbids it, and answers wait as without this.
        return False
    return True
