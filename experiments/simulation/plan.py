"""The job that is simulated: sources, a keyed count, a transactional sink; and where its subtasks are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from weir.builder import Dataflow
from weir.connectors import JsonLines, Print
from weir.job_loading import LoadedJob
from weir.protocol.manifest import Manifest
from weir.protocol.routing import RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_from_proto, subtask_from_proto
from weir.types import SubtaskId

SOURCE, COUNT, SINK = 0, 1, 2
GROUPS = 8
_KEYS = 12


def group_of(key: int) -> int:
    """The key group of a key."""
    return key % GROUPS


@cache
def _loaded(sources: int, counts: int, sinks: int) -> LoadedJob:
    flow = Dataflow("job", max_parallelism=GROUPS)
    rows = flow.source("rows", JsonLines("rows", schema={"key": int}), parallelism=sources)
    counted = rows.key_by("key").count("count", parallelism=counts)
    if sinks:
        counted.rebalance().sink("out", Print(), parallelism=sinks)
    else:
        counted.sink("out", Print())
    return LoadedJob(flow.build(), {})


@dataclass(frozen=True)
class Job:
    """What a seed makes of it."""

    #: Keys of each source's rows.
    rows: tuple[tuple[int, ...], ...]
    counts: int
    #: Subtasks of the sink stage; 0: the sink is chained to the count, which then can be rescaled.
    sinks: int

    @classmethod
    def random(cls, rng: random.Random) -> Job:
        """A small job."""
        sources = rng.randint(1, 2)
        rows = tuple(
            tuple(rng.randrange(_KEYS) for _ in range(rng.choice([0, 20, 60, 120]))) for _ in range(sources)
        )
        return cls(rows, rng.randint(1, 3), rng.choice([0, 0, 1, 2]))

    @property
    def loaded(self) -> LoadedJob:
        """What the control plane is given."""
        return _loaded(len(self.rows), self.counts, self.sinks)

    @property
    def expected(self) -> dict[int, int]:
        """Rows of each key."""
        return dict(Counter(key for rows in self.rows for key in rows))


@dataclass(frozen=True)
class Deployment:
    """What a task manager is told to run."""

    identity: JobIdentity
    subtasks: tuple[SubtaskId, ...]
    #: Of the whole job.
    placement: dict[SubtaskId, str]
    table: RoutingTable
    #: Producers of the counts.
    sources: tuple[SubtaskId, ...]
    #: Where it starts; None: from nothing.
    manifest: Manifest | None
    #: Checkpoints up to this one are over.
    last_checkpoint_id: int

    @property
    def generation(self) -> int:
        """Number of the deployment."""
        return self.identity.generation

    @classmethod
    def from_proto(cls, request: control_pb2.DeployRequest, read: Callable[[str], Manifest]) -> Deployment:
        """What a Deploy says; ``read`` returns the manifest at a path."""
        return cls(
            handshake_from_proto(request.handshake),
            tuple(subtask_from_proto(subtask) for subtask in request.subtasks),
            placement_from_proto(request.locations),
            table_from_proto(request.routing_tables),
            tuple(
                SubtaskId(SOURCE, index)
                for stage in request.stages
                if stage.stage_index == SOURCE
                for index in stage.subtask_indices
            ),
            read(request.restore.manifest_path) if request.HasField("restore") else None,
            request.ended_checkpoint_id,
        )


def placement_from_proto(locations: Iterable[control_pb2.SubtaskLocation]) -> dict[SubtaskId, str]:
    """Where every subtask runs."""
    return {subtask_from_proto(item.subtask): item.address for item in locations}


def table_from_proto(tables: Iterable[control_pb2.RoutingTable]) -> RoutingTable:
    """The routing table of the counts."""
    (table,) = tables
    return RoutingTable(
        table.stage_index,
        table.routing_version,
        tuple(table.subtasks),
        tuple(table.group_to_subtask),
        tuple(table.owner_epochs),
    )
