"""The keyed state of a job in one process: its store, images of it in a checkpoint store, and the way back.

This is the only module here that knows how operators give away and find their state. Checkpoints and savepoints have
the format of real ones: a job on task managers can start from a savepoint made here, and the other way round.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from weir.author.operator import Json
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.checkpoints.rows import load_rows
from weir.errors import StateMismatchError
from weir.operators.chain import OperatorChain
from weir.plan.graph import PhysicalGraph, Stage
from weir.plan.restored_rows import rows_of_subtask
from weir.protocol.checkpoints.manifest import GroupPlace, Manifest, StoreImage, SubtaskPart
from weir.protocol.checkpoints.restore_plan import RestorePlan, restore_plan
from weir.protocol.database_run import databases_of
from weir.protocol.job.event_counts import EventCounts
from weir.protocol.routing import RoutingTable
from weir.rows.records import InputRows
from weir.state.api import StateBackend, prefix_end
from weir.state.images.image_client import image_address
from weir.state.images.image_publisher import ImagePublisher
from weir.state.images.image_stores import Images, drop_foreign
from weir.state.layout import state_prefix
from weir.state.stores.memory import MemoryBackend
from weir.types import SubtaskId

_COPY_ENTRIES = 5_000


def open_store(directory: Path | None) -> StateBackend:
    """A store without content and without checkpoints: in memory, or RocksDB in a directory.

    Raises:
        StateError: the directory is not ours, in use, or cannot be written.
    """
    if directory is None:
        return MemoryBackend()
    from weir.config.stores import RocksDbConfig
    from weir.state.stores.rocksdb import open_store as open_rocksdb

    return open_rocksdb(directory, RocksDbConfig(), fresh=True)


def take_snapshot(chain: OperatorChain, checkpoint_id: int) -> dict[str, Json]:  # type: ignore[type-arg]
    """What the operators of a subtask need besides keyed state, by their names; keyed state is in the store then."""
    operators, captures = chain.snapshot(checkpoint_id)
    try:
        for capture in captures:
            capture.write()
    finally:
        for capture in captures:
            capture.abandon()
    chain.sync()
    return operators


class DurableState:
    """The store of one deployment whose checkpoints survive it.

    Args:
        checkpoints: where they go.
        directory: for the store's files; nothing of value may be in it.
        on_disk: RocksDB; else the store is in memory and only its images are files.
        manifest: the checkpoint to start from; None: from nothing.
        graph: the job as it is now.
        routing: of its stages with key groups.
        state_ids: numbers of the states of keyed steps, by ``step`` or ``step/state``.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        StateError: the directory cannot be used.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        directory: Path,
        *,
        on_disk: bool,
        manifest: Manifest | None,
        graph: PhysicalGraph,
        routing: Mapping[int, RoutingTable],
        state_ids: Mapping[str, int],
    ) -> None:
        self._checkpoints = checkpoints
        self._steps = graph.step_names
        self._plan = RestorePlan()
        if manifest is not None:
            if databases_of(image.database for part in manifest.parts for image in part.images):
                raise StateMismatchError(
                    f"the state of checkpoint {manifest.checkpoint_id} is in a database, which runs in one process do "
                    "not use: start it with weir run --store cassandra"
                )
            stages = {stage.index: [node.name for node in stage.nodes] for stage in graph.stages}
            self._plan = restore_plan(manifest, stages, routing, graph.subtasks())
        settings = None
        if on_disk:
            from weir.config.stores import RocksDbConfig

            settings = RocksDbConfig()
        images = Images(checkpoints, directory, settings)
        images.register(self._plan.images.values())
        self._images = images
        self.store = images.open_main(self._plan.main)
        try:
            self._bring_state(graph, state_ids)
            self._publisher = ImagePublisher(
                checkpoints,
                self.store,
                directory,
                secrets.token_hex(8),
                opened_from=self._plan.main,
                checkpoint_id=manifest.checkpoint_id if manifest is not None else 0,
            )
        except BaseException:
            self.close()
            raise

    def restored(self, step: str) -> Mapping[int, Json]:
        """What the subtasks of a step told the checkpoint, by their index then."""
        return self._plan.operators.get(step, {})

    def rows_under_way(self, stage: Stage, subtask_index: int, table: RoutingTable | None) -> list[InputRows]:
        """Rows that barriers had overtaken on task managers: they come before everything else."""
        files, waiting = (of.get(stage.index, ()) for of in (self._plan.rows, self._plan.waiting))
        rows, others = (load_rows(self._checkpoints, each) if each else [] for each in (files, waiting))
        return rows_of_subtask(rows, stage, table, subtask_index, self._steps, others)

    def image(self, checkpoint_id: int) -> StoreImage:
        """Bring the store as it is now into the checkpoint store."""
        self.store.flush()
        self._images.checks.settle()
        return self._publisher.take(checkpoint_id).publish()[0]

    def committed(self, checkpoint_id: int) -> None:
        """The checkpoint is complete."""
        self._publisher.committed(checkpoint_id)

    def close(self) -> None:
        """Release the store; what no checkpoint has is gone."""
        self._images.close()
        self.store.close()

    def _bring_state(self, graph: PhysicalGraph, state_ids: Mapping[str, int]) -> None:
        """Leave in the store what steps of today read, and add what is in other images."""
        main_id = self._plan.main.image_id if self._plan.main is not None else ""
        kept = []
        for (stage, group), place in self._plan.places.items():
            ids = [state_ids[state] for state in graph.stage(stage).states]
            if place.image_id == main_id:
                kept += [(group, state_id) for state_id in ids]
        drop_foreign(self.store, kept)
        for (stage, group), place in self._plan.places.items():
            keeps_own = place.image_id == main_id
            if keeps_own and not place.base_image_id:
                continue
            address = (
                image_address(place.base_image_id)
                if keeps_own
                else image_address(place.image_id, place.base_image_id)
            )
            for state in graph.stage(stage).states:
                self._copy(address, state_prefix(group, state_ids[state]), place)

    def _copy(self, address: str, prefix: bytes, place: GroupPlace) -> None:
        """Add the entries of one group and state that the store has not got yet."""
        gone = {bytes.fromhex(key) for key in place.tombstones}
        with contextlib.closing(self._images.connect(address)) as image:
            scanned = image.scan(prefix, prefix_end(prefix), prefixes=[prefix])
            entries = (entry for entry in scanned if entry[0] not in gone)
            while chunk := list(islice(entries, _COPY_ENTRIES)):
                own = self.store.get_many([key for key, _ in chunk])
                self.store.write([entry for entry, found in zip(chunk, own, strict=True) if found is None])


def subtask_part(
    stage: Stage,
    subtask: SubtaskId,
    table: RoutingTable | None,
    image: StoreImage,
    operators: Mapping[str, Json],
    counts: EventCounts,
    *,
    finished: bool,
) -> SubtaskPart:
    """Return a subtask's part of a checkpoint whose state is all in one image."""
    groups: Iterable[int] = ()
    if table is not None and stage.is_keyed:
        groups = table.groups_of(subtask.subtask_index)
    return SubtaskPart(
        subtask,
        {group: GroupPlace(image.image_id) for group in groups},
        (image,) if groups else (),
        (),
        operators,
        finished=finished,
        counts=counts,
    )
