"""Stores of simulated task managers: the production store in memory, and images of it without files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from experiments.simulation.storage import SimulatedStore, image_name
from experiments.simulation.world import World
from task_manager.job_stores import JobStores, Restored, kept_states
from task_manager.topology import Topology
from weir.config import TaskManagerConfig
from weir.errors import CheckpointError
from weir.protocol.checkpoints.manifest import StoreImage
from weir.protocol.checkpoints.restore_plan import restore_plan
from weir.state.api import StateReader
from weir.state.images.image_client import ImageClient, image_ids_of
from weir.state.images.image_stores import drop_foreign
from weir.state.stores.memory import MemoryBackend
from weir.types import SubtaskId


@dataclass
class SimulatedImage:
    """Implements ``checkpointing.HeldImage``."""

    store: SimulatedStore
    image_id: str
    #: None: it was given up.
    entries: Mapping[bytes, bytes] | None

    def publish(self) -> tuple[StoreImage, int]:
        """See ``PendingImage``."""
        if self.store.is_full:
            raise CheckpointError("no space left on device")
        if self.entries is None:
            raise CheckpointError(f"image {self.image_id} was given up")
        self.store.images[self.image_id] = self.entries
        return StoreImage(self.image_id, {}), len(self.entries)


class SimulatedPublisher:
    """Implements ``checkpointing.Publisher``: images of one store."""

    def __init__(self, store: SimulatedStore, backend: MemoryBackend, store_id: str) -> None:
        self._store, self._backend, self._store_id = store, backend, store_id
        self._pending: list[tuple[int, SimulatedImage]] = []
        self._taken = 0

    def take(self, checkpoint_id: int, *, stays: bool = False) -> SimulatedImage:
        """See ``ImagePublisher``."""
        self._taken += 1
        image_id = image_name(self._store_id, checkpoint_id, self._taken)
        image = SimulatedImage(self._store, image_id, dict(self._backend.scan()))
        if not stays:
            self._pending.append((checkpoint_id, image))
        return image

    def committed(self, checkpoint_id: int) -> None:
        """See ``ImagePublisher``."""
        self._discard_until(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        """See ``ImagePublisher``."""
        self._discard_until(checkpoint_id)

    def _discard_until(self, checkpoint_id: int) -> None:
        for number, image in self._pending:
            if number <= checkpoint_id:
                image.entries = None
        self._pending = [item for item in self._pending if item[0] > checkpoint_id]


class SimulatedImages:
    """Implements ``job_stores.ImageAccess``: images that a job is restored from."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._opened: dict[str, MemoryBackend] = {}

    def open(self, image_id: str) -> MemoryBackend:
        """A store with the content of an image.

        Raises:
            CheckpointError: it has expired.
        """
        if image_id not in self._opened:
            if image_id not in self._store.images:
                raise CheckpointError(f"image {image_id} is gone")
            self._opened[image_id] = MemoryBackend()
            self._opened[image_id].write(list(self._store.images[image_id].items()))
        return self._opened[image_id]

    def connect(self, address: str) -> ImageClient:
        """See ``Images``."""
        for image_id in image_ids_of(address):
            self.open(image_id)
        return ImageClient(address, self._using, lambda: None)

    def close(self) -> None:
        """See ``Images``."""
        self._opened.clear()

    @contextlib.contextmanager
    def _using(self, image_id: str) -> Iterator[StateReader]:
        yield self.open(image_id)


def open_simulated_state(
    world: World,
    store: SimulatedStore,
    address: str,
    config: TaskManagerConfig,
    job_id: str,
    checkpoint_uri: str,
    restore: tuple[str, str, str] | None,
    topology: Topology,
    here: Sequence[SubtaskId],
    state_ids: Mapping[str, int],
) -> JobStores:
    """As ``job_stores.open_job_stores``."""
    backend, images = MemoryBackend(), SimulatedImages(store)
    world.counts["stores"] += 1
    publisher = SimulatedPublisher(store, backend, f"{address.split(':')[0]}.{world.counts['stores']}")
    if restore is None:
        return JobStores(backend, store.files, publisher, images)
    manifest = store.read_manifest(restore[2])
    stages = {stage.index: [node.name for node in stage.nodes] for stage in topology.graph.stages}
    plan = restore_plan(manifest, stages, topology.routing, here)
    if plan.main is not None:
        backend.write(list(images.open(plan.main.image_id).scan()))
    drop_foreign(backend, kept_states(plan, topology, state_ids))
    restored = Restored(plan, store.files, here, manifest.checkpoint_id)
    return JobStores(backend, store.files, publisher, images, restored)
