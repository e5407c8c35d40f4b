"""Whether a failed job starts again, and after which wait. Pure; the caller brings the time.

The control plane asks once per failure (``job_model.Restart``) and tells when the job runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from weir.errors import FailureKind


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Start again from the latest checkpoint."""

    delay_ms: int
    #: Counts restarts without a stable period in between, from 1.
    attempt: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The job fails for good; the reason is one line and starts with the cause of the last failure."""

    reason: str
    #: What is read at that place ends processes.
    at_place: bool = False


class RestartPolicy:
    """Counts restarts in a row; a stable period of running starts the count anew.

    The first restart of a row comes at once, the second after ``delay_ms``; each further one waits twice as
    long as the one before, at most ``delay_ms_max``. Outages have a row of their own without a limit: a full disk or a
    broken network must not end a job, however long it lasts. It ends with a stable period too, and only if a checkpoint
    was complete in it: a job that runs for a moment each time, as on a full disk, waits longer and longer.

    A process that dies is no outage if it does so again and again: what a task manager reads there ends it. So failures
    by deaths, without a complete checkpoint in between, are limited like others.

    Rows do not count either where they are put aside: the share of dead letters is what bounds them. Progress since the
    last restart, a complete checkpoint, is asked for, so that this comes to an end.
    """

    def __init__(
        self, attempts: int, delay_ms: int, delay_ms_max: int, stable_ms: int, *, strict: bool = False
    ) -> None:
        """``attempts``: restarts in a row at most, 0: none. The settings are those of ``restart_*`` in config.json.

        ``strict``: rows that make a step raise end the job at once.

        Raises:
            ValueError: one of the numbers is negative.
        """
        if min(attempts, delay_ms, delay_ms_max, stable_ms) < 0:
            raise ValueError("restart settings must not be negative")
        self._attempts = attempts
        self._delay_ms = delay_ms
        self._delay_ms_max = delay_ms_max
        self._stable_ms = stable_ms
        self._strict = strict
        self._in_a_row = 0
        self._outages = 0
        self._running_since_ms: int | None = None
        self._has_progressed = False
        #: Failures since the last complete checkpoint in which a process died.
        self._deaths = 0
        self._has_died = False

    @property
    def is_allowed(self) -> bool:
        """Return whether jobs are restarted at all (``JobMachine(restarts=...)``)."""
        return self._attempts > 0

    @property
    def in_a_row(self) -> int:
        """Restarts since the last stable period."""
        return self._in_a_row

    def running(self, now_ms: int) -> None:
        """The job reached RUNNING; the stable period counts from here."""
        self._running_since_ms = now_ms
        self._has_progressed = False

    def progressed(self) -> None:
        """A checkpoint is complete."""
        self._has_progressed = True
        self._deaths, self._has_died = 0, False

    def died(self) -> None:
        """The process of a task manager has ended without a word; several that end together are one failure."""
        self._has_died = True

    def decide(
        self, now_ms: int, cause: str, kind: FailureKind = FailureKind.OTHER, *, is_isolated: bool = False
    ) -> RestartAfter | GiveUp:
        """The job failed at ``now_ms``, of any clock that never goes back.

        ``is_isolated``: in a step whose rows are put aside after a restart.
        """
        since_ms = self._running_since_ms
        if since_ms is not None and now_ms - since_ms >= self._stable_ms:
            self._in_a_row = 0
            if self._has_progressed:
                self._outages = 0
        self._running_since_ms = None
        if not self._attempts or kind is FailureKind.PERMANENT:
            return GiveUp(cause)
        if self._strict and kind is FailureKind.ROWS:
            return GiveUp(
                f"{cause}; a strict job takes none: mend it, or run without --strict (controlPlane.strict)"
            )
        if is_isolated and kind is FailureKind.ROWS and self._has_progressed:
            return RestartAfter(0, max(self._in_a_row, 1))
        self._deaths += self._has_died
        self._has_died = False
        if self._deaths > self._attempts:
            return GiveUp(
                f"{cause}; given up after {self._deaths} deaths of task managers without a complete checkpoint in "
                "between: what they read there, or a function of the job, ends the process (their logs may say more; "
                "restart_attempts)",
                at_place=True,
            )
        if kind is FailureKind.OUTAGE:
            self._outages += 1
            return RestartAfter(self._delay(self._outages), self._outages)
        if self._in_a_row >= self._attempts:
            return GiveUp(
                f"{cause}; given up after {self._in_a_row} restarts without {self._stable_ms} ms of stable running "
                "in between (restart_attempts, restart_stable_ms)"
            )
        self._in_a_row += 1
        return RestartAfter(self._delay(self._in_a_row), self._in_a_row)

    def _delay(self, attempt: int) -> int:
        return 0 if attempt == 1 else back_off_ms(attempt - 1, self._delay_ms, self._delay_ms_max)


def back_off_ms(attempt: int, delay_ms: int, delay_ms_max: int) -> int:
    """How long to wait before an attempt, from 1: ``delay_ms``, then twice as long each time."""
    # The exponent is bounded: a large number of attempts must not make a huge number.
    return int(min(delay_ms << min(attempt - 1, 32), delay_ms_max))


class PoisonWatch:
    """Which steps raise at rows again and again: after a restart they meet the same rows."""

    def __init__(self, attempts: int) -> None:
        """``attempts``: failures of a step until its rows are put aside; 0: they never are."""
        self._attempts = attempts
        self._raised: Counter[str] = Counter()
        #: Names of steps; rows that make them raise are put aside from the next deployment on.
        self.isolated: set[str] = set()

    def failed(self, kind: FailureKind, step: str) -> bool:
        """The job failed; returns whether the step joins those that are isolated."""
        if not self._attempts or kind is not FailureKind.ROWS or not step:
            return False
        self._raised[step] += 1
        if self._raised[step] < self._attempts or step in self.isolated:
            return False
        self.isolated.add(step)
        return True
