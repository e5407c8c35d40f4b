"""How a subtask sleeps until there is input: for the first element, for a wave of them, or for a moment."""

from __future__ import annotations

from task_manager.exchange.deliveries import Delivery
from task_manager.exchange.inbox import Inbox, Wave
from task_manager.exchange.output import Output
from task_manager.exchange.pace import Pace
from task_manager.progress import SubtaskProgress
from weir.clock import Clock

#: Longest sleep of a loop with nothing to do; work, credits and cancellation end it earlier.
_SLEEP_S_MAX = 0.5
#: A subtask that lets rows gather for longer sleeps so long whatever comes; for less, that would be one sleep more.
_LONG_REST_S = 0.004


class InputWait:
    """Sleeps at an inbox as the pace of a subtask says. One per subtask, called by its thread."""

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
