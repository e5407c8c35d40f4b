"""What follows when something has happened to a job: it starts, restarts, fails or ends. Pure.

``job.JobMachine`` says which of these steps an event leads to in which state.
"""

from __future__ import annotations

from collections.abc import Iterable

from weir.errors import FailureKind
from weir.protocol.job.job_life import JobLife
from weir.protocol.job.job_model import (
    SUBTASK_TRANSITIONS,
    UNFINISHED_ENDS,
    Action,
    Cancel,
    CommitFinal,
    Failure,
    JobEnded,
    JobState,
    Restart,
    Start,
    SubtaskReported,
    SubtaskStatus,
)
from weir.types import SubtaskId


class JobSteps(JobLife):
    """Steps of a job; :class:`~weir.protocol.job.job_machine.JobMachine` adds the events."""

    def _record(self, event: SubtaskReported) -> bool:
        """Take a report over; False if it says nothing new.

        The machine itself sets LOST, and FAILED for a refused deployment; late reports do not undo that.
        """
        current = self._subtasks.statuses.get(event.subtask)
        if current is None and event.subtask in self._subtasks.removed:
            return False
        if current is None:
            raise self._invalid(f"a report about subtask {event.subtask}, which the job does not have")
        if event.status in (SubtaskStatus.WAITING, SubtaskStatus.DEPLOYING, SubtaskStatus.LOST):
            raise self._invalid(f"a task manager cannot report {event.status.value} ({event.subtask})")
        if event.status is current or current in (SubtaskStatus.LOST, SubtaskStatus.FAILED):
            return False
        if event.status not in SUBTASK_TRANSITIONS[current]:
            raise self._invalid(f"subtask {event.subtask}: {current.value} -> {event.status.value}")
        starts = event.status in (SubtaskStatus.RUNNING, SubtaskStatus.FINISHED)
        if starts and self._state is JobState.DEPLOYING:
            raise self._invalid(f"subtask {event.subtask} is {event.status.value} before it was started")
        self._subtasks.statuses[event.subtask] = event.status
        self._history.append(f"{event.subtask}: {current.value} -> {event.status.value}")
        return True

    def _check_known(self, subtasks: Iterable[SubtaskId]) -> None:
        unknown = [str(subtask) for subtask in subtasks if subtask not in self._subtasks.statuses]
        if unknown:
            raise self._invalid(f"the job does not have subtasks {', '.join(unknown)}")

    def _after_loss(self, failure: Failure) -> list[Action]:
        """Subtasks were lost: the job fails, unless it can do without all of them."""
        for subtask in sorted(self._subtasks.provisional):
            self._subtasks.drop_if_expendable(subtask)
        if UNFINISHED_ENDS & set(self._subtasks.statuses.values()):
            return self._restart_or_fail(failure)
        return self._advance()

    def _advance(self) -> list[Action]:
        statuses = set(self._subtasks.statuses.values())
        if self._state is JobState.DEPLOYING and statuses == {SubtaskStatus.DEPLOYED}:
            self._move(JobState.RUNNING, "all subtasks are ready")
            return [Start(self._subtasks.assignments(self._subtasks.statuses, last_stage_first=True))]
        if statuses == {SubtaskStatus.FINISHED} and self._commits_at_end:
            self._move(JobState.FINISHING, "all subtasks reached the end of the stream")
            return [CommitFinal(tuple(self._subtasks.statuses))]
        if statuses == {SubtaskStatus.FINISHED}:
            self._move(JobState.FINISHED, "all subtasks reached the end of the stream")
            return [JobEnded(self._state, "")]
        return []

    def _restart_or_fail(self, failure: Failure) -> list[Action]:
        self._failure = failure
        if not self._restarts or failure.kind is FailureKind.PERMANENT:
            return self._fail(failure.cause)
        self._move(JobState.RESTARTING, failure.cause)
        return [*self._cancel_live(), Restart(failure)]

    def _learn(self, failure: Failure) -> list[Action]:
        """Another failure while the job starts again: what led to the first one, or a reason not to."""
        if failure.kind is FailureKind.PERMANENT:
            self._failure = failure
            return self._fail(failure.cause)
        if self._failure.is_secondary and not failure.is_secondary:
            self._failure = failure
        return []

    def _fail(self, cause: str) -> list[Action]:
        self._cause = cause
        self._move(JobState.FAILING, cause)
        return [*self._cancel_live(), *self._end_if_quiet()]

    def _cancel_live(self) -> list[Action]:
        live = [subtask for subtask, status in self._subtasks.statuses.items() if not status.is_terminal]
        return [Cancel(self._subtasks.assignments(live, last_stage_first=False))] if live else []

    def _end_if_stopping(self) -> list[Action]:
        return self._end_if_quiet() if self._state in (JobState.FAILING, JobState.CANCELLING) else []

    def _end_if_quiet(self) -> list[Action]:
        if not all(status.is_terminal for status in self._subtasks.statuses.values()):
            return []
        ended = JobState.STOPPED if self._stops else JobState.CANCELLED
        target = JobState.FAILED if self._state is JobState.FAILING else ended
        self._move(target, "no subtask runs any more")
        return [JobEnded(target, self._cause)]
