"""Events, actions and records of checkpoints; ``weir.protocol.checkpoints.checkpoint`` has the machine over them.

docs/design/0002 has the protocol. Times are ms of the caller's clock, which never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from weir.errors import FailureKind
from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.protocol.job.event_counts import EventCounts
from weir.types import SubtaskId

#: An earlier control plane may have begun this many checkpoints without completing them; subtasks remember their
#: numbers, so the next one goes on so much higher.
ID_STRIDE = 10_000


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """The ``checkpoint_*`` settings that matter for decisions."""

    #: From the beginning of one checkpoint to that of the next; 0: only on request.
    interval_ms: int = 1000
    #: The same while there is nothing new to put into one, if that is longer.
    calm_interval_ms: int = 0
    #: From the end of one to the beginning of the next, at least.
    pause_ms: int = 200
    #: A checkpoint whose parts are not there by then is given up.
    timeout_ms: int = 60_000
    #: Failures in a row that do no harm; one more fails the job. 0: any number.
    failures_max: int = 10
    #: After the last checkpoint, sinks that could not deliver try again so often, after waits that double.
    deliveries_max: int = 10
    delivery_delay_ms: int = 100
    delivery_delay_ms_max: int = 10_000


class CheckpointState(Enum):
    """Where a checkpoint is."""

    #: Asked for; it begins when the one in flight, or a rescale, is over.
    QUEUED = "QUEUED"
    #: Barriers are on their way; not all parts are there.
    IN_PROGRESS = "IN_PROGRESS"
    #: All parts are there; the manifest is being written.
    COMMITTING = "COMMITTING"
    #: Its manifest is in the store: the job can start from it.
    COMPLETE = "COMPLETE"
    #: It could not be made, see cause.
    FAILED = "FAILED"
    #: The job stopped or started again meanwhile.
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        """Return whether nothing more happens to it."""
        return self in (CheckpointState.COMPLETE, CheckpointState.FAILED, CheckpointState.ABORTED)


@dataclass
class CheckpointRecord:
    """A checkpoint for people: what ``GET /checkpoints`` shows."""

    checkpoint_id: int
    #: When it was asked for or began.
    created_ms: int
    #: Path of a savepoint; empty for a checkpoint.
    path: str = ""
    #: The last one of the job, made when all subtasks had ended.
    is_last: bool = False
    #: A savepoint with which the job stops.
    stops_job: bool = False
    #: After it the job is deployed anew, because a source moves.
    redeploys_job: bool = False
    state: CheckpointState = CheckpointState.QUEUED
    started_ms: int | None = None
    ended_ms: int | None = None
    #: Bytes that were written to the store for it, as far as parts have come.
    new_bytes: int = 0
    #: Bytes of all its files; when COMPLETE.
    size_bytes: int = 0
    #: One line; why it is FAILED or ABORTED.
    cause: str = ""
    #: When the part of each subtask came, but for last parts that were there before it began.
    parts_ms: dict[SubtaskId, int] = field(default_factory=dict)
    #: When all parts were there: from then on its manifest was written.
    committing_ms: int | None = None

    @property
    def slowest(self) -> SubtaskId | None:
        """The subtask whose part came last; None: none has come."""
        return max(self.parts_ms, key=lambda subtask: (self.parts_ms[subtask], subtask), default=None)

    @property
    def parts_duration_ms(self) -> int | None:
        """Time from its beginning until all parts were there; None before."""
        if self.started_ms is None or self.committing_ms is None:
            return None
        return self.committing_ms - self.started_ms

    @property
    def commit_duration_ms(self) -> int | None:
        """Time from when all parts were there to its end; None before."""
        if self.ended_ms is None or self.committing_ms is None:
            return None
        return self.ended_ms - self.committing_ms

    @property
    def holds(self) -> bool:
        """Return whether sources read nothing after its barrier, as this deployment ends with it."""
        return self.stops_job or self.redeploys_job

    @property
    def duration_ms(self) -> int | None:
        """Return the time from the checkpoint's beginning to its end; None before."""
        if self.started_ms is None or self.ended_ms is None:
            return None
        return self.ended_ms - self.started_ms

    def to_dict(self) -> dict[str, object]:
        """JSON-able."""
        return {
            "id": self.checkpoint_id,
            "kind": "savepoint" if self.path else "checkpoint",
            "path": self.path,
            "is_last": self.is_last,
            "stops_job": self.stops_job,
            "state": self.state.value,
            "created_ms": self.created_ms,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "duration_ms": self.duration_ms,
            "parts_duration_ms": self.parts_duration_ms,
            "commit_duration_ms": self.commit_duration_ms,
            "new_bytes": self.new_bytes,
            "size_bytes": self.size_bytes,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class CheckpointRefusal:
    """A checkpoint or savepoint that was asked for cannot be made; one line."""

    message: str
    #: Not now and not later: a setting forbids it.
    is_forbidden: bool = False


# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobRuns:
    """The job reached RUNNING under this generation; this is where its subtasks run.

    The commit of an earlier generation must be settled (``CheckpointMachine.is_settled``).
    """

    generation: int
    placement: Mapping[SubtaskId, str]
    #: Those that read the outside world: they get the trigger.
    sources: frozenset[SubtaskId]


@dataclass(frozen=True)
class JobStops:
    """The job left RUNNING or FINISHING for a restart or for its end: what is in flight is given up.

    Only a manifest that is being written goes on: its answer still comes.
    """

    cause: str
    #: For good: what is queued is given up as well.
    ends: bool = False


@dataclass(frozen=True)
class SubtasksAdded:
    """A rescale added these and is certain (``rescale_model.InstallTable``); between Hold and Release."""

    placement: Mapping[SubtaskId, str]


@dataclass(frozen=True)
class SubtasksRetired:
    """A rescale ends these: the last part of each belongs to the next checkpoint, so that its sinks deliver.

    Sent when the rescale is certain, between Hold and Release.
    """

    subtasks: tuple[SubtaskId, ...]


@dataclass(frozen=True)
class Hold:
    """No checkpoint may begin until ``holder`` releases; one in flight is given up, unless it is being committed."""

    holder: str


@dataclass(frozen=True)
class Release:
    """``holder`` (or one that holds nothing) lets checkpoints begin again."""

    holder: str


@dataclass(frozen=True)
class PartDelivered:
    """A subtask's part is in the store. ``checkpoint_id`` 0: its last one, which counts for later checkpoints.

    What is late (another generation, a checkpoint that is not in flight) has no effect.
    """

    generation: int
    checkpoint_id: int
    part: SubtaskPart


@dataclass(frozen=True)
class PartDeclined:
    """A subtask could not make its part; with ``checkpoint_id`` 0 its last one, without which nothing goes on."""

    generation: int
    checkpoint_id: int
    subtask: SubtaskId
    cause: str


@dataclass(frozen=True)
class TaskManagerLost:
    """A task manager is gone with what it had not delivered; told to the job's machine first."""

    task_manager: str
    cause: str


@dataclass(frozen=True)
class Committed:
    """The answer to :class:`Commit`: the manifest is in the store."""

    checkpoint_id: int
    #: ``Manifest.size_bytes``.
    size_bytes: int = 0


@dataclass(frozen=True)
class CommitFailed:
    """The other answer: the manifest is not in the store and never will be.

    If another control plane took over, the right answer is the end of this one: it would go on to use up ids.
    """

    checkpoint_id: int
    cause: str


@dataclass(frozen=True)
class DeliveryFailure:
    """A sink of a subtask that has ended did not deliver what a complete checkpoint covers; it can be told again."""

    task_manager: str
    subtask: SubtaskId
    #: One line.
    cause: str
    kind: FailureKind = FailureKind.OUTAGE


@dataclass(frozen=True)
class EndNotified:
    """The answer to :class:`NotifyEnd` of a complete checkpoint: who did not confirm that its sinks delivered."""

    checkpoint_id: int
    #: Names of task managers; those that answered with an error (another process at the address) as well.
    unreached: tuple[str, ...] = ()
    #: Of those that answered.
    failures: tuple[DeliveryFailure, ...] = ()


@dataclass(frozen=True)
class FinalRequested:
    """The end of all subtasks (``job_model.CommitFinal``); :class:`FinalDone` follows, or :class:`FailJob`."""

    subtasks: tuple[SubtaskId, ...]


@dataclass(frozen=True)
class RowsCame:
    """A subtask has taken, sent or rejected records since it reported last; needed if ``minds_news`` only."""


@dataclass(frozen=True)
class Tick:
    """Time has passed; due at ``CheckpointMachine.next_due_ms`` and harmless at any time."""


CheckpointEvent = (
    JobRuns
    | JobStops
    | SubtasksAdded
    | SubtasksRetired
    | Hold
    | Release
    | PartDelivered
    | PartDeclined
    | TaskManagerLost
    | Committed
    | CommitFailed
    | EndNotified
    | FinalRequested
    | RowsCame
    | Tick
)


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trigger:
    """Tell these sources to send barriers of this checkpoint. A lost message ends in a time-out."""

    checkpoint_id: int
    sources: tuple[SubtaskId, ...]
    #: They read nothing after the barrier until the checkpoint is given up, another one begins or the job stops.
    holds: bool = False
    #: Subtasks that make the barrier themselves where all before them have ended; none unless a source has ended.
    others: tuple[SubtaskId, ...] = ()


@dataclass(frozen=True)
class Commit:
    """Write the manifest of these parts, create-if-absent; answer :class:`Committed` or :class:`CommitFailed`.

    Routing and stages are those in force: no rescale switches meanwhile. Parts of retired subtasks are among
    ``parts``, so there can be more than the stages have subtasks.
    """

    checkpoint_id: int
    generation: int
    parts: tuple[SubtaskPart, ...]
    #: Where a savepoint goes; empty for a checkpoint.
    path: str = ""
    is_last: bool = False
    #: By stage: what subtasks have counted that a rescale ended and that are not among ``parts`` any more.
    settled: Mapping[int, EventCounts] = field(default_factory=dict)


@dataclass(frozen=True)
class NotifyEnd:
    """Tell these task managers that a checkpoint is complete, or was given up.

    Complete: sinks deliver before they confirm, and :class:`EndNotified` follows when each has answered or failed to.
    """

    checkpoint_id: int
    generation: int
    committed: bool
    task_managers: tuple[str, ...]
    #: The job stops then: also sinks that still run deliver before they confirm.
    stops: bool = False


@dataclass(frozen=True)
class FinalDone:
    """The last checkpoint is complete and all sinks have delivered (``job_model.FinalCommitted``)."""

    checkpoint_id: int


@dataclass(frozen=True)
class StopJob:
    """The savepoint is complete and its sinks have delivered (``job_model.CancelRequested``, ``stopped``)."""

    checkpoint_id: int
    path: str


@dataclass(frozen=True)
class RedeployJob:
    """A checkpoint of ``redeploys_job`` is complete and its sinks have delivered (``job_model.RestartRequested``)."""

    checkpoint_id: int


@dataclass(frozen=True)
class FailJob:
    """The job cannot go on as it is (``job_model.FailRequested``): it starts again, if it may.

    OUTAGE: lost task managers and places that cannot be written. OTHER: a mistake in a sink's code. PERMANENT: sinks do
    not deliver what the last checkpoint covers.
    """

    cause: str
    kind: FailureKind = FailureKind.OUTAGE


CheckpointAction = Trigger | Commit | NotifyEnd | FinalDone | StopJob | RedeployJob | FailJob
