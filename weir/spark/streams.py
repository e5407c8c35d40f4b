"""How the steps of a job run in Spark's streams: by Spark's own operators, or by Weir's on Spark's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.graph import Node
from weir.plan.ways_back import producers, steps_before
from weir.rows.side_outputs import output_id
from weir.spark.bounds import own_bound_ms
from weir.spark.groups import final_group, window_group
from weir.spark.joins import pair_join
from weir.spark.readers import has_lines, reading
from weir.spark.task_steps import Upstream
from weir.specs import (
    AssignEventTimeSpec,
    JoinSpec,
    KeyedAggregateSpec,
    KeyedSpec,
    SourceSpec,
    UserOperatorSpec,
    WindowAggregateSpec,
)
from weir.specs.kafka import KafkaSpec


def stream_refusal(node: Node) -> str | None:
    """Say why a step does not run in a stream; None: it does."""
    spec = node.spec
    if not isinstance(spec, SourceSpec) or isinstance(spec, KafkaSpec) or has_lines(spec):
        return None
    return None if reading(spec) is not None else "source_stream"


def has_state(node: Node) -> bool:
    """Whether a step keeps anything from one row to the next."""
    return isinstance(node.spec, KeyedSpec | UserOperatorSpec)


def spark_keeps_state(nodes: Sequence[Node]) -> bool:
    """Whether all steps with state of a job have equals among the operators of Spark's streams.

    These have one watermark, which does not go through another step with state, and drop late rows. Their times are a
    TIMESTAMP of Spark, which has no place for those that are far in the future. Rows that have a watermark get no
    second one, as of other times.
    """
    by_name = {each.name: each for each in nodes}
    timed = [node for node in nodes if isinstance(node.spec, SourceSpec | AssignEventTimeSpec)]
    if any(node.watermark.future_ms_max is None for node in timed):
        return False
    read = {item.output_id for each in nodes for item in each.inputs}
    for node in filter(has_state, nodes):
        given = [by_name[item.producer].schema_of(item.output) for item in node.inputs]
        told_late = any(output_id(node.name, side.name) in read for side in node.side_outputs)
        comes_after = any(_follows_state(by_name, item.producer) for item in node.inputs)
        if told_late or comes_after or not _has_equal(node, given):
            return False
    followed = spark_watermarks(by_name)
    assigners = (by_name[name] for name in followed if isinstance(by_name[name].spec, AssignEventTimeSpec))
    return not any(
        each.name in followed for node in assigners for each in steps_before(by_name, producers(node))
    )


def spark_watermarks(nodes: Mapping[str, Node]) -> dict[str, int]:
    """The steps whose event times the watermarks of Spark's own steps with state follow, and at which distance, ms.

    That is before any step drops rows: the watermark is the one of the source.
    """
    timed = (node for node in nodes.values() if isinstance(node.spec, JoinSpec | WindowAggregateSpec))
    found: dict[str, int | None] = {}
    for node in timed:
        for item in node.inputs:
            found |= {each.step: each.bound_ms for each in upstream_of(nodes, item.producer)}
    return {name: bound_ms for name, bound_ms in found.items() if bound_ms is not None}


def _has_equal(node: Node, given: Sequence[object]) -> bool:
    spec = node.spec
    if isinstance(spec, JoinSpec):
        return pair_join(spec, given, "streaming") is not None
    if isinstance(spec, WindowAggregateSpec):
        return window_group(spec, given[0], "streaming") is not None
    if isinstance(spec, KeyedAggregateSpec):
        return spec.tells_batches and final_group(spec, given[0], "streaming") is not None
    return False


def _follows_state(nodes: Mapping[str, Node], name: str) -> bool:
    node = nodes[name]
    return has_state(node) or any(_follows_state(nodes, item.producer) for item in node.inputs)


def updates_results(nodes: Sequence[Node], sink: Node) -> bool:
    """Whether what comes to a sink is told again when it changes: totals of keys, for each trigger."""
    by_name = {each.name: each for each in nodes}
    before = steps_before(by_name, producers(sink))
    return any(isinstance(node.spec, KeyedAggregateSpec) for node in before)


def upstream_of(nodes: Mapping[str, Node], name: str) -> tuple[Upstream, ...]:
    """The steps whose marks come with the rows of a step."""
    node = nodes[name]
    if has_state(node):
        return (Upstream(name, None),)
    if isinstance(node.spec, SourceSpec | AssignEventTimeSpec):
        return (Upstream(name, own_bound_ms(node)),)
    found: dict[Upstream, None] = {}
    for item in node.inputs:
        found |= dict.fromkeys(upstream_of(nodes, item.producer))
    return tuple(found)
