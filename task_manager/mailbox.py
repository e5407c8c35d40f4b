"""Commands to a subtask, beside its data: they end its sleeps, and some run even while it waits for credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from task_manager.channels import Inbox
from task_manager.credits import CancelledError

Command = Callable[[], None]


class Mailbox:
    """Any thread posts; the subtask's thread runs what was posted."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._cancelled = False
        self._closed = False
        self._lock = Lock()
        self._routing: deque[Command] = deque()
        self._commands: deque[Command] = deque()

    def post(self, command: Command) -> bool:
        """Run this between two batches; False if the subtask has ended and will never run it."""
        return self._post(self._commands, command)

    def post_routing(self, command: Command) -> bool:
        """Run this at once, also while the subtask waits for credit; it may only touch the output.

        Gives False if the subtask has ended and will never run it.
        """
        return self._post(self._routing, command)

    def close(self) -> bool:
        """The subtask is about to end: take no more commands. False while there are some to run first."""
        with self._lock:
            self._closed = not (self._routing or self._commands)
            return self._closed

    def discard(self) -> None:
        """The subtask has failed: take no more commands and forget those that wait."""
        with self._lock:
            self._closed = True
            self._routing.clear()
            self._commands.clear()

    def _post(self, queue: deque[Command], command: Command) -> bool:
        with self._lock:
            if self._closed:
                return False
            queue.append(command)
        self.inbox.wake()
        return True

    def cancel(self) -> None:
        """Stop the subtask at the next batch boundary, also when it waits."""
        self._cancelled = True
        self.inbox.wake()

    def check_cancelled(self) -> None:
        """Raise CancelledError if the subtask is to stop."""
        if self._cancelled:
            raise CancelledError("the subtask was cancelled")

    def run_commands(self) -> None:
        """Run everything that was posted; called between two batches."""
        self._run_routing()
        while self._commands:
            self._commands.popleft()()

    def wait_for_credit(self, timeout_s: float) -> None:
        """Sleep until a release or a command comes; called by the output, inside a batch."""
        self.inbox.wait(timeout_s)
        self._run_routing()

    def _run_routing(self) -> None:
        self.check_cancelled()
        while self._routing:
            self._routing.popleft()()
