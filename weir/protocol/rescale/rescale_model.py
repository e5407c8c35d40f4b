"""Phases, legal moves, events and actions of a rescale; ``rescale_coordinator`` has the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from weir.protocol.job.job_model import Assignment
from weir.protocol.routing import GroupMove, RoutingTable
from weir.types import SubtaskId


class RescalePhase(Enum):
    """Where a rescale is. From REROUTING on it only goes forward."""

    #: The plan is made; nothing has been sent.
    PLANNING = "PLANNING"
    #: New subtasks were sent to task managers; not all are ready, with their output channels open.
    DEPLOYING = "DEPLOYING"
    #: All subtasks of the stage were told the plan; not all have answered.
    PREPARING = "PREPARING"
    #: Upstream subtasks were told to switch; not all have.
    REROUTING = "REROUTING"
    #: All rows take the new way; groups pass to their new owners, and retiring subtasks end.
    HANDING_OVER = "HANDING_OVER"
    #: All groups have their new owners; their state follows in the background.
    MIGRATING = "MIGRATING"
    #: Of a source: a checkpoint is made, after which nothing is read.
    CHECKPOINTING = "CHECKPOINTING"
    #: Of a source: the job is deployed anew from that checkpoint, with the new subtasks.
    REDEPLOYING = "REDEPLOYING"
    #: Every group is where the plan wants it, and retired subtasks have ended.
    COMPLETE = "COMPLETE"
    #: Taken back before anybody switched; new subtasks are being stopped.
    ABORTING = "ABORTING"
    #: Taken back: the stage is as it was before.
    ABORTED = "ABORTED"
    #: Neither forward nor back was possible: the job failed or was stopped.
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Return whether the rescale is over."""
        return not RESCALE_TRANSITIONS[self]

    @property
    def is_reversible(self) -> bool:
        """Return whether the rescale can still be taken back."""
        return RescalePhase.ABORTING in RESCALE_TRANSITIONS[self]


_P = RescalePhase
#: Legal moves of a rescale. A stage without HASH input has nothing to prepare.
RESCALE_TRANSITIONS: Mapping[RescalePhase, frozenset[RescalePhase]] = {
    _P.PLANNING: frozenset({_P.DEPLOYING, _P.CHECKPOINTING}),
    _P.CHECKPOINTING: frozenset({_P.REDEPLOYING, _P.ABORTED, _P.FAILED}),
    _P.REDEPLOYING: frozenset({_P.COMPLETE, _P.FAILED}),
    _P.DEPLOYING: frozenset({_P.PREPARING, _P.REROUTING, _P.ABORTING, _P.FAILED}),
    _P.PREPARING: frozenset({_P.REROUTING, _P.ABORTING, _P.FAILED}),
    _P.REROUTING: frozenset({_P.HANDING_OVER, _P.FAILED}),
    _P.HANDING_OVER: frozenset({_P.MIGRATING, _P.COMPLETE, _P.FAILED}),
    _P.MIGRATING: frozenset({_P.COMPLETE, _P.FAILED}),
    _P.COMPLETE: frozenset(),
    _P.ABORTING: frozenset({_P.ABORTED, _P.FAILED}),
    _P.ABORTED: frozenset(),
    _P.FAILED: frozenset(),
}


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewSubtaskDeployed:
    """A new subtask is ready, and all its consumers have added its channels as inputs."""

    subtask: SubtaskId


@dataclass(frozen=True)
class NewSubtaskRefused:
    """A new subtask could not be deployed; it does not run."""

    subtask: SubtaskId
    cause: str


@dataclass(frozen=True)
class NewSubtaskEnded:
    """A new subtask has stopped after :class:`CancelNew`, and its consumers got the end of its stream."""

    subtask: SubtaskId


@dataclass(frozen=True)
class Prepared:
    """A subtask of the stage knows the plan."""

    subtask: SubtaskId


@dataclass(frozen=True)
class PrepareRefused:
    """A subtask of the stage cannot take part: it has ended."""

    subtask: SubtaskId
    cause: str


@dataclass(frozen=True)
class Rerouted:
    """An upstream subtask, or the task manager of one that has ended, has switched."""

    subtask: SubtaskId


@dataclass(frozen=True)
class GroupsOwned:
    """A subtask has taken these groups over."""

    subtask: SubtaskId
    groups: tuple[int, ...]


@dataclass(frozen=True)
class GroupsMigrated:
    """State of these groups is all at their owners, ``bytes`` more than reported before; groups may be none."""

    groups: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class GroupsSent:
    """Old owners have sent so many more bytes than reported before; so many more groups were relinked."""

    bytes: int
    relinked: int


@dataclass(frozen=True)
class RetiredFinished:
    """A retiring subtask has ended."""

    subtask: SubtaskId


@dataclass(frozen=True)
class PartyLost:
    """A subtask failed, or its task manager is gone."""

    subtask: SubtaskId
    cause: str
    #: It had reached the end of its stream; what is lost is whoever spoke for it, and its store.
    had_finished: bool = False


@dataclass(frozen=True)
class JobStopped:
    """The job left RUNNING for another reason: it finished, failed or was cancelled."""

    cause: str
    #: It reached the end of its streams.
    finished: bool = False


RescaleEvent = (
    NewSubtaskDeployed
    | NewSubtaskRefused
    | NewSubtaskEnded
    | Prepared
    | PrepareRefused
    | Rerouted
    | GroupsOwned
    | GroupsMigrated
    | GroupsSent
    | RetiredFinished
    | PartyLost
    | JobStopped
)


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DeployNew:
    """Create these subtasks; each reports when it is ready and its consumers know its channels."""

    assignments: tuple[Assignment, ...]


@dataclass(frozen=True)
class SendPrepare:
    """Tell the plan to all subtasks of the stage, new ones included."""

    to: tuple[SubtaskId, ...]
    version: int
    moves: tuple[GroupMove, ...]
    retiring: tuple[SubtaskId, ...]


@dataclass(frozen=True)
class InstallTable:
    """The point of no return: from now on the stage has these subtasks and, with HASH input, this table."""

    stage_index: int
    subtasks: tuple[int, ...]
    table: RoutingTable | None


@dataclass(frozen=True)
class SendReroute:
    """Tell upstream subtasks to switch, beside the data; task managers speak for those that have ended."""

    to: tuple[SubtaskId, ...]
    version: int


@dataclass(frozen=True)
class SendProceed:
    """Tell all subtasks of the stage that the rescale goes forward (``rescale_owner_model.Proceed``)."""

    to: tuple[SubtaskId, ...]
    version: int


@dataclass(frozen=True)
class SendAbort:
    """Tell all subtasks of the stage to forget the plan."""

    to: tuple[SubtaskId, ...]
    version: int


@dataclass(frozen=True)
class CancelNew:
    """Stop new subtasks. ``lost`` ones cannot say so: tell their consumers that those channels have ended."""

    live: tuple[SubtaskId, ...]
    lost: tuple[SubtaskId, ...]


@dataclass(frozen=True)
class RescaleEnded:
    """The rescale reached a final phase; the next one may start."""

    phase: RescalePhase
    #: Empty if COMPLETE.
    cause: str


@dataclass(frozen=True)
class FailJob:
    """Fail the job (``job_model.FailRequested``)."""

    cause: str


RescaleAction = (
    DeployNew
    | SendPrepare
    | InstallTable
    | SendReroute
    | SendProceed
    | SendAbort
    | CancelNew
    | RescaleEnded
    | FailJob
)
