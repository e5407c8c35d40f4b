"""How the rows of each step are spread over its subtasks: an exchange that would move no row is left out.

Pure; called where a graph is checked. ``key_by`` after ``key_by`` with the same columns, perhaps renamed, leads to the
subtask where the rows are already: the next step joins the stage then, with the same key groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weir.plan.graph import Exchange, Input, Node, chains_to_producer, consumer_counts

#: Of each key column by which rows were spread, the columns that hold its values now; None: rows are not spread by key.
Partitioning: TypeAlias = "tuple[frozenset[str], ...] | None"


def without_needless_exchanges(nodes: Sequence[Node], whole: Collection[str]) -> list[Node]:
    """Return the same nodes, FORWARD in place of HASH where every row is on the right subtask already.

    That is so if the producer's rows are spread by the very columns, it has as many subtasks, and nobody else reads its
    output: then the node is chained to it. Else the exchange stays, so that both stages can be rescaled.

    A rule of ``weir.plan.stages``, which looks at no columns.
    """
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    spread = partitionings(nodes)
    found = []
    for node in nodes:
        if len(node.inputs) == 1:
            item = node.inputs[0]
            producer = by_name[item.producer]
            if (
                item.exchange is Exchange.HASH
                and not item.stage_boundary
                and not item.output
                and consumers[item.output_id] == 1
                and producer.parallelism == node.parallelism
                and is_spread_by(spread[producer.name], item.key_columns)
            ):
                node = replace(node, inputs=(Input(item.producer),))
        found.append(node)
    return found


def is_spread_by(partitioning: Partitioning, columns: Sequence[str]) -> bool:
    """Return whether an exchange by these columns, in this order, would leave every row where it is."""
    return (
        partitioning is not None
        and len(partitioning) == len(columns)
        and all(column in names for column, names in zip(columns, partitioning, strict=True))
    )


def partitionings(nodes: Sequence[Node]) -> dict[str, Partitioning]:
    """How the rows that leave each step are spread, by its name; ``nodes`` in topological order."""
    by_name, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    found: dict[str, Partitioning] = {}
    for node in nodes:
        found[node.name] = _after(node, by_name, consumers, found)
    return found


def _after(
    node: Node,
    by_name: Mapping[str, Node],
    consumers: Mapping[str, int],
    known: Mapping[str, Partitioning],
) -> Partitioning:
    if not node.inputs:
        return None
    if len(node.inputs) > 1:
        # Rows of all inputs are at the owner of their key; what leaves is called as in the first one.
        keys = node.spec.keys_of_input(0) if node.spec.keeps_keys else ()
        return tuple(frozenset([name]) for name in keys) or None
    item = node.inputs[0]
    came: Partitioning = None
    if item.exchange is Exchange.HASH:
        came = tuple(frozenset([name]) for name in item.key_columns)
    elif chains_to_producer(by_name, node, consumers):
        # The first step of another stage has its rows as they came, but its subtasks own no key groups.
        came = known[item.producer]
    if came is None:
        return None
    schema = by_name[item.producer].schema_of(item.output)
    passed = [node.spec.passed_on(names, schema) for names in came]
    return tuple(passed) if all(passed) else None
