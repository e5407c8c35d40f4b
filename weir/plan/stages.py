"""The way from an author's graph to the one that runs: rules of one form, all pure, and steps that become stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from weir.errors import GraphError
from weir.plan.graph import (
    Edge,
    Exchange,
    LogicalGraph,
    Node,
    PhysicalGraph,
    Stage,
    chains_to_producer,
    consumer_counts,
)
from weir.plan.rules.partitioning import without_needless_exchanges
from weir.plan.rules.pre_aggregation import with_parts
from weir.plan.rules.projection import without_unread_columns
from weir.plan.rules.pushdown import with_conditions
from weir.plan.rules.sharing import with_shared_parts
from weir.plan.rules.time_order import with_time_order
from weir.plan.rules.versions import with_every_version

#: Nodes in topological order, checked, and the steps whose whole output is looked at from outside; returns nodes alike.
Rule: TypeAlias = Callable[[Sequence[Node], Collection[str]], list[Node]]

#: When a graph is checked: what they do is part of the job's fingerprint.
LOGICAL_RULES: tuple[Rule, ...] = (without_needless_exchanges, with_time_order, with_every_version)
#: When a graph gets its stages, in each process alike: the job's own graph says nothing of them.
PHYSICAL_RULES: tuple[Rule, ...] = (
    with_parts,
    with_conditions,
    with_shared_parts,
    without_unread_columns,
)


def optimized(nodes: Sequence[Node], rules: Sequence[Rule], whole: Collection[str] = ()) -> list[Node]:
    """Return the nodes after each of the rules.

    Args:
        nodes: in topological order, checked.
        rules: `LOGICAL_RULES` or `PHYSICAL_RULES`.
        whole: steps whose whole output is looked at from outside; the processes of a real job have none.
    """
    found = list(nodes)
    for rule in rules:
        found = rule(found, whole)
    return found


def physical_graph(
    logical: LogicalGraph, whole: Collection[str] = (), rules: Sequence[Rule] = PHYSICAL_RULES
) -> PhysicalGraph:
    """Apply the rules, and chain operators into stages.

    A node joins its producer's stage when it has one input, that input is FORWARD without a stage boundary, both
    have the same parallelism, and nobody else reads the same output of the producer. What reads a side output begins a
    stage.

    Args:
        logical: the job.
        whole: steps whose whole output is looked at from outside; the processes of a real job have none.
        rules: by which the nodes are made those that run; of a part of a job some have no place.
    """
    nodes = optimized(logical.nodes, rules, whole)
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    chains: list[list[Node]] = []
    stage_of: dict[str, int] = {}
    for node in nodes:
        if chains_to_producer(by_name, node, consumers):
            index = stage_of[node.inputs[0].producer]
            chains[index].append(node)
        else:
            index = len(chains)
            chains.append([node])
        stage_of[node.name] = index
    stages = []
    for index, chain in enumerate(chains):
        first = chain[0]
        edges = []
        for position, item in enumerate(first.inputs):
            assert item.columns is not None
            is_narrowed = list(item.columns) != by_name[item.producer].schema_of(item.output).names
            producer = stage_of[item.producer]
            output = item.output_id if item.output else ""
            sent = by_name[item.producer].schema_of(item.output)
            combines = item.exchange is Exchange.HASH and first.spec.combines(sent)
            edges.append(
                Edge(
                    *(producer, index, item.exchange, item.key_columns, position),
                    *(item.columns, is_narrowed, output, first.spec if combines else None),
                )
            )
        stages.append(Stage(index, tuple(chain), tuple(range(first.parallelism)), tuple(edges)))
        if stages[-1].is_keyed and not stages[-1].has_groups:
            keyed = next(node.name for node in chain if node.is_keyed)
            raise GraphError(
                f"job {logical.name}: step {keyed!r} keeps state by key, but its rows do not come by key; "
                "call key_by right before it"
            )
    return PhysicalGraph(logical, tuple(stages))
