"""States, legal moves, events and actions of a job; ``weir.protocol.job`` has the machine over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weir.types import SubtaskId


class JobState(Enum):
    """Where a job is."""

    #: Nothing is deployed: there are not enough free slots yet.
    WAITING_FOR_TASK_MANAGERS = "WAITING_FOR_TASK_MANAGERS"
    #: Subtasks were sent to task managers; not all have reported that they are ready.
    DEPLOYING = "DEPLOYING"
    #: All subtasks were ready and have been told to start.
    RUNNING = "RUNNING"
    #: Every subtask has reached the end of its stream.
    FINISHED = "FINISHED"
    #: Something failed; the other subtasks have been told to stop.
    FAILING = "FAILING"
    #: Something failed and no subtask runs any more.
    FAILED = "FAILED"
    #: A user asked for the end; all subtasks have been told to stop.
    CANCELLING = "CANCELLING"
    #: A user asked for the end, and no subtask runs any more.
    CANCELLED = "CANCELLED"

    @property
    def is_final(self) -> bool:
        """Whether the job never leaves this state."""
        return not TRANSITIONS[self]


class SubtaskStatus(Enum):
    """Where a subtask is, as far as the control plane knows."""

    #: Not placed yet.
    WAITING = "WAITING"
    #: Sent to a task manager, which has not answered yet.
    DEPLOYING = "DEPLOYING"
    #: Ready: its channels can take data; it does not read yet.
    DEPLOYED = "DEPLOYED"
    #: Told to start and running.
    RUNNING = "RUNNING"
    #: Reached the end of its stream and flushed everything.
    FINISHED = "FINISHED"
    #: Ended by an error.
    FAILED = "FAILED"
    #: Stopped before its end.
    CANCELED = "CANCELED"
    #: Its task manager is gone.
    LOST = "LOST"

    @property
    def is_terminal(self) -> bool:
        """Whether the subtask runs no more."""
        return not SUBTASK_TRANSITIONS[self]


#: How a subtask ends without reaching the end of its stream.
UNFINISHED_ENDS = frozenset({SubtaskStatus.FAILED, SubtaskStatus.CANCELED, SubtaskStatus.LOST})
#: Legal moves of a subtask. A report may skip RUNNING: a short subtask ends before it is asked.
SUBTASK_TRANSITIONS: Mapping[SubtaskStatus, frozenset[SubtaskStatus]] = {
    SubtaskStatus.WAITING: frozenset({SubtaskStatus.DEPLOYING, SubtaskStatus.CANCELED}),
    SubtaskStatus.DEPLOYING: UNFINISHED_ENDS | {SubtaskStatus.DEPLOYED},
    SubtaskStatus.DEPLOYED: UNFINISHED_ENDS | {SubtaskStatus.RUNNING, SubtaskStatus.FINISHED},
    SubtaskStatus.RUNNING: UNFINISHED_ENDS | {SubtaskStatus.FINISHED},
    SubtaskStatus.FINISHED: frozenset(),
    SubtaskStatus.FAILED: frozenset(),
    SubtaskStatus.CANCELED: frozenset(),
    SubtaskStatus.LOST: frozenset(),
}

#: Legal moves of a job.
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.WAITING_FOR_TASK_MANAGERS: frozenset({JobState.DEPLOYING, JobState.CANCELLING}),
    JobState.DEPLOYING: frozenset({JobState.RUNNING, JobState.FAILING, JobState.CANCELLING}),
    JobState.RUNNING: frozenset({JobState.FINISHED, JobState.FAILING, JobState.CANCELLING}),
    JobState.FAILING: frozenset({JobState.FAILED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.FINISHED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotsAvailable:
    """``weir.protocol.placement.place`` found a task manager (by name) for every subtask."""

    placement: Mapping[SubtaskId, str]


@dataclass(frozen=True)
class SubtaskReported:
    """A task manager reports a subtask's status: DEPLOYED, RUNNING, FINISHED, FAILED or CANCELED."""

    subtask: SubtaskId
    status: SubtaskStatus
    #: One line a person understands; with FAILED.
    cause: str = ""


@dataclass(frozen=True)
class DeploymentFailed:
    """A task manager refused its deployment and runs none of it; one out of reach is a TaskManagerLost."""

    task_manager: str
    cause: str


@dataclass(frozen=True)
class CancelRequested:
    """A user asked for the end of the job."""


@dataclass(frozen=True)
class TaskManagerLost:
    """A task manager's lease expired, was replaced or was given back."""

    task_manager: str
    cause: str


@dataclass(frozen=True)
class FailRequested:
    """Something that is no subtask failed the job, such as a rescale that cannot go on."""

    cause: str


@dataclass(frozen=True)
class AddSubtasks:
    """A rescale adds subtasks, by task manager, while the job runs.

    Until :class:`KeepSubtasks` the job goes on without one that fails, is lost or stopped: it is removed.
    """

    placement: Mapping[SubtaskId, str]


@dataclass(frozen=True)
class KeepSubtasks:
    """The rescale that added these subtasks goes forward: they count like all others."""

    subtasks: tuple[SubtaskId, ...]


@dataclass(frozen=True)
class RetireSubtasks:
    """A rescale ends these subtasks: each is removed when it reports FINISHED."""

    subtasks: tuple[SubtaskId, ...]


Event = (
    SlotsAvailable
    | SubtaskReported
    | DeploymentFailed
    | CancelRequested
    | TaskManagerLost
    | FailRequested
    | AddSubtasks
    | KeepSubtasks
    | RetireSubtasks
)


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """A subtask and the name of the task manager that runs it."""

    subtask: SubtaskId
    task_manager: str


@dataclass(frozen=True)
class Deploy:
    """Create these subtasks, in this order: last stage first, so that receivers exist before senders."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Start:
    """Tell these subtasks to run, in this order: last stage first, sources last."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class Cancel:
    """Tell these subtasks to stop, sources first. The answer for one that is not there is CANCELED."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class JobEnded:
    """The job reached a final state; nothing runs any more and its slots are free."""

    state: JobState
    #: The first failure, one line; empty unless FAILED.
    cause: str


Action = Deploy | Start | Cancel | JobEnded
