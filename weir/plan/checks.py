"""Orders and validates the nodes of a job. Every error names the step and the mend.

``weir.dataflow.builder`` ends here; a list of nodes made by hand goes through the same door: :func:`checked_graph`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa

from weir.errors import GraphError
from weir.plan.change_times import join_before_versions, step_with_other_times
from weir.plan.graph import Exchange, Input, LogicalGraph, Node, chains_to_producer, consumer_counts
from weir.plan.rules.partitioning import is_spread_by, partitionings
from weir.plan.stages import LOGICAL_RULES, optimized
from weir.plan.ways_back import producers, steps_before
from weir.rows.changes import is_changelog, refuse_changes
from weir.rows.schemas import schema_difference
from weir.specs import OperatorSpec, SourceSpec
from weir.specs.expression_checks import check_key_columns
from weir.spelling import did_you_mean
from weir.types import MAX_PARALLELISM_MAX

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_takes_changes(step: str, spec: OperatorSpec, inputs: Sequence[pa.Schema]) -> None:
    """Refuse a changelog as the input of a step that would take each change for a row of its own.

    Raises:
        GraphError: names the step and what to do.
    """
    if not spec.takes_changes:
        refuse_changes(step, spec.kind, inputs)


def checked_graph(
    name: str, nodes: Sequence[Node], max_parallelism: int = 128, *, open_ends: bool = False
) -> LogicalGraph:
    """A valid logical graph: sources first, then every node after its producers, else in the given order.

    Args:
        name: the job's name.
        nodes: in order of definition.
        max_parallelism: number of key groups, 1 to 4096.
        open_ends: branches need not end in a sink.

    Raises:
        GraphError: the nodes are no runnable dataflow.
    """
    check_name("job", name)
    check_max_parallelism(name, max_parallelism)
    by_name: dict[str, Node] = {}
    for node in nodes:
        check_name("step", node.name)
        if node.name in by_name:
            raise GraphError(f"step {node.name!r}: two steps have this name; names must be unique in a job")
        by_name[node.name] = node
    if not any(node.is_source for node in nodes):
        raise GraphError(f"job {name!r}: it has no source; begin with flow.source(...)")
    _check_links(nodes, by_name, open_ends)
    ordered = _topological(nodes)
    for node in ordered:
        _check_parallelism(node, by_name, max_parallelism)
        if node.source is not None:
            _check_source(node, node.source)
        else:
            _check_schema(node, by_name)
    _check_partitioning(ordered)
    return LogicalGraph(name, tuple(optimized(ordered, LOGICAL_RULES)), max_parallelism)


def wrong_step(step: str, text: str) -> GraphError:
    """The error of a step; :meth:`Dataflow.build` adds the line of the job that made the step."""
    error = GraphError(f"step {step!r}: {text}")
    error.step = step
    return error


def check_name(what: str, name: object) -> None:
    """Names end up in metric labels, file names and URLs, so only letters, digits and ``_ . -`` are allowed.

    Raises:
        GraphError: not such a string of at most 100 characters.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise GraphError(
            f"{what} name {name!r} is not allowed; use up to 100 letters, digits and any of _ . -"
        )


def check_max_parallelism(job: str, max_parallelism: object) -> None:
    """Refuse a number of key groups outside 1 to 4096.

    Raises:
        GraphError: with the allowed range.
    """
    whole = isinstance(max_parallelism, int) and not isinstance(max_parallelism, bool)
    if not whole or not 1 <= max_parallelism <= MAX_PARALLELISM_MAX:  # type: ignore[operator]
        raise GraphError(
            f"job {job!r}: max_parallelism is {max_parallelism!r}; it must be 1 to {MAX_PARALLELISM_MAX}"
        )


def _check_links(nodes: Sequence[Node], by_name: Mapping[str, Node], open_ends: bool) -> None:
    """Every input has a producer, sources have none, and every branch ends in a sink."""
    consumed = {item.producer for node in nodes for item in node.inputs}
    for node in nodes:
        if node.is_source and node.inputs:
            raise wrong_step(node.name, "a source has no inputs")
        if not node.is_source and not node.inputs:
            raise wrong_step(node.name, "it has no input; call it on a stream")
        if len(node.inputs) > 1 and not node.spec.takes_several_inputs:
            raise wrong_step(node.name, "only union takes several inputs; put a union before it")
        for item in node.inputs:
            if item.producer not in by_name:
                raise wrong_step(
                    node.name,
                    f"its input {item.producer!r} does not exist{did_you_mean(item.producer, by_name)}",
                )
            if by_name[item.producer].is_sink:
                raise wrong_step(node.name, f"its input {item.producer!r} is a sink, nothing leaves it")
    for node in nodes:
        if not open_ends and not node.is_sink and node.name not in consumed:
            raise wrong_step(node.name, "nothing reads its output; end the branch with .sink(...)")


def _topological(nodes: Sequence[Node]) -> list[Node]:
    """Sources, then repeatedly the first node whose producers are all placed.

    Raises:
        GraphError: a cycle; names its steps in order.
    """
    ordered = [node for node in nodes if node.is_source]
    placed = {node.name for node in ordered}
    waiting = [node for node in nodes if not node.is_source]
    while waiting:
        for position, node in enumerate(waiting):
            if all(item.producer in placed for item in node.inputs):
                ordered.append(waiting.pop(position))
                placed.add(node.name)
                break
        else:
            raise GraphError(_describe_cycle({node.name: node for node in waiting}))
    return ordered


def _describe_cycle(waiting: Mapping[str, Node]) -> str:
    """Walk back from any waiting node: each has a waiting producer, so a name comes twice."""
    path = [next(iter(waiting))]
    while path.count(path[-1]) == 1:
        path.append(next(item.producer for item in waiting[path[-1]].inputs if item.producer in waiting))
    cycle = path[path.index(path[-1]) :]
    return (
        f"step {cycle[0]!r}: its output flows back into it: {' -> '.join(reversed(cycle))}; remove the cycle"
    )


def _check_parallelism(node: Node, by_name: Mapping[str, Node], max_parallelism: int) -> None:
    check_parallelism(node.name, node.parallelism)
    hashed = any(item.exchange is Exchange.HASH for item in node.inputs)
    if (node.is_keyed or hashed) and node.parallelism > max_parallelism:
        raise wrong_step(
            node.name,
            f"parallelism {node.parallelism} is above the job's max_parallelism "
            f"{max_parallelism}, the number of key groups",
        )
    for item in node.inputs:
        producer = by_name[item.producer]
        if item.exchange is Exchange.FORWARD and producer.parallelism != node.parallelism:
            raise wrong_step(
                node.name,
                f"parallelism {node.parallelism} differs from {producer.parallelism} "
                f"of its input {producer.name!r}; put .rebalance(), .key_by(...) or .broadcast() between them",
            )


def check_parallelism(step: str, parallelism: object) -> None:
    """Refuse anything but a whole number from 1 on.

    Raises:
        GraphError: names the step.
    """
    if not isinstance(parallelism, int) or isinstance(parallelism, bool) or parallelism < 1:
        raise GraphError(
            f"step {step!r}: parallelism is {parallelism!r}; it must be a whole number from 1 on"
        )


def _check_source(node: Node, spec: SourceSpec) -> None:
    spec.check(node.name)
    difference = schema_difference(spec.schema, node.schema)
    if difference:
        raise wrong_step(node.name, f"the node's schema is not the source's: {difference}")


def _check_schema(node: Node, by_name: Mapping[str, Node]) -> None:
    for item in node.inputs:
        _check_exchange(node, item, by_name[item.producer].schema_of(item.output))
    if node.spec.window_time == "event":
        _check_windows_follow(node, by_name)
    inputs = tuple(by_name[item.producer].schema_of(item.output) for item in node.inputs)
    check_takes_changes(node.name, node.spec, inputs)
    if node.spec.window_time is not None and is_changelog(inputs[0]):
        _check_times_of_rows(node, by_name)
    _check_versions(node, by_name)
    expected = node.spec.output_schema(node.name, inputs)
    difference = schema_difference(expected, node.schema)
    if difference and not node.is_sink:
        raise wrong_step(node.name, f"the node's schema is not what the step gives: {difference}")
    if node.spec.sides(node.name, inputs) != node.side_outputs:
        raise wrong_step(node.name, "the node's side outputs are not those of the step")


def _check_exchange(node: Node, item: Input, schema: pa.Schema) -> None:
    if item.exchange is Exchange.HASH:
        check_key_columns(node.name, item.key_columns, schema)
    elif item.key_columns:
        raise wrong_step(node.name, f"key columns {list(item.key_columns)} go only with a HASH exchange")


def _check_partitioning(nodes: Sequence[Node]) -> None:
    """A keyed step must see all rows of a key: they come by HASH over its columns, or are spread so already."""
    spread = partitionings(nodes)
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    for node in nodes:
        for position, (item, columns) in enumerate(zip(node.inputs, node.key_columns, strict=False)):
            keys = tuple(columns)
            if not keys and item.exchange is not Exchange.BROADCAST:
                raise wrong_step(
                    node.name, f"every subtask must get all of input {position + 1}; call broadcast before it"
                )
            is_there = chains_to_producer(by_name, node, consumers)
            if (
                keys
                and item.key_columns != keys
                and not (is_there and is_spread_by(spread[item.producer], keys))
            ):
                raise wrong_step(
                    node.name, f"its rows are not partitioned by {list(keys)}; call key_by before it"
                )


def _check_times_of_rows(node: Node, by_name: Mapping[str, Node]) -> None:
    """Windows over a changelog take rows back by event time."""
    other = step_with_other_times(node, by_name)
    if other is not None:
        raise wrong_step(
            node.name,
            f"its input is a changelog whose rows leave step {other!r} with other event times than those with which "
            "they came, so no window could take them back; put assign_event_time(<a column with the time>, "
            f"watermark=...) between {other!r} and key_by",
        )


def _check_versions(node: Node, by_name: Mapping[str, Node]) -> None:
    """Joins as of a time need to know which version there was when."""
    join = join_before_versions(node, by_name)
    if join is not None:
        raise wrong_step(
            node.name,
            f"its right side comes from join {join!r}, whose result is updated: which version there was at a time "
            "would depend on which of its inputs was read first; use join_as_of with each of its tables, one after the "
            "other",
        )


def _check_windows_follow(node: Node, by_name: Mapping[str, Node]) -> None:
    """Results of windows by the clock have the clock's time, and no watermark follows it."""
    for producer in steps_before(by_name, producers(node)):
        if producer.spec.window_time == "processing":
            raise wrong_step(
                node.name,
                f"its rows come from windows by the clock of step {producer.name!r}, and have no "
                'event time; use time="processing" here, too',
            )
