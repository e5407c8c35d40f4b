"""The way from a dataflow to what a run in this process needs: its graph, the steps to be collected, settings."""

from __future__ import annotations

from collections.abc import Collection as Names
from collections.abc import Iterable

from weir.config import Config
from weir.dataflow.builder import Dataflow
from weir.dataflow.streams import Stream
from weir.errors import GraphError
from weir.local.collected import Collection
from weir.local.job_parts import LocalSettings
from weir.plan.graph import LogicalGraph, PhysicalGraph
from weir.protocol.routing import RoutingTable, initial_table
from weir.specs import CollectSpec
from weir.spelling import did_you_mean


def local_graph(flow: Dataflow | Stream) -> LogicalGraph:
    """The graph of a flow whose branches need not end; of a stream, its step and what leads to it.

    Raises:
        GraphError: it is neither, or no runnable dataflow.
    """
    if isinstance(flow, Stream) and isinstance(flow.flow, Dataflow):
        if flow.input.output:
            raise GraphError(
                f"step {flow.node.name!r}: to collect its side output {flow.input.output!r}, end it in a step, such as "
                '.sink("name", weir.Collect()), and run the dataflow'
            )
        return flow.flow.build_local(flow.node.name)
    if isinstance(flow, Dataflow):
        return flow.build_local()
    raise GraphError(
        f"expected a weir.Dataflow or one of its streams, got {type(flow).__name__}; call your build() first"
    )


def collected_steps(graph: LogicalGraph, wanted: str | Iterable[str]) -> dict[str, Collection]:
    """Steps that are to be collected: those that end in ``weir.Collect()`` or in nothing, and those that are wanted.

    Raises:
        GraphError: there is no step of a name that is wanted.
    """
    asked: Names[str] = {wanted} if isinstance(wanted, str) else set(wanted)
    names = [node.name for node in graph.nodes]
    for name in asked:
        if name not in names:
            raise GraphError(f"job {graph.name}: no step is called {name!r}{did_you_mean(name, names)}")
    read = {item.output_id for node in graph.nodes for item in node.inputs}
    return {
        node.name: Collection(node.schema)
        for node in graph.nodes
        if node.name in asked
        or isinstance(node.spec, CollectSpec)
        or (not node.is_sink and node.name not in read)
    }


def local_settings(grace_period_ms: int | None = None) -> LocalSettings:
    """The defaults of config.json, so that batches, watermarks and caches are those of a real job."""
    config = Config()
    control_plane, task_manager = config.control_plane, config.task_manager
    if grace_period_ms is None:
        grace_period_ms = int(control_plane.out_of_order_grace_period * 1000)
    return LocalSettings(
        task_manager.batch_size,
        grace_period_ms,
        control_plane.idle_timeout_ms,
        task_manager.state_cache_bytes,
        task_manager.dead_letter_raw_bytes_max,
    )


def initial_routing(graph: PhysicalGraph) -> dict[int, RoutingTable]:
    """The routing table of each stage with key groups, as a real job begins with."""
    return {
        stage.index: initial_table(stage.index, stage.parallelism, graph.logical.max_parallelism)
        for stage in graph.stages
        if stage.has_groups
    }
