"""What is known of a job's life: its state, its subtasks, why it failed; and what must hold of it. Pure.

``job.JobMachine`` decides what an event leads to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from weir.errors import InvalidTransitionError
from weir.protocol.job.job_model import TRANSITIONS, UNFINISHED_ENDS, Failure, JobState, SubtaskStatus
from weir.protocol.job.job_subtasks import JobSubtasks
from weir.subtask_names import NameOf, numbered
from weir.types import SubtaskId

_HISTORY_ENTRIES_MAX = 64


class JobLife:
    """A job's state and its subtasks' statuses; see :class:`~weir.protocol.job.job_machine.JobMachine`."""

    def __init__(
        self,
        subtasks: Iterable[SubtaskId],
        *,
        restarts: bool = False,
        commits_at_end: bool = False,
        generation: int = 1,
        name_of: NameOf = numbered,
    ) -> None:
        """A job that waits for task managers.

        Args:
            subtasks: what is to be deployed first.
            restarts: a failure leads to RESTARTING, and the machine asks with :class:`Restart`.
            commits_at_end: FINISHED takes a last checkpoint: the job is FINISHING until :class:`FinalCommitted`.
            generation: of the first deployment.
            name_of: what subtasks are called in causes.

        Raises:
            ValueError: there is no subtask.
        """
        self._history: deque[str] = deque(maxlen=_HISTORY_ENTRIES_MAX)
        self._subtasks = JobSubtasks(self._history.append)
        self._subtasks.begin(subtasks)
        if not self._subtasks.statuses:
            raise ValueError("a job needs at least one subtask")
        self._restarts = restarts
        self._commits_at_end = commits_at_end
        self._generation = generation
        self._name_of = name_of
        self._failure = Failure("")
        self._state = JobState.WAITING_FOR_TASK_MANAGERS
        self._cause = ""
        #: What ends the job is a savepoint.
        self._stops = False

    @property
    def state(self) -> JobState:
        """Where the job is."""
        return self._state

    @property
    def cause(self) -> str:
        """The first failure that ends the job, one line; empty while there is none."""
        return self._cause

    @property
    def restart_cause(self) -> str:
        """Why the job started again last, one line; empty if it never did."""
        return self._failure.cause

    @property
    def failure(self) -> Failure:
        """What the job started again for last, as far as it is known by now."""
        return self._failure

    @property
    def generation(self) -> int:
        """The deployment in force; reports about others have no effect."""
        return self._generation

    @property
    def statuses(self) -> Mapping[SubtaskId, SubtaskStatus]:
        """Every subtask's status (a copy)."""
        return dict(self._subtasks.statuses)

    @property
    def placement(self) -> Mapping[SubtaskId, str]:
        """The task manager of every subtask; empty before the deployment (a copy)."""
        return dict(self._subtasks.placement)

    @property
    def history(self) -> list[str]:
        """The latest moves and events, oldest first."""
        return list(self._history)

    def check_invariants(self) -> None:
        """Check what must hold between events.

        Raises:
            InvalidTransitionError: it does not; a bug in this module.
        """
        statuses = set(self._subtasks.statuses.values())
        all_terminal = all(status.is_terminal for status in statuses)
        failing = self._state in (JobState.FAILING, JobState.FAILED)
        rules = {
            "a failure has a cause, and only a failure": failing == bool(self._cause),
            "a final state has no live subtask": not self._state.is_final or all_terminal,
            "with no live subtask the state is final": not all_terminal
            or self._state.is_final
            or self._state in (JobState.FINISHING, JobState.RESTARTING),
            "waiting means waiting subtasks": (self._state is JobState.WAITING_FOR_TASK_MANAGERS)
            == (statuses == {SubtaskStatus.WAITING}),
            "finished means finished subtasks": self._state not in (JobState.FINISHING, JobState.FINISHED)
            or statuses == {SubtaskStatus.FINISHED},
            "a running job has no failed subtask": self._state not in (JobState.DEPLOYING, JobState.RUNNING)
            or not statuses & UNFINISHED_ENDS,
            "a placed subtask is not waiting": not self._subtasks.placement
            or SubtaskStatus.WAITING not in statuses,
        }
        broken = [rule for rule, holds in rules.items() if not holds]
        if broken:
            raise self._invalid(f"broken: {'; '.join(broken)}")

    def _move(self, target: JobState, reason: str) -> None:
        if target not in TRANSITIONS[self._state]:
            raise self._invalid(f"job: {self._state.value} -> {target.value}")
        self._history.append(f"job: {self._state.value} -> {target.value} ({reason})")
        self._state = target

    def _invalid(self, what: str) -> InvalidTransitionError:
        return InvalidTransitionError(f"{what}; history: {' | '.join(self._history) or 'empty'}")
