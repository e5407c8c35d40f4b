"""What the first deployment of a control plane process begins with, and what any deployment makes of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.checkpoints.restore_point import RestorePoint
from control_plane.record.job_record import JobRecord
from weir.plan.graph import Exchange, LogicalGraph, PhysicalGraph
from weir.plan.stages import physical_graph
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.protocol.routing import RoutingTable, initial_table


@dataclass(frozen=True)
class StartPoint:
    """What the first deployment of a control plane process begins with."""

    job_id: str
    latest: RestorePoint | None = None
    generation: int = 1
    next_checkpoint_id: int = 1
    #: A job that an earlier control plane left running, as it was then.
    left: JobRecord | None = None
    #: What the job before had counted from whose savepoint or checkpoint this one starts.
    events_at_start: EventCounts = NO_EVENTS

    def state_ids(self, graph: LogicalGraph) -> dict[str, int]:
        """Numbers of the states of keyed steps: those of the checkpoint, and free ones for steps that are new."""
        kept = {} if self.latest is None else dict(self.latest.manifest.state_ids)
        return graph.state_ids(kept)


def graph_and_routing(
    graph: PhysicalGraph, manifest: Manifest | JobRecord | None
) -> tuple[PhysicalGraph, dict[int, RoutingTable]]:
    """The subtasks and the routing tables that a deployment begins with.

    Args:
        graph: of the job, with any subtasks.
        manifest: of the same job, step for step, or the record of the job as it runs; None: as the job's
            description says.
    """
    if manifest is None:
        fresh = physical_graph(graph.logical)
        return fresh, {
            stage.index: initial_table(stage.index, stage.parallelism, graph.logical.max_parallelism)
            for stage in fresh.stages
            if any(edge.exchange is Exchange.HASH for edge in stage.inputs)
        }
    for stage, indices in manifest.stages.items():
        graph = graph.with_subtasks(stage, indices)
    return graph, dict(manifest.routing)
