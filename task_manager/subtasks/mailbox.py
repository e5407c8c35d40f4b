"""Commands to a subtask, beside its data: they end its sleeps, and some run even while it waits for credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock

from task_manager.exchange.credits import CancelledError
from task_manager.exchange.inbox import Inbox

Command = Callable[[], None]
#: A command, who waits for it, and whether it may run at a pause.
_Posted = tuple[Command, Future[None], bool]


class Mailbox:
    """Any thread posts; the subtask's thread runs what was posted."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._cancelled = False
        self._closed = False
        self._lock = Lock()
        self._routing: deque[_Posted] = deque()
        self._commands: deque[_Posted] = deque()

    def post(self, command: Command, *, wakes: bool = True, at_pauses: bool = False) -> Future[None] | None:
        """Run this between two batches; None if the subtask has ended and will never run it.

        Without ``wakes`` it has time until something else ends the subtask's sleep, which is soon. With ``at_pauses``
        it may also run where an operator has done a part of what is due (``weir.operators.pauses``), and then before
        others that were posted earlier.

        The future is done when the command was run; it fails with what the command raised, and with CancelledError
        if the subtask fails or stops before it comes to it.
        """
        return self._post(self._commands, command, wakes=wakes, at_pauses=at_pauses)

    def post_routing(self, command: Command) -> Future[None] | None:
        """Run this at once, also while the subtask waits for credit; it may only touch the output.

        Returns what :meth:`post` returns.
        """
        return self._post(self._routing, command)

    def close(self) -> bool:
        """The subtask is about to end: take no more commands. False while there are some to run first."""
        with self._lock:
            self._closed = not (self._routing or self._commands)
            return self._closed

    def discard(self, cause: BaseException | None = None) -> None:
        """The subtask has failed: take no more commands and forget those that wait, who are told of the cause."""
        with self._lock:
            self._closed = True
            left = [*self._routing, *self._commands]
            self._routing.clear()
            self._commands.clear()
        for _, future, _ in left:
            why = "" if cause is None else f": {cause}"
            future.set_exception(CancelledError(f"the subtask has ended{why}"))

    def _post(
        self, queue: deque[_Posted], command: Command, *, wakes: bool = True, at_pauses: bool = False
    ) -> Future[None] | None:
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                return None
            queue.append((command, future, at_pauses))
        if wakes:
            self.inbox.wake()
        return future

    def cancel(self) -> None:
        """Stop the subtask at the next batch boundary, also when it waits."""
        self._cancelled = True
        self.inbox.wake()

    @property
    def is_cancelled(self) -> bool:
        """Return whether the subtask was told to stop."""
        return self._cancelled

    def check_cancelled(self) -> None:
        """Raise CancelledError if the subtask is to stop."""
        if self._cancelled:
            raise CancelledError("the subtask was cancelled")

    def run_commands(self) -> None:
        """Run everything that was posted; called between two batches."""
        if self._cancelled or self._routing:
            self._run_routing()
        while self._commands:
            _run(*self._commands.popleft())

    def run_at_pause(self) -> None:
        """Run what may run at a pause."""
        if self._cancelled or self._routing:
            self._run_routing()
        while (posted := self._take_at_pause()) is not None:
            _run(*posted)

    def _take_at_pause(self) -> _Posted | None:
        with self._lock:
            posted = next((posted for posted in self._commands if posted[2]), None)
            if posted is not None:
                self._commands.remove(posted)
        return posted

    def wait_for_credit(self, timeout_s: float) -> None:
        """Sleep until a release or a command comes; called by the output, inside a batch."""
        self.inbox.wait(timeout_s)
        self._run_routing()

    def _run_routing(self) -> None:
        self.check_cancelled()
        while self._routing:
            _run(*self._routing.popleft())


def _run(command: Command, future: Future[None], _: bool) -> None:
    try:
        command()
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(None)
