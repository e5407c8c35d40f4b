"""States, legal moves, events and actions of a job; ``weir.protocol.job.job_machine`` has the machine over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weir.errors import FailureKind
from weir.types import SubtaskId


class JobState(Enum):
    """Where a job is."""

    #: Nothing is deployed: there are not enough free slots yet.
    WAITING_FOR_TASK_MANAGERS = "WAITING_FOR_TASK_MANAGERS"
    #: Subtasks were sent to task managers; not all have reported that they are ready.
    DEPLOYING = "DEPLOYING"
    #: All subtasks were ready and have been told to start.
    RUNNING = "RUNNING"
    #: Every subtask has reached the end of its stream; the last checkpoint is not complete, or not all sinks know it.
    FINISHING = "FINISHING"
    #: Every subtask has reached the end of its stream, and what the sinks received is delivered.
    FINISHED = "FINISHED"
    #: Something failed; what still runs was told to stop, and the job starts again from the latest checkpoint.
    RESTARTING = "RESTARTING"
    #: Something failed for good; the other subtasks have been told to stop.
    FAILING = "FAILING"
    #: Something failed and no subtask runs any more.
    FAILED = "FAILED"
    #: A user asked for the end; all subtasks have been told to stop.
    CANCELLING = "CANCELLING"
    #: A user asked for the end, and no subtask runs any more.
    CANCELLED = "CANCELLED"
    #: A user asked for the end with a savepoint, which is complete, and no subtask runs any more.
    STOPPED = "STOPPED"

    @property
    def is_final(self) -> bool:
        """Return whether the job never leaves this state."""
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
        """Return whether the subtask runs no more."""
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
    JobState.WAITING_FOR_TASK_MANAGERS: frozenset(
        {JobState.DEPLOYING, JobState.RUNNING, JobState.CANCELLING}
    ),
    JobState.DEPLOYING: frozenset(
        {JobState.RUNNING, JobState.RESTARTING, JobState.FAILING, JobState.CANCELLING}
    ),
    JobState.RUNNING: frozenset(
        {JobState.FINISHING, JobState.FINISHED, JobState.RESTARTING, JobState.FAILING, JobState.CANCELLING}
    ),
    JobState.FINISHING: frozenset(
        {JobState.FINISHED, JobState.RESTARTING, JobState.FAILING, JobState.CANCELLING}
    ),
    JobState.RESTARTING: frozenset(
        {JobState.WAITING_FOR_TASK_MANAGERS, JobState.FAILING, JobState.CANCELLING}
    ),
    JobState.FAILING: frozenset({JobState.FAILED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.STOPPED}),
    JobState.FINISHED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
    JobState.STOPPED: frozenset(),
}


@dataclass(frozen=True)
class Failure:
    """Why a job cannot go on."""

    #: One line a person understands.
    cause: str
    kind: FailureKind = FailureKind.OTHER
    #: The step in which it was raised; "": in none.
    step: str = ""
    #: It may be what another failure led to: a subtask lost a peer, or was stopped. A better cause may follow.
    is_secondary: bool = False
    #: None at all: somebody wants the job to start again, at once.
    is_planned: bool = False


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlotsAvailable:
    """``weir.protocol.job.placement.place`` found a task manager (by name) for every subtask."""

    placement: Mapping[SubtaskId, str]


@dataclass(frozen=True)
class SubtaskReported:
    """A task manager reports a subtask's status: DEPLOYED, RUNNING, FINISHED, FAILED or CANCELED."""

    subtask: SubtaskId
    status: SubtaskStatus
    #: One line a person understands; with FAILED.
    cause: str = ""
    #: The deployment that the report is about; None: the one in force.
    generation: int | None = None
    #: With FAILED: what it says about the next attempt, and the step in which it was raised.
    kind: FailureKind = FailureKind.OTHER
    step: str = ""


@dataclass(frozen=True)
class DeploymentFailed:
    """A task manager refused its deployment and runs none of it; one out of reach is a TaskManagerLost."""

    task_manager: str
    cause: str
    #: The deployment that was refused; None: the one in force.
    generation: int | None = None
    kind: FailureKind = FailureKind.OTHER
    #: Those that it refused; None: all that it was to have.
    subtasks: tuple[SubtaskId, ...] | None = None


@dataclass(frozen=True)
class CancelRequested:
    """A user asked for the end of the job."""

    #: The end is STOPPED: a savepoint of the job is complete.
    stopped: bool = False


@dataclass(frozen=True)
class TaskManagerLost:
    """A task manager's lease expired, was replaced or was given back."""

    task_manager: str
    cause: str


@dataclass(frozen=True)
class FailRequested:
    """Something that is no subtask failed the job, such as a rescale that cannot go on.

    A job that may restart does so.
    """

    cause: str
    kind: FailureKind = FailureKind.OTHER


@dataclass(frozen=True)
class RestartRequested:
    """The job is to be deployed anew from a checkpoint that is complete, at once; nothing is read any more."""

    cause: str


@dataclass(frozen=True)
class RestartNow:
    """The answer to :class:`Restart`: the job starts again under a higher generation.

    The commit of a checkpoint must not be under way any more (``CheckpointMachine.is_settled``).
    """

    #: Those of the checkpoint from which it starts; of the job's first deployment if there is none.
    subtasks: tuple[SubtaskId, ...]
    generation: int


@dataclass(frozen=True)
class RestartRefused:
    """The other answer to :class:`Restart`: too many restarts, or nothing to start from. The job fails."""

    #: One line; the whole cause that a user sees.
    cause: str


@dataclass(frozen=True)
class TakeOver:
    """Another control plane deployed the job, and it runs: on these task managers, all of which are back."""

    placement: Mapping[SubtaskId, str]


@dataclass(frozen=True)
class FinalCommitted:
    """The last checkpoint is complete and all sinks know it (``checkpoint_model.FinalDone``)."""


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
    | RestartNow
    | RestartRequested
    | RestartRefused
    | FinalCommitted
    | TakeOver
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


@dataclass(frozen=True)
class Restart:
    """Ask the policy; then wait and answer with :class:`RestartNow`, or with :class:`RestartRefused`."""

    #: The first one; ``JobMachine.failure`` may name a better cause a moment later.
    failure: Failure


@dataclass(frozen=True)
class CommitFinal:
    """Make the last checkpoint (``checkpoint_model.FinalRequested``); :class:`FinalCommitted` follows."""

    #: All of the job, ended.
    subtasks: tuple[SubtaskId, ...]


Action = Deploy | Start | Cancel | Restart | CommitFinal | JobEnded
