"""Where the subtasks of a job are, and who owns which key groups, at one moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from weir.plan.graph import PhysicalGraph
from weir.protocol.routing import RoutingTable
from weir.rpc import control_pb2
from weir.rpc.wire import subtask_from_proto
from weir.types import ChannelId, SubtaskId


@dataclass(frozen=True)
class Topology:
    """Where everything is now: replaced as a whole when a stage is rescaled."""

    graph: PhysicalGraph
    #: host:port of every subtask's task manager.
    locations: Mapping[SubtaskId, str]
    #: Of every stage with a HASH input.
    routing: Mapping[int, RoutingTable]

    def input_channels(self, subtask: SubtaskId) -> list[ChannelId]:
        """The channels that end at a subtask, without those from producers that ended and whose task manager left."""
        return [
            channel for channel in self.graph.input_channels(subtask) if channel.producer in self.locations
        ]


def topology_from_proto(
    graph: PhysicalGraph,
    stages: Iterable[control_pb2.StageSubtasks],
    locations: Iterable[control_pb2.SubtaskLocation],
    routing_tables: Iterable[control_pb2.RoutingTable],
) -> Topology:
    """What the control plane says of the job; ``graph`` is the job's, with any subtasks.

    Raises:
        GraphError: a stage that the job does not have.
        ValueError: a routing table contradicts itself.
    """
    for stage in stages:
        graph = graph.with_subtasks(stage.stage_index, stage.subtask_indices)
    return Topology(
        graph,
        {subtask_from_proto(item.subtask): item.address for item in locations},
        {
            table.stage_index: RoutingTable(
                table.stage_index,
                table.routing_version,
                tuple(sorted(set(table.subtasks))),
                tuple(table.group_to_subtask),
                tuple(table.owner_epochs),
            )
            for table in routing_tables
        },
    )
