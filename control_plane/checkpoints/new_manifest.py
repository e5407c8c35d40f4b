"""The manifest of a checkpoint all of whose parts are there."""

from __future__ import annotations

from control_plane.job.running_job import RunningJob
from weir.plan.input_origins import origins_of
from weir.plan.state_horizons import horizons_of
from weir.plan.stored_aggregates import layouts_of
from weir.protocol.checkpoints.checkpoint_model import Commit
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job.event_counts import covered


def new_manifest(job: RunningJob, action: Commit, created_ms: int) -> Manifest:
    """What the checkpoint that is to be committed consists of; ``created_ms``: wall clock, ms since the epoch."""
    graph = job.graph
    return Manifest(
        checkpoint_id=action.checkpoint_id,
        job_name=graph.logical.name,
        fingerprint=job.identity.fingerprint,
        generation=action.generation,
        created_ms=created_ms,
        job_start_us=job.started_us or 0,
        max_parallelism=graph.logical.max_parallelism,
        stages={stage.index: tuple(stage.subtask_indices) for stage in graph.stages},
        routing=dict(job.routing_tables),
        parts=action.parts,
        operator_names={stage.index: tuple(node.name for node in stage.nodes) for stage in graph.stages},
        state_ids=job.state_ids,
        layouts=layouts_of(graph.logical),
        horizons=horizons_of(graph.logical),
        origins=origins_of(graph.logical),
        is_savepoint=bool(action.path),
        events=covered(
            job.events_before,
            action.parts,
            action.settled,
            frozenset(stage.index for stage in graph.stages if stage.is_source),
            frozenset(stage.index for stage in graph.stages if any(node.is_sink for node in stage.nodes)),
        ),
        events_before=job.events_before,
    )
