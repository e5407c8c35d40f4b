"""Commands to a subtask, beside its data: they end its sleeps, and some run even while it waits for credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from task_manager.channels import Inbox
from task_manager.credits import CancelledError

Command = Callable[[], None]


class Mailbox:
    """Any thread posts; the subtask's thread runs what was posted."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._cancelled = False
        self._routing: deque[Command] = deque()
        self._commands: deque[Command] = deque()

    def post(self, command: Command) -> None:
        """Run this between two batches."""
        self._commands.append(command)
        self.inbox.wake()

    def post_routing(self, command: Command) -> None:
        """Run this at once, also while the subtask waits for credit; it may only touch the output."""
        self._routing.append(command)
        self.inbox.wake()

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
