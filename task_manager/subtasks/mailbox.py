"""How a subtask sleeps until there is input, and commands to it, beside its data.

They end its sleeps, and some run even while it waits for credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock

from task_manager.exchange.channels import CancelledError
from task_manager.exchange.inbox import Delivery, Inbox, Wave
from task_manager.exchange.output import Output
from task_manager.exchange.pace import Pace
from task_manager.progress import SubtaskProgress
from weir.clock import Clock

Command = Callable[[], None]
#: A command, who waits for it, and whether it may run at a pause.
_Posted = tuple[Command, Future[None], bool]

#: Longest sleep of a loop with nothing to do; work, credits and cancellation end it earlier.
_SLEEP_S_MAX = 0.5
#: A subtask that lets rows gather for longer sleeps so long whatever comes; for less, that would be one sleep more.
_LONG_REST_S = 0.004


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


class InputWait:
    """Sleeps at an inbox as the pace of a subtask says: for the first element, for a wave of them, or for a moment.

    One per subtask, called by its thread.
    """

    def __init__(
        self, inbox: Inbox, output: Output, pace: Pace, progress: SubtaskProgress, clock: Clock
    ) -> None:
        self._inbox = inbox
        self._output = output
        self._pace = pace
        self._progress = progress
        self._clock = clock

    def poll(
        self, until_s: float, gather_until_s: float = 0.0, inputs: int = 1, timer_s: float = float("inf")
    ) -> Delivery | None:
        """Sleep until an element, a wake-up or a moment comes.

        Small batches gather until a second moment, and for a moment after the first of them: sources that poll at the
        same time send at the same time, so the others of the ``inputs`` mostly come at once. Waves wait for more of
        them past the first moment, which may be that of housekeeping, but not past a third one, ``timer_s``.
        """
        began_s = self._clock.monotonic_s()
        timeout_s = min(until_s - began_s, _SLEEP_S_MAX)
        inbox = self._inbox
        is_woken = False
        if self._output.is_held and not inbox.has_gathered:
            self._output.let_go()
        wave_s = self._pace.wave_s if gather_until_s > 0 else 0.0
        if inbox.borrows and (wave_s > 0 or gather_until_s <= 0):
            inbox.stop_borrowing()
        if wave_s > 0:
            rest_s = min(gather_until_s - began_s, timeout_s)
            later_s, apart_s = timeout_s - max(rest_s, 0.0), self._pace.wave_apart_s
            wave = inbox.await_wave(rest_s, later_s, wave_s, inputs, apart_s, timer_s)
            if len(inbox) and wave is not Wave.DUE:
                self._pace.saw_wave(whole=wave is Wave.WHOLE)
            is_woken = wave in (Wave.WOKEN, Wave.DUE)
            timeout_s = 0.0
        elif gather_until_s > 0:
            if gather_until_s - began_s > _LONG_REST_S:
                # What comes before is not looked at: to be woken by the first of it would only cost.
                inbox.rest(min(gather_until_s - began_s, timeout_s))
                timeout_s = min(until_s - self._clock.monotonic_s(), _SLEEP_S_MAX)
            if not self._await_round(inbox, timeout_s, inputs):
                timeout_s = min(until_s - self._clock.monotonic_s(), _SLEEP_S_MAX)
                if inbox.wait_for_one(timeout_s):
                    self._gather(inbox, min(gather_until_s, until_s), inputs)
            timeout_s = 0.0
        delivery = None if is_woken else inbox.poll(timeout_s)
        self._progress.idle_s += self._clock.monotonic_s() - began_s
        # The next call lets it go: what a wave leads to leaves as one message.
        self._output.is_held = wave_s > 0
        return delivery

    def _await_round(self, inbox: Inbox, timeout_s: float, inputs: int) -> bool:
        """Where all inputs bring something at a time: wait for all of it as long as it is to come.

        False: none did, and it is to be waited for otherwise.
        """
        round_s = self._pace.round_s(self._clock.monotonic_s()) if inputs > 1 else 0.0
        elements = 0
        if round_s > 0:
            wait_s, borrows = min(round_s, timeout_s), self._pace.has_long_rounds
            if inbox.borrows and not borrows:
                inbox.stop_borrowing()
            elements = inbox.await_round(wait_s, inputs, self._pace.late_s, borrows=borrows)
            if round_s > timeout_s:
                return True
            if 0 < elements < inputs:
                self._pace.gathered(elements)
        if not elements and inbox.borrows and not inbox.is_woken:
            inbox.stop_borrowing()
        return elements > 0

    def _gather(self, inbox: Inbox, until_s: float, inputs: int) -> None:
        now_s = self._clock.monotonic_s()
        window_s = self._pace.window_s(now_s) if inputs > 1 else 0.0
        if until_s - now_s > window_s:
            inbox.gather(until_s - now_s)
        elif window_s > 0:
            inbox.gather(window_s, inputs)
            self._pace.gathered(len(inbox))


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
