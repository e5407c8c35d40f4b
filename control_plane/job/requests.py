"""Requests to task managers, made from what the control plane knows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from weir.config import ControlPlaneConfig, StateStrategy
from weir.plan.graph import PhysicalGraph
from weir.protocol.checkpoints.aggregate_layout import Layout, layouts_to_json
from weir.protocol.checkpoints.horizons import Horizons, horizons_to_json
from weir.protocol.routing import RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, handshake_to_proto, strategy_to_proto, subtask_to_proto
from weir.types import SubtaskId


def stage_subtasks(graph: PhysicalGraph) -> list[control_pb2.StageSubtasks]:
    """The subtasks of every stage."""
    return [
        control_pb2.StageSubtasks(stage_index=stage.index, subtask_indices=stage.subtask_indices)
        for stage in graph.stages
    ]


def subtask_locations(placement: Mapping[SubtaskId, str]) -> list[control_pb2.SubtaskLocation]:
    """Returns where every subtask runs."""
    return [
        control_pb2.SubtaskLocation(subtask=subtask_to_proto(subtask), address=name)
        for subtask, name in placement.items()
    ]


def routing_tables(tables: Iterable[RoutingTable]) -> list[control_pb2.RoutingTable]:
    """Return routing tables as messages."""
    return [
        control_pb2.RoutingTable(
            stage_index=table.stage_index,
            routing_version=table.version,
            group_to_subtask=table.groups,
            owner_epochs=table.owner_epochs,
            subtasks=table.subtasks,
        )
        for table in tables
    ]


def deploy_request(
    identity: JobIdentity,
    config: ControlPlaneConfig,
    job_module: str,
    parameters: Mapping[str, object],
    graph: PhysicalGraph,
    placement: Mapping[SubtaskId, str],
    tables: Iterable[RoutingTable],
    subtasks: Iterable[SubtaskId],
    deployed_us: int,
    restore: control_pb2.Restore | None,
    ended_checkpoint_id: int,
    state_ids: Mapping[str, int],
    isolated_steps: Iterable[str],
    strategy: StateStrategy,
    database_run: str,
    layouts: Mapping[str, Layout],
    horizons: Horizons,
) -> control_pb2.DeployRequest:
    """Create ``subtasks`` on one task manager; ``restore`` names the checkpoint from which the job starts."""
    return control_pb2.DeployRequest(
        handshake=handshake_to_proto(identity),
        job_module=job_module,
        parameters_json=json.dumps(parameters),
        subtasks=[subtask_to_proto(subtask) for subtask in subtasks],
        stages=stage_subtasks(graph),
        locations=subtask_locations(placement),
        routing_tables=routing_tables(tables),
        watermark_interval_ms=round(config.watermark_interval * 1000),
        out_of_order_grace_period_ms=round(config.out_of_order_grace_period * 1000),
        idle_timeout_ms=config.idle_timeout_ms,
        deployed_us=deployed_us,
        checkpoint_uri=config.checkpoint_uri,
        restore=restore,
        alignment_timeout_ms=config.checkpoint_alignment_timeout_ms,
        ended_checkpoint_id=ended_checkpoint_id,
        state_ids=state_ids,
        isolated_steps=isolated_steps,
        state_strategy=strategy_to_proto(strategy),
        database_run=database_run,
        layouts_json=json.dumps(layouts_to_json(layouts)),
        horizons_json=json.dumps(horizons_to_json(horizons)),
    )
