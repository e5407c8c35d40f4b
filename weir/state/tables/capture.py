"""Dirty state as it was at the barrier of a checkpoint, on its way to the store while rows are processed.

The subtask's thread captures, which costs a copy; another thread writes. Until that is done, the cache keeps what was
captured and writes nothing newer, and :class:`WriteHold` keeps everything else of the subtask from the stores until
images of them are taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from weir import threads

#: Between two chunks of what is written: whoever waits for the store's lock or the GIL goes first.
_PAUSE_S = 0.0005
#: While the store cannot keep up.
_STALLED_PAUSE_S = 0.01
_STALLED_PAUSES_MAX = 500


class Capture:
    """The changes that one cache had to write at one moment; in the end :meth:`write` or :meth:`abandon` is called."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write: Callable[[], None] | None = write
        self._ended = threads.event()
        self._is_awaited = threads.event()
        self._is_written = False

    def write(self) -> None:
        """Write it down; called once, by the thread that takes the checkpoint's images.

        Raises:
            WeirError: the store failed; the cache takes the entries back.
        """
        try:
            if self._write is not None:
                self._write()
                self._is_written = True
        finally:
            self.abandon()

    def pause(self, is_stalled: Callable[[], bool] = lambda: False) -> None:
        """Called between two chunks by whoever writes; returns at once if the cache waits for the end.

        A store that cannot keep up gets more time (a write would hold up rows, too), but not for ever.
        """
        for _ in range(_STALLED_PAUSES_MAX):
            if self._is_awaited.wait(_PAUSE_S) or not is_stalled():
                return
            if self._is_awaited.wait(_STALLED_PAUSE_S):
                return

    def abandon(self) -> None:
        """Nobody will write it, unless somebody has."""
        self._write = None
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        """Whether it is written or given up."""
        return self._ended.is_set()

    def wait(self) -> bool:
        """Wait until it is written or given up; False: the entries are still to be written."""
        self._is_awaited.set()
        self._ended.wait()
        return self._is_written


class WriteHold:
    """Lets writes of a subtask wait until images of its stores are taken; all but those of one thread."""

    def __init__(self) -> None:
        self._released = threads.event()
        self._thread = 0
        #: Somebody waits for the end of the hold.
        self.is_awaited = False
        self._awaited: Callable[[], None] | None = None

    def pass_here(self) -> None:
        """The calling thread writes what was captured: it need not wait."""
        self._thread = threading.get_ident()

    def when_awaited(self, call: Callable[[], None]) -> None:
        """Call this, in its thread, when somebody begins to wait; whoever has waited before shows as is_awaited."""
        self._awaited = call

    def release(self) -> None:
        """Nothing waits any more; safe to call twice."""
        self._released.set()

    @property
    def is_passed_here(self) -> bool:
        """Whether others wait, and the calling thread writes what was captured."""
        return self._thread == threading.get_ident() and not self._released.is_set()

    @property
    def is_released(self) -> bool:
        """Whether nothing waits any more."""
        return self._released.is_set()

    def wait(self) -> None:
        """Called before a write, by any thread."""
        if self._thread == threading.get_ident() or self._released.is_set():
            return
        self.is_awaited = True
        if self._awaited is not None:
            self._awaited()
        self._released.wait()
