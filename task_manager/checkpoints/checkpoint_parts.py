"""What subtasks and the checkpoints of their task manager say to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Protocol

from weir import threads
from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import GroupPlace, Json, StoreImage
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.rows.records import InputRows
from weir.state.placement.placed_store import PlacedStore
from weir.state.tables.capture import Capture
from weir.types import SubtaskId

#: Between two looks at images that are being taken, which may take long.
_WAIT_S = 60.0


class ChangesApplied(Protocol):
    """Brings changes into a database; implemented by ``weir.state.cassandra.applying.Applying``."""

    def took(self, backend: PlacedStore, checkpoint_id: int, passed_id: int) -> None:
        """A subtask takes part in a checkpoint; 0: with its last part, which counts for those after ``passed_id``.

        Raises:
            WeirError: changes cannot be applied any more.
        """

    def ended(self, checkpoint_id: int, *, committed: bool) -> None:
        """A checkpoint is over."""


class HeldImage(Protocol):
    """An image of a store that was taken; implemented by ``weir.state.images.image_publisher.PendingImage``."""

    image_id: str

    def publish(self) -> tuple[StoreImage, int]:
        """Bring it into the checkpoint store; returns it and the bytes that were written there; blocks.

        Raises:
            CheckpointError: the checkpoint store failed, or the image was discarded.
        """


class Publisher(Protocol):
    """Takes images of the store here; implemented by ``weir.state.images.image_publisher.ImagePublisher``."""

    def take(self, checkpoint_id: int, *, stays: bool = False) -> HeldImage:
        """Hold the store as it is now; ``stays``: no end of a checkpoint discards the image.

        Raises:
            CheckpointError: the store cannot be written.
        """

    def committed(self, checkpoint_id: int) -> None:
        """A checkpoint is complete."""

    def aborted(self, checkpoint_id: int) -> None:
        """A checkpoint was given up."""


@dataclass
class TakenPart:
    """A part that is not published yet; its images may still be being taken."""

    subtask: SubtaskId
    #: 0: the last part of a subtask that ends.
    checkpoint_id: int
    operators: Mapping[str, Json]
    #: The last checkpoint whose barrier the subtask has passed on.
    passed_id: int
    #: Records into and out of the subtask, in this deployment.
    counts: EventCounts = NO_EVENTS
    #: Done when the rest is filled in; None: there is nothing more to come.
    taking: Future[None] | None = None
    groups: dict[int, GroupPlace] = field(default_factory=dict)
    #: Of the own store, and of peers' by address: image ids.
    own: HeldImage | None = None
    #: Whether the bytes of that image count for this part: others may have it too.
    counts_own: bool = True
    peers: dict[str, str] = field(default_factory=dict)
    #: Images that groups are still being fetched from.
    bases: list[StoreImage] = field(default_factory=list)
    #: Brings what sinks have written to the disk; called before the control plane is told of the part. None: it is
    #: there.
    sync: Callable[[], None] | None = None
    #: Rows that wait for steps within the stage.
    waiting: Sequence[InputRows] = ()

    def wait(self) -> None:
        """Return when the images are taken.

        Raises:
            WeirError: they could not be.
        """
        if self.taking is not None:
            while not (self.taking.done() or threads.wait([self.taking], _WAIT_S)):
                pass
            try:
                self.taking.result()
            except CancelledError as error:
                raise CheckpointError("the job ends") from error


class Checkpoints(Protocol):
    """Where a subtask delivers its parts of checkpoints; implemented by ``checkpointing.CheckpointParticipant``."""

    def take(
        self,
        subtask: SubtaskId,
        checkpoint_id: int,
        operators: Mapping[str, Json],
        captures: Sequence[Capture],
        backend: PlacedStore | None,
        passed_id: int,
    ) -> TakenPart:
        """Note where the state is; what was dirty was captured, and is written in another thread."""

    def deliver(self, part: TakenPart, rows: Sequence[InputRows] = ()) -> None:
        """Publish the part, with rows that were under way; returns at once."""

    def fail(self, subtask: SubtaskId, checkpoint_id: int, cause: str) -> None:
        """There is no part."""
