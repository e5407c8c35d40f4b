"""The life of a job as an explicit state machine. Pure: events in, actions out, no clock, no I/O.

The control plane's only thread for decisions calls :meth:`JobMachine.handle` with every event, in order,
and carries out the actions it returns, in order. What an action leads to comes back as events.
``TRANSITIONS`` holds every move; ``JobMachine.HANDLERS`` says which method handles which event in which
state. Any other event raises :class:`~weir.errors.InvalidTransitionError` and changes nothing, so a server
that feeds reports of other processes to the machine survives a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from weir.errors import FailureKind
from weir.protocol.job.job_model import (
    Action,
    AddSubtasks,
    Assignment,
    Cancel,
    CancelRequested,
    CommitFinal,
    Deploy,
    DeploymentFailed,
    Event,
    FailRequested,
    Failure,
    FinalCommitted,
    JobEnded,
    JobState,
    KeepSubtasks,
    Restart,
    RestartNow,
    RestartRefused,
    RestartRequested,
    RetireSubtasks,
    SlotsAvailable,
    Start,
    SubtaskReported,
    SubtaskStatus,
    TakeOver,
    TaskManagerLost,
)
from weir.protocol.job.job_steps import JobSteps
from weir.subtask_names import in_step, without_step

__all__ = [
    "Action",
    "AddSubtasks",
    "Assignment",
    "Cancel",
    "CancelRequested",
    "CommitFinal",
    "Deploy",
    "DeploymentFailed",
    "Event",
    "FailRequested",
    "Failure",
    "FinalCommitted",
    "JobEnded",
    "JobMachine",
    "JobState",
    "KeepSubtasks",
    "Restart",
    "RestartNow",
    "RestartRefused",
    "RestartRequested",
    "RetireSubtasks",
    "SlotsAvailable",
    "Start",
    "SubtaskReported",
    "SubtaskStatus",
    "TakeOver",
    "TaskManagerLost",
]

#: From the type of an event to the method of :class:`JobMachine` that handles it.
Handlers = Mapping[type, Callable[["JobMachine", Any], list[Action]]]


class JobMachine(JobSteps):
    """A job's state and its subtasks' statuses. Not safe for use by several threads at once."""

    def handle(self, event: Event) -> list[Action]:
        """Take one event in; returns what to do now, in order.

        Raises:
            InvalidTransitionError: the event cannot happen in this state. Nothing has changed.
        """
        if isinstance(event, SubtaskReported | DeploymentFailed) and (
            event.generation not in (None, self._generation)
        ):
            return []
        handler = self.HANDLERS[self._state].get(type(event))
        if handler is None:
            raise self._invalid(f"{event} in state {self._state.value}")
        return handler(self, event)

    # --- handlers: one for each meaning of an event ---------------------------------------------------------

    def _deploy(self, event: SlotsAvailable) -> list[Action]:
        if set(event.placement) != set(self._subtasks.statuses):
            raise self._invalid("a placement must name exactly the job's subtasks")
        self._subtasks.placement = dict(event.placement)
        self._move(JobState.DEPLOYING, "all subtasks have a slot")
        for subtask in self._subtasks.statuses:
            self._subtasks.statuses[subtask] = SubtaskStatus.DEPLOYING
        return [Deploy(self._subtasks.assignments(self._subtasks.statuses, last_stage_first=True))]

    def _report_while_live(self, event: SubtaskReported) -> list[Action]:
        """Take a report in DEPLOYING or RUNNING: progress, or the first failure."""
        if not self._record(event):
            return []
        if self._subtasks.drop_if_expendable(event.subtask):
            return self._advance()
        match event.status:
            case SubtaskStatus.FAILED:
                return self._restart_or_fail(self._failure_of(event))
            case SubtaskStatus.CANCELED:
                reason = event.cause or "its task manager stopped it"
                cause = f"{self._name_of(event.subtask)} was cancelled: {reason}"
                return self._restart_or_fail(Failure(cause, is_secondary=True))
            case SubtaskStatus.DEPLOYED if self._state is JobState.RUNNING:
                return [Start(self._subtasks.assignments([event.subtask], last_stage_first=True))]
            case _:
                return self._advance()

    def _failure_of(self, event: SubtaskReported) -> Failure:
        who = in_step(event.step, event.subtask) if event.step else self._name_of(event.subtask)
        cause = f"{who} failed: {without_step(event.cause, event.step) or 'no cause given'}"
        # Outside of the steps it is mostly a channel or a store of a subtask that failed before.
        is_secondary = not event.step and event.kind is not FailureKind.PERMANENT
        return Failure(cause, event.kind, event.step, is_secondary)

    def _report_while_restarting(self, event: SubtaskReported) -> list[Action]:
        """Nobody waits for the end of what still runs: the next deployment fences it. But it may tell the cause."""
        if not self._record(event) or event.status is not SubtaskStatus.FAILED:
            return []
        return self._learn(self._failure_of(event))

    def _report_while_stopping(self, event: SubtaskReported) -> list[Action]:
        """Take a report in FAILING or CANCELLING: the first cause stands, unless another failure led to it."""
        if not self._record(event):
            return []
        if event.status is SubtaskStatus.FAILED and self._state is JobState.FAILING:
            found = self._failure_of(event)
            if self._failure.is_secondary and not found.is_secondary:
                self._failure, self._cause = found, found.cause
        return self._end_if_quiet()

    def _deployment_failed(self, event: DeploymentFailed) -> list[Action]:
        # While the job runs, a rescale may have more on its way there, and this reply may be late.
        only = event.subtasks if self._state is JobState.RUNNING else None
        deploying = {SubtaskStatus.DEPLOYING}
        if not self._subtasks.end_all_of(event.task_manager, SubtaskStatus.FAILED, deploying, only):
            return []
        its = Failure(f"task manager {event.task_manager} refused its deployment: {event.cause}", event.kind)
        if self._state is JobState.DEPLOYING:
            return self._restart_or_fail(its)
        if self._state is JobState.RUNNING:
            cause = f"task manager {event.task_manager} refused a deployment: {event.cause}"
            return self._after_loss(Failure(cause, event.kind))
        if self._state is JobState.RESTARTING:
            return self._learn(its)
        return self._end_if_stopping()

    def _task_manager_lost(self, event: TaskManagerLost) -> list[Action]:
        """Only its live subtasks matter: one that had finished has handed on all its output."""
        live = {status for status in SubtaskStatus if not status.is_terminal}
        if not self._subtasks.end_all_of(event.task_manager, SubtaskStatus.LOST, live):
            return []
        if self._state in (JobState.DEPLOYING, JobState.RUNNING):
            cause = f"task manager {event.task_manager} is lost: {event.cause}"
            return self._after_loss(Failure(cause, FailureKind.OUTAGE))
        return self._end_if_stopping()

    def _cancel(self, event: CancelRequested) -> list[Action]:
        self._stops = event.stopped
        self._move(JobState.CANCELLING, "a user asked for it")
        if not self._subtasks.placement:
            for subtask in self._subtasks.statuses:
                self._subtasks.statuses[subtask] = SubtaskStatus.CANCELED
        return [*self._cancel_live(), *self._end_if_quiet()]

    def _fail_on_request(self, event: FailRequested) -> list[Action]:
        return self._restart_or_fail(Failure(event.cause, event.kind))

    def _restart_on_request(self, event: RestartRequested) -> list[Action]:
        """Restart as after a failure, but no failure: a job that is not restarted after those is restarted, too."""
        self._failure = Failure(event.cause, is_planned=True)
        self._move(JobState.RESTARTING, event.cause)
        return [*self._cancel_live(), Restart(self._failure)]

    def _restart_now(self, event: RestartNow) -> list[Action]:
        if not event.subtasks or event.generation <= self._generation:
            raise self._invalid(
                f"a restart with {len(event.subtasks)} subtasks under generation {event.generation}; generation "
                f"{self._generation} was before"
            )
        self._generation = event.generation
        self._subtasks.begin(event.subtasks)
        if self._state is not JobState.WAITING_FOR_TASK_MANAGERS:
            self._move(JobState.WAITING_FOR_TASK_MANAGERS, f"generation {event.generation}")
        return []

    def _take_over(self, event: TakeOver) -> list[Action]:
        if set(event.placement) != set(self._subtasks.statuses):
            raise self._invalid("a placement must name exactly the job's subtasks")
        self._subtasks.placement = dict(event.placement)
        for subtask in self._subtasks.statuses:
            self._subtasks.statuses[subtask] = SubtaskStatus.RUNNING
        self._move(JobState.RUNNING, "another control plane deployed it")
        return []

    def _restart_refused(self, event: RestartRefused) -> list[Action]:
        return self._fail(event.cause)

    def _final_committed(self, event: FinalCommitted) -> list[Action]:
        self._move(JobState.FINISHED, "the last checkpoint is complete")
        return [JobEnded(self._state, "")]

    def _add(self, event: AddSubtasks) -> list[Action]:
        known = sorted(event.placement.keys() & self._subtasks.statuses.keys())
        if known or not event.placement:
            raise self._invalid(
                f"subtasks to add: {', '.join(map(str, known)) or 'none'}; new ones are needed"
            )
        self._subtasks.add(event.placement)
        return [Deploy(self._subtasks.assignments(event.placement, last_stage_first=True))]

    def _keep(self, event: KeepSubtasks) -> list[Action]:
        self._check_known(event.subtasks)
        self._subtasks.provisional.difference_update(event.subtasks)
        return []

    def _retire(self, event: RetireSubtasks) -> list[Action]:
        self._check_known(event.subtasks)
        self._subtasks.retiring.update(event.subtasks)
        for subtask in event.subtasks:
            self._subtasks.drop_if_expendable(subtask)
        return self._advance()

    def _ignore(self, event: Event) -> list[Action]:
        return []

    def _late_report(self, event: SubtaskReported) -> list[Action]:
        self._record(event)
        return []

    _LIVE: ClassVar[Handlers] = {
        SubtaskReported: _report_while_live,
        DeploymentFailed: _deployment_failed,
        CancelRequested: _cancel,
        TaskManagerLost: _task_manager_lost,
        FailRequested: _fail_on_request,
    }
    _RUNNING: ClassVar[Handlers] = {
        **_LIVE,
        AddSubtasks: _add,
        KeepSubtasks: _keep,
        RetireSubtasks: _retire,
        RestartRequested: _restart_on_request,
    }
    #: Whether a lost task manager is missed, the checkpoint machine knows: it asks for a failure (FailRequested).
    _FINISHING: ClassVar[Handlers] = {
        SubtaskReported: _late_report,
        DeploymentFailed: _ignore,
        CancelRequested: _cancel,
        TaskManagerLost: _ignore,
        FailRequested: _fail_on_request,
        FinalCommitted: _final_committed,
        RestartRequested: _ignore,
    }
    _RESTARTING: ClassVar[Handlers] = {
        SubtaskReported: _report_while_restarting,
        DeploymentFailed: _deployment_failed,
        CancelRequested: _cancel,
        TaskManagerLost: _task_manager_lost,
        FailRequested: _ignore,
        RestartNow: _restart_now,
        RestartRefused: _restart_refused,
        FinalCommitted: _ignore,
        RestartRequested: _ignore,
    }
    _STOPPING: ClassVar[Handlers] = {
        SubtaskReported: _report_while_stopping,
        DeploymentFailed: _deployment_failed,
        CancelRequested: _ignore,
        TaskManagerLost: _task_manager_lost,
        FailRequested: _ignore,
        RestartRequested: _ignore,
    }
    _FINAL: ClassVar[Handlers] = {
        SubtaskReported: _late_report,
        DeploymentFailed: _ignore,
        CancelRequested: _ignore,
        TaskManagerLost: _ignore,
        FailRequested: _ignore,
        FinalCommitted: _ignore,
        RestartRequested: _ignore,
    }
    #: Which method handles which event in which state; an absent entry is an illegal event.
    HANDLERS: ClassVar[Mapping[JobState, Handlers]] = {
        JobState.WAITING_FOR_TASK_MANAGERS: {
            SlotsAvailable: _deploy,
            CancelRequested: _cancel,
            TaskManagerLost: _ignore,
            FailRequested: _ignore,
            RestartNow: _restart_now,
            TakeOver: _take_over,
        },
        JobState.DEPLOYING: _LIVE,
        JobState.RUNNING: _RUNNING,
        JobState.FINISHING: _FINISHING,
        JobState.RESTARTING: _RESTARTING,
        JobState.FAILING: _STOPPING,
        JobState.CANCELLING: _STOPPING,
        JobState.FINISHED: _FINAL,
        JobState.FAILED: _FINAL,
        JobState.CANCELLED: _FINAL,
        JobState.STOPPED: _FINAL,
    }
