"""What Spark's streams have of a job, and which of the reasons of ``refusals`` holds for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from weir.plan.graph import Node
from weir.rows.side_outputs import output_id
from weir.spark.groups import final_group, window_group
from weir.spark.joins import pair_join
from weir.spark.readers import reading
from weir.specs import (
    DeduplicateSpec,
    JoinSpec,
    KeyedAggregateSpec,
    KeyedSpec,
    SourceSpec,
    TopSpec,
    UserOperatorSpec,
    WindowAggregateSpec,
)
from weir.specs.window_parts import WindowPartSpec
from weir.specs.window_top import WindowTopPartSpec

_IN_ORDER = (KeyedAggregateSpec, DeduplicateSpec, TopSpec)


def stream_refusal(nodes: Sequence[Node], node: Node) -> str | None:
    """Say why a step does not run in a stream; None: it does.

    Args:
        nodes: steps of the job.
        node: one of them.
    """
    spec, by_name = node.spec, {each.name: each for each in nodes}
    if isinstance(spec, SourceSpec):
        return None if reading(spec, "streaming") is not None else "source_stream"
    if isinstance(spec, UserOperatorSpec | WindowPartSpec | WindowTopPartSpec):
        return "stream_state"
    if not isinstance(spec, KeyedSpec):
        return None
    read = {item.output_id for each in nodes for item in each.inputs}
    if any(output_id(node.name, side.name) in read for side in node.side_outputs):
        return "stream_side"
    if any(_has_state(by_name, item.producer) for item in node.inputs):
        return "stream_chain"
    given = [by_name[item.producer].schema_of(item.output) for item in node.inputs]
    if isinstance(spec, JoinSpec):
        has_equal = pair_join(spec, given, "streaming") is not None
    elif isinstance(spec, WindowAggregateSpec):
        has_equal = window_group(spec, given[0], "streaming") is not None
    elif isinstance(spec, KeyedAggregateSpec):
        has_equal = spec.emit == "per_batch" and final_group(spec, given[0], "streaming") is not None
    else:
        has_equal = False
    if has_equal:
        return None
    return "stream_order" if isinstance(spec, _IN_ORDER) else "stream_state"


def _has_state(nodes: dict[str, Node], name: str) -> bool:
    node = nodes[name]
    return isinstance(node.spec, KeyedSpec) or any(_has_state(nodes, item.producer) for item in node.inputs)


def updates_results(nodes: Sequence[Node], sink: Node) -> bool:
    """Whether what comes to a sink is told again when it changes: totals of keys, for each trigger."""
    by_name = {each.name: each for each in nodes}
    waiting = [item.producer for item in sink.inputs]
    while waiting:
        node = by_name[waiting.pop()]
        if isinstance(node.spec, KeyedAggregateSpec):
            return True
        waiting += [item.producer for item in node.inputs]
    return False
