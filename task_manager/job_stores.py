"""The stores of one job on one task manager: of its state, of its checkpoints, and of the one it was restored from."""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from task_manager.checkpoints.checkpoint_parts import Publisher
from task_manager.topology import Topology
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.file_checks import FileChecks
from weir.checkpoints.files import uri_below
from weir.checkpoints.layout import SINKS, manifest_path
from weir.checkpoints.rows import load_rows
from weir.config import RocksDbConfig, TaskManagerConfig
from weir.errors import CheckpointError, StateError, StateMismatchError
from weir.plan.graph import Stage
from weir.plan.restored_rows import rows_of_subtask
from weir.protocol.checkpoints.manifest import GroupPlace, Json, Manifest, StoreImage
from weir.protocol.checkpoints.restore_plan import RestorePlan, places_now, restore_plan
from weir.rows.records import InputRows
from weir.state.api import StateBackend
from weir.state.images.image_client import image_address, is_image
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images, drop_foreign
from weir.state.images.local_copies import LocalCopies
from weir.state.placement.placed_store import PlacedStore
from weir.state.placement.remote import RemoteStateClient
from weir.state.stores.store_factory import StoreFactory
from weir.types import SubtaskId

log = logging.getLogger(__name__)


class ImageAccess(Protocol):
    """The images that a job is restored from; implemented by ``weir.state.images.image_stores.Images``."""

    def connect(self, address: str) -> RemoteStateClient:
        """Returns access to images under the address that ``JobStores.adoptions`` returns."""

    def close(self) -> None:
        """Close all images."""


@dataclass(frozen=True)
class Adoption:
    """Key groups whose state is in an image, or partly in the own store over an image."""

    groups: tuple[int, ...]
    #: As ``PlacedStore`` names the image.
    location: str
    tombstones: Mapping[int, Sequence[bytes]]
    #: The own store has newer entries of these groups.
    keeps_own: bool

    def carry_out(self, backend: PlacedStore, epochs: Mapping[int, int]) -> None:
        """Let a subtask own the groups; called once, when it is made."""
        backend.ownership.adopt(
            {group: epochs[group] for group in self.groups},
            self.location,
            migrate=True,
            tombstones=self.tombstones,
            keeps_own=self.keeps_own,
        )


@dataclass(frozen=True)
class Restored:
    """What a job was restored from; by default nothing."""

    plan: RestorePlan = field(default_factory=RestorePlan)
    #: Where the files of the plan are.
    store: CheckpointStore | None = None
    #: The subtasks here that the plan is for; those that a rescale adds begin with nothing.
    subtasks: Sequence[SubtaskId] = ()
    #: The checkpoint that the plan is of; 0: none.
    checkpoint_id: int = 0


class JobStores:
    """Where the state of a job is on this task manager, and which parts of a checkpoint its subtasks begin with.

    Made by :func:`open_job_stores`; closed with the job.
    """

    def __init__(
        self,
        store: StateBackend,
        checkpoint_store: CheckpointStore | None,
        publisher: Publisher | None,
        images: ImageAccess | None,
        restored: Restored | None = None,
        sinks_uri: str = "",
    ) -> None:
        """``sinks_uri``: where the folders of sinks are."""
        restored = restored or Restored()
        self._sinks_uri = sinks_uri
        self.restored_id = restored.checkpoint_id
        self.store = store
        self.checkpoint_store = checkpoint_store
        self.publisher = publisher
        self._images = images
        self._plan = restored.plan
        self._restored_store = restored.store
        self._restored = set(restored.subtasks)
        self._images_by_id = dict(restored.plan.images)
        #: Images of the two latest checkpoints of which groups were relinked.
        self._relinked: list[frozenset[str]] = []

    @property
    def checks(self) -> FileChecks | None:
        """Return the checks of files that the job was restored from; None: there are no checkpoints."""
        return self._images.checks if isinstance(self._images, Images) else None

    @property
    def images_by_id(self) -> Mapping[str, StoreImage]:
        """The images that groups may still be fetched from: of the manifest that the job began with, and later ones."""
        return self._images_by_id

    def restored(self, subtask: SubtaskId, step: str) -> Mapping[int, Json]:
        """Returns the snapshots of a step's subtasks, by their index, for a subtask that was restored.

        They are its own: what a subtask makes of them is seen by no other one.
        """
        return copy.deepcopy(self._plan.operators.get(step, {})) if subtask in self._restored else {}

    def durable_uri(self, step: str) -> str:
        """The folder of a sink in the checkpoint store; empty: there is no store."""
        return uri_below(self._sinks_uri, step) if self._sinks_uri else ""

    def forget(self, subtasks: Iterable[SubtaskId]) -> None:
        """A rescale has ended these: a later one of the same number takes nothing from the checkpoint."""
        self._restored.difference_update(subtasks)

    def restored_groups(self, subtask: SubtaskId, topology: Topology) -> int:
        """How many key groups of a subtask have state in the checkpoint; 0 for one that was not restored."""
        table = topology.routing.get(subtask.stage_index)
        if table is None or subtask not in self._restored:
            return 0
        groups = table.groups_of(subtask.subtask_index)
        return sum((subtask.stage_index, group) in self._plan.places for group in groups)

    def adoptions(self, stage_index: int, groups: Iterable[int]) -> list[Adoption]:
        """Which of these groups are not, or not only, in the own store; together where they are alike."""
        alike: dict[tuple[str, bool], list[int]] = {}
        tombstones: dict[int, list[bytes]] = {}
        main_id = self._plan.main.image_id if self._plan.main is not None else ""
        for group in groups:
            place = self._plan.places.get((stage_index, group))
            if place is None or (place.image_id == main_id and not place.base_image_id):
                continue
            keeps_own = place.image_id == main_id
            location = (
                image_address(place.base_image_id)
                if keeps_own
                else image_address(place.image_id, place.base_image_id)
            )
            alike.setdefault((location, keeps_own), []).append(group)
            tombstones[group] = [bytes.fromhex(key) for key in place.tombstones]
        return [
            Adoption(tuple(listed), location, {g: tombstones[g] for g in listed}, keeps_own)
            for (location, keeps_own), listed in alike.items()
        ]

    def read_manifest(self, path: str) -> Manifest:
        """A checkpoint that this job has made.

        Raises:
            CheckpointError: it is absent or damaged.
        """
        if self.checkpoint_store is None:
            raise CheckpointError("the job makes no checkpoints")
        return self.checkpoint_store.look_at_manifest(path)

    def places_at(
        self, checkpoint_id: int, stages: Mapping[int, Sequence[str]]
    ) -> Mapping[tuple[int, int], GroupPlace]:
        """Where key groups of all stages were at a checkpoint that this job has made; :meth:`image_client` opens it.

        Called by one thread at a time.

        Args:
            checkpoint_id: of the checkpoint.
            stages: names of the steps of each stage.

        Raises:
            CheckpointError: it is absent or damaged, or there is nothing to open its images with.
        """
        images, store = self._images, self.checkpoint_store
        if store is None or not isinstance(images, Images) or images.location != store.location:
            raise CheckpointError("the job makes no checkpoints that can be opened here")
        manifest = store.look_at_manifest(manifest_path(checkpoint_id))
        found = {image.image_id: image for part in manifest.parts for image in part.images}
        images.register(found.values())
        self._images_by_id.update(found)
        # A checkpoint that is being made may still name those of the latest two.
        kept = {*found, *self._plan.images, *images.open_images()}.union(*self._relinked[-1:])
        gone = self._images_by_id.keys() - kept
        for image_id in gone:
            del self._images_by_id[image_id]
        images.unregister(gone)
        self._relinked = [*self._relinked[-1:], frozenset(found)]
        return places_now(manifest, stages)

    @property
    def fetched(self) -> tuple[int, int]:
        """Files that were fetched from the checkpoint store to open state, and their bytes; links do not count."""
        return self._images.fetched if isinstance(self._images, Images) else (0, 0)

    def standby_copies(self) -> LocalCopies | None:
        """Where files of the state of other task managers may be kept; None: keeping them would save nothing."""
        if self.checkpoint_store is None or not isinstance(self._images, Images):
            return None
        return self._images.standby_copies(self.checkpoint_store)

    def images_beside(self) -> Images | None:
        """Return what takes images for checkpoints of the job; to be closed before its state. None: it makes none."""
        if self.checkpoint_store is None or not isinstance(self._images, Images):
            return None
        return self._images.beside(self.checkpoint_store)

    def image_client(self, address: str) -> RemoteStateClient | None:
        """Access to an image under the address that :meth:`adoptions` returns; None: it is the address of a peer."""
        return self._images.connect(address) if self._images is not None and is_image(address) else None

    def rows_for(self, subtask: SubtaskId, topology: Topology) -> list[InputRows]:
        """Rows that were under way to a subtask's stage when the checkpoint was made, as far as they are its own."""
        stage = topology.graph.stage(subtask.stage_index)
        if subtask not in self._restored:
            return []
        return self._rows_of(stage, topology, subtask.subtask_index, *self._under_way(stage))

    def subtasks_with_rows(self, stage: Stage, topology: Topology) -> frozenset[int]:
        """Return the subtasks of a stage for which :meth:`rows_for` has rows, here or on another task manager."""
        under_way = self._under_way(stage)
        return frozenset(
            index for index in stage.subtask_indices if self._rows_of(stage, topology, index, *under_way)
        )

    def _under_way(self, stage: Stage) -> tuple[list[InputRows], list[InputRows]]:
        """Rows that were under way to a stage at the checkpoint, and those that may have waited within it."""
        files, waiting = (of.get(stage.index, ()) for of in (self._plan.rows, self._plan.waiting))
        store = self._restored_store
        if store is None:
            return [], []
        return load_rows(store, files), load_rows(store, waiting)

    @staticmethod
    def _rows_of(
        stage: Stage, topology: Topology, index: int, rows: list[InputRows], waiting: list[InputRows]
    ) -> list[InputRows]:
        if not (rows or waiting):
            return []
        table = topology.routing.get(stage.index)
        return rows_of_subtask(rows, stage, table, index, topology.graph.step_names, waiting)

    def close(self) -> None:
        """Release the store and the images.

        With checkpoints, a store that cannot be closed in order is dropped: its disk was full, for example, and the job
        goes on from a checkpoint.

        Raises:
            StateError: without checkpoints, the store cannot write what it holds.
        """
        if self._images is not None:
            self._images.close()
        try:
            self.store.close()
        except StateError as error:
            if self.checkpoint_store is None:
                raise
            log.warning("%s; it is dropped, the checkpoints have what counts", error)


def open_job_stores(
    config: TaskManagerConfig,
    job_id: str,
    checkpoint_uri: str,
    restore: tuple[str, str, str] | None,
    topology: Topology,
    here: Sequence[SubtaskId],
    state_ids: Mapping[str, int],
    database_run: str = "",
) -> JobStores:
    """Open the store of a job that starts here: empty, or as a checkpoint has it.

    Args:
        config: where the store is, and its settings.
        job_id: its folder in the checkpoint store.
        checkpoint_uri: where checkpoints go; "": there are none.
        restore: location of the checkpoint store, the job's folder there, and path of the manifest to start from; None:
            from nothing.
        topology: the job as it is now.
        here: the subtasks that will run here.
        state_ids: numbers of the states of keyed steps in the store, by ``step`` or ``step/state``.
        database_run: whose rows the job has in a database, of which the store has what is not applied; "": none.

    Raises:
        StateMismatchError: the checkpoint's state is in a database and this task manager's is not, or the reverse.
        StateError: the directory of the store is not ours, in use, or cannot be written.
        CheckpointError: the checkpoint store cannot be read.
    """
    checkpoint_store = CheckpointStore.open(checkpoint_uri, job_id) if checkpoint_uri else None
    if checkpoint_store is None:
        # What an earlier run of ours left is removed, what is not ours never.
        store = StoreFactory(_rocksdb_settings(config)).open_fresh(Path(config.rocksdb_path))
        return JobStores(store, None, None, None)
    sinks_uri = uri_below(checkpoint_uri, job_id, SINKS)
    if restore is None:
        # A store in memory has a directory too, for the images of it.
        images = _images(checkpoint_store, config)
        store = images.open_main(None)
        publisher = _publisher(checkpoint_store, store, config, database=database_run)
        return JobStores(store, checkpoint_store, publisher, images, sinks_uri=sinks_uri)
    uri, folder, path = restore
    restored_store = CheckpointStore.open(uri, folder)
    manifest = restored_store.read_manifest(path)
    _check_kind(manifest, database_run)
    images = _images(restored_store, config)
    plan = _plan(manifest, topology, here, images)
    store = images.open_main(plan.main)
    try:
        drop_foreign(store, kept_states(plan, topology, state_ids))
        # Files of the same store need not be published again.
        opened_from = plan.main if (uri, folder) == (checkpoint_uri, job_id) else None
        checkpoint_id = manifest.checkpoint_id
        publisher = _publisher(checkpoint_store, store, config, opened_from, checkpoint_id, database_run)
    except BaseException:
        images.close()
        store.close()
        raise
    begun_from = Restored(plan, restored_store, here, checkpoint_id)
    return JobStores(store, checkpoint_store, publisher, images, begun_from, sinks_uri)


def _plan(manifest: Manifest, topology: Topology, here: Sequence[SubtaskId], images: Images) -> RestorePlan:
    stages = {stage.index: [node.name for node in stage.nodes] for stage in topology.graph.stages}
    plan = restore_plan(manifest, stages, topology.routing, here)
    images.register(plan.images.values())
    if plan.main is not None and not plan.main.database and images.is_read_by_blocks(plan.main):
        # Rows do not wait until it is here: all groups come out of it, as out of the images of others.
        return replace(plan, main=None)
    return plan


def _rocksdb_settings(config: TaskManagerConfig) -> RocksDbConfig | None:
    """Section ``taskManager.rocksdb``; None: state is kept in memory."""
    return None if config.state_backend == "memory" else config.rocksdb


def _images(store: CheckpointStore, config: TaskManagerConfig) -> Images:
    return Images(
        store,
        Path(config.rocksdb_path),
        _rocksdb_settings(config),
        config.fetched_image_bytes_max,
        config.image_cache_bytes,
    )


def _publisher(
    checkpoint_store: CheckpointStore,
    store: StateBackend,
    config: TaskManagerConfig,
    opened_from: StoreImage | None = None,
    checkpoint_id: int = 0,
    database: str = "",
) -> ImagePublisher:
    # Nobody else has this id, not even this process in an earlier deployment: nothing is overwritten.
    store_id = secrets.token_hex(8)
    return ImagePublisher(
        checkpoint_store,
        store,
        Path(config.rocksdb_path),
        store_id,
        opened_from=opened_from,
        checkpoint_id=checkpoint_id,
        database=database,
    )


def _check_kind(manifest: Manifest, database_run: str) -> None:
    """Images of one kind are of no use to the other: one has all state, the other has changes."""
    for image in (image for part in manifest.parts for image in part.images):
        if bool(image.database) != bool(database_run):
            here, there = ("a database", "task managers") if database_run else ("task managers", "a database")
            raise StateMismatchError(
                f"the state of checkpoint {manifest.checkpoint_id} is with {there}, and taskManager.state_backend says "
                f"{here}: set it as it was, or start anew"
            )


def kept_states(plan: RestorePlan, topology: Topology, state_ids: Mapping[str, int]) -> set[tuple[int, int]]:
    """Key group and state id of what the subtasks here take from the image that is opened as the store."""
    main_id = plan.main.image_id if plan.main is not None else ""
    return {
        (group, state_ids[state])
        for (stage, group), place in plan.places.items()
        if place.image_id == main_id
        for state in topology.graph.stage(stage).states
    }
