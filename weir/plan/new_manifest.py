"""The manifest of a checkpoint all of whose parts are there, alike for jobs on task managers and in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.change_conditions import conditions_of, makers_of
from weir.plan.computed_columns import computed_of
from weir.plan.graph import PhysicalGraph
from weir.plan.input_origins import origins_of
from weir.plan.state_horizons import horizons_of
from weir.plan.stored_aggregates import layouts_of
from weir.protocol.checkpoints.manifest import Manifest, SubtaskPart
from weir.protocol.job.event_counts import EventCounts, covered
from weir.protocol.routing import RoutingTable


def new_manifest(
    graph: PhysicalGraph,
    routing: Mapping[int, RoutingTable],
    parts: Sequence[SubtaskPart],
    state_ids: Mapping[str, int],
    *,
    checkpoint_id: int,
    fingerprint: str,
    generation: int,
    created_ms: int,
    job_start_us: int,
    events_before: EventCounts,
    settled: Mapping[int, EventCounts],
    is_savepoint: bool = False,
) -> Manifest:
    """Return what a checkpoint consists of.

    Args:
        graph: the job, with the subtasks that it has now.
        routing: of stages with key groups.
        parts: one for each subtask.
        state_ids: numbers of states in the store, by ``step`` or ``step/state``.
        checkpoint_id: its number.
        fingerprint: of the job.
        generation: of the deployment.
        created_ms: wall clock, ms since the epoch.
        job_start_us: epoch µs; schedules of paced sources count from there.
        events_before: what the checkpoint covers from which the deployment began.
        settled: by stage index: of subtasks that a rescale ended and that belong to no checkpoint any more.
        is_savepoint: the user owns it.
    """
    logical, stages = graph.logical, graph.stages
    return Manifest(
        checkpoint_id=checkpoint_id,
        job_name=logical.name,
        fingerprint=fingerprint,
        generation=generation,
        created_ms=created_ms,
        job_start_us=job_start_us,
        max_parallelism=logical.max_parallelism,
        stages={stage.index: tuple(stage.subtask_indices) for stage in stages},
        routing=dict(routing),
        parts=tuple(parts),
        operator_names={stage.index: tuple(node.name for node in stage.nodes) for stage in stages},
        state_ids=state_ids,
        layouts=layouts_of(logical),
        horizons=horizons_of(logical),
        origins=origins_of(logical),
        conditions=conditions_of(logical),
        makers=makers_of(logical),
        computed=computed_of(logical),
        is_savepoint=is_savepoint,
        events=covered(
            events_before,
            parts,
            settled,
            frozenset(stage.index for stage in stages if stage.is_source),
            frozenset(stage.index for stage in stages if any(node.is_sink for node in stage.nodes)),
        ),
        events_before=events_before,
    )
