"""Events of a rescale that other threads tell a subtask, which takes them in between two batches."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock

from task_manager.subtasks.mailbox import Mailbox
from weir.protocol.rescale.rescale_owner import OwnerEvent


class ToldEvents:
    """The events that wait in a subtask's mailbox; ``handle`` takes one in, in the subtask's thread."""

    def __init__(self, mailbox: Mailbox, handle: Callable[[OwnerEvent], None]) -> None:
        self._mailbox, self._handle = mailbox, handle
        self._lock = Lock()
        self._waiting = 0
        #: The last row is behind the subtask: no event is taken any more.
        self._is_leaving = False

    def tell(self, event: OwnerEvent) -> Future[None] | None:
        """Let the subtask take an event in; any thread may call it. None: no event is taken any more."""
        with self._lock:
            if self._is_leaving:
                return None
            self._waiting += 1
            return self._mailbox.post(partial(self._take, event))

    def may_leave(self) -> bool:
        """Take no more events, unless some wait that were taken; called by the subtask's thread."""
        with self._lock:
            self._is_leaving = self._waiting == 0
            return self._is_leaving

    def _take(self, event: OwnerEvent) -> None:
        try:
            self._handle(event)
        finally:
            with self._lock:
                self._waiting -= 1
