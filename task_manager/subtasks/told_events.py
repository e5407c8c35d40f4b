"""Events of a rescale that other threads tell a subtask, which takes them in between two batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock

from task_manager.subtasks.mailbox import Mailbox


class ToldEvents:
    """The events that wait in a subtask's mailbox."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lock = Lock()
        self._waiting = 0
        #: The last row is behind the subtask: no event is taken any more.
        self._is_leaving = False

    def tell(self, take: Callable[[], None]) -> Future[None] | None:
        """Let the subtask's thread ``take`` an event; any thread may call it. None: no event is taken any more."""
        with self._lock:
            if self._is_leaving:
                return None
            self._waiting += 1
            return self._mailbox.post(partial(self._take, take))

    def may_leave(self) -> bool:
        """Take no more events, unless some wait that were taken; called by the subtask's thread."""
        with self._lock:
            self._is_leaving = self._waiting == 0
            return self._is_leaving

    def _take(self, take: Callable[[], None]) -> None:
        try:
            take()
        finally:
            with self._lock:
                self._waiting -= 1
