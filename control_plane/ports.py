"""What parts of the control plane get from outside: time, work beside events, task managers and the stores.

A part is constructed with the ports that it needs, and never with another part's class. ``composition`` connects the
parts of a process; ``experiments.simulation`` connects the same parts to a virtual clock, network and store.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from weir.protocol.checkpoints import checkpoint_model
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job import job_machine
from weir.questions.link import QuestionPlace
from weir.rpc import control_pb2

Result = TypeVar("Result")

#: Feeds one event to the job's machine and carries out what follows.
TellJob = Callable[[job_machine.Event], None]
#: Feeds one event to the checkpoint machine and carries out what follows.
TellCheckpoints = Callable[[checkpoint_model.CheckpointEvent], None]


#: Why a rescale is taken back of which another control plane would not know.
NOT_ON_RECORD = "the record of the job cannot be written (the control plane's log says why)"


class Record(Protocol):
    """What another control plane needs to take over."""

    @property
    def has_begun(self) -> bool:
        """Return whether this process has written one: another one will use other numbers for its checkpoints."""

    def save(self) -> None:
        """The job has changed: write it down, soon."""

    async def saved(self) -> bool:
        """Return when what is to be kept has been written; False: it cannot be now, and an earlier record still counts.

        Does not return if another control plane leads by then.
        """


class Background(Protocol):
    """Work beside the events of the loop, and waiting."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that waits, as a task of its own; its failure is logged."""

    async def sleep(self, seconds: float) -> None:
        """Return after this time."""

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run something that blocks without holding up the loop; returns and raises what it does."""


class TaskManagerCalls(Protocol):
    """The service of one task manager.

    A call raises ConnectionLostError if the task manager does not answer or the connection is closed meanwhile,
    HandshakeError if it refuses.
    """

    #: Where it takes questions to running state, as its latest status says.
    question_place: QuestionPlace

    def may_order(self, secret: bytes) -> None:
        """Note that it has registered here, and told by which secret it takes orders."""

    async def status(self) -> control_pb2.StatusReply:
        """Who is there."""

    async def is_gone(self) -> bool:
        """Return whether nothing listens at the address any more; False if that cannot be told."""

    async def deploy(self, request: control_pb2.DeployRequest) -> None:
        """Create subtasks."""

    async def start(self, request: control_pb2.StartRequest) -> None:
        """Let the sources begin."""

    async def cancel(self, request: control_pb2.CancelRequest) -> None:
        """Stop all subtasks of a job, or some."""

    async def prepare_rescale(
        self, request: control_pb2.PrepareRescaleRequest
    ) -> control_pb2.PrepareRescaleReply:
        """Tell owners of a rescale."""

    async def reroute(self, request: control_pb2.RerouteRequest) -> None:
        """Switch upstream subtasks."""

    async def abort_rescale(self, request: control_pb2.AbortRescaleRequest) -> None:
        """Take a rescale back."""

    async def trigger_checkpoint(self, request: control_pb2.TriggerCheckpointRequest) -> None:
        """Let sources send a barrier."""

    async def end_checkpoint(
        self, request: control_pb2.EndCheckpointRequest
    ) -> control_pb2.EndCheckpointReply:
        """Tell that a checkpoint is over; returns what could not be delivered."""

    async def pull_state(self, request: control_pb2.PullStateRequest) -> control_pb2.PullStateReply:
        """Let owners fetch their state from a store."""

    async def profile(self, request: control_pb2.ProfileRequest) -> control_pb2.ProfileReply:
        """Let it look for some seconds where its threads are; answers after these."""

    async def log_tail(self, request: control_pb2.LogTailRequest) -> control_pb2.LogTailReply:
        """The last entries of its log."""

    async def query(self, request: control_pb2.QueryRequest) -> control_pb2.QueryReply:
        """Ask a question to the state there; cancelled, it ends there, too."""

    def begin_query(
        self, request: control_pb2.QueryRequest, done: Callable[[control_pb2.QueryReply | None], None]
    ) -> Callable[[], None] | None:
        """Begin a :meth:`query` without waiting; returns what takes the question back, None: it takes ``query``."""

    async def close(self) -> None:
        """Free the connection."""


#: Makes the connection to the task manager at an address.
Connect = Callable[[str], TaskManagerCalls]


class ManifestStore(Protocol):
    """The job's checkpoint store, as far as the control plane writes it: see ``CheckpointStore``. Methods block."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""

    def latest(self) -> Manifest | None:
        """The newest checkpoint."""

    def newest_id(self) -> int:
        """The highest number of a checkpoint; 0: there is none."""

    def read_manifest(self, path: str) -> Manifest:
        """The manifest at a path below the store.

        Raises:
            CheckpointError: it is absent or damaged.
        """

    def write_manifest(self, manifest: Manifest) -> str:
        """Commit a checkpoint, if there is none of its number; returns the manifest's path.

        Raises:
            SupersededError: somebody committed this number already.
            CheckpointError: a file is missing, or the place failed.
        """

    def copy_savepoint(self, manifest: Manifest, uri: str) -> str:
        """Make a savepoint of a checkpoint."""

    def expire(self, retained: int, oldest_in_flight: int | None = None) -> object:
        """Delete old checkpoints."""

    def remove(self) -> None:
        """Delete all checkpoints of the job."""
