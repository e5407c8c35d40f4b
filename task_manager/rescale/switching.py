"""Leads upstream subtasks of this task manager to the new subtasks of a stage; see docs/design/0001, REROUTE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from task_manager.exchange.channels import Channel
from task_manager.exchange.inboxes import Inboxes
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.subtasks.running import RunningSubtask
from task_manager.topology import Topology
from weir.plan.graph import Edge
from weir.rows.records import EndOfStream, RouteMarker
from weir.types import SubtaskId


class Switching:
    """Implements ``ports.Switches``; ``running`` and ``inboxes`` are the job's own."""

    def __init__(
        self, running: Mapping[SubtaskId, RunningSubtask], inboxes: Inboxes, network: PeerNetwork
    ) -> None:
        self._running = running
        self._inboxes = inboxes
        self._network = network

    def switch(
        self,
        subtask: SubtaskId,
        stage_index: int,
        version: int,
        topology: Topology,
        retiring: Sequence[int],
    ) -> Sequence[Future[None]]:
        """Switch the edges of a stage's inputs, as ``ports.Switches`` says."""
        return [
            self._switch_edge(subtask, edge, version, topology, retiring)
            for edge in topology.graph.stage(stage_index).inputs
            if edge.producer_stage == subtask.stage_index
        ]

    def _switch_edge(
        self, subtask: SubtaskId, edge: Edge, version: int, topology: Topology, retiring: Sequence[int]
    ) -> Future[None]:
        running = self._running[subtask]
        table = topology.routing.get(edge.consumer_stage)
        added = self._open_channels(subtask, edge, topology)

        def command() -> None:
            group_to_subtask = table.group_to_subtask if table is not None else None
            running.chain.output.reroute(edge, version, group_to_subtask, added, retiring)

        future = running.subtask.mailbox.post_routing(command)
        if future is None:
            # It has ended: its end of stream says everything, also to consumers that are new.
            for channel in added.values():
                channel.send(RouteMarker(version))
                channel.send(EndOfStream())
                channel.close()
            future = Future()
            future.set_result(None)
        return future

    def _open_channels(self, subtask: SubtaskId, edge: Edge, topology: Topology) -> Mapping[int, Channel]:
        """Channels to consumers that the subtask does not know yet, by the consumer's index."""
        known = set(self._running[subtask].chain.output.consumers(edge))
        return {
            channel.consumer.subtask_index: self._network.open_channel(
                channel, self._inboxes.of(subtask), topology.locations[channel.consumer]
            )
            for channel in topology.graph.output_channels(subtask, edge)
            if channel.consumer.subtask_index not in known
        }
