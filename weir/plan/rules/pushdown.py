"""What the filters of a job demand that every row of a source comes to: the source may pass over what cannot meet it.

Filters stay steps of the job. Pure; see ``weir.plan.rules.projection``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weir.plan.graph import Node
from weir.specs.conditions import Condition, renamed

#: By column of a source, what its values are called now.
_Names: TypeAlias = Mapping[str, frozenset[str]]


def with_conditions(nodes: Sequence[Node], whole: Collection[str]) -> list[Node]:
    """Return the same nodes, sources told what filters demand; a rule of ``weir.plan.stages``."""
    return [
        node
        if node.source is None
        else replace(node, spec=node.source.filtering(_conditions(node, nodes, whole)))
        for node in nodes
    ]


def _conditions(source: Node, nodes: Sequence[Node], whole: Collection[str]) -> list[Condition]:
    """What the filters demand that every row of a source comes to, about its own columns.

    Those behind a step with ``kept_columns`` do not count: others may come to read it, and need all rows.

    Args:
        source: the step.
        nodes: of the job, in topological order.
        whole: steps whose whole output is looked at from outside.
    """
    found: list[Condition] = []
    names: _Names = {name: frozenset([name]) for name in source.schema.names}
    at = source
    while at.name not in whole and not at.kept_columns and any(names.values()):
        reads = [
            (node, position)
            for node in nodes
            for position, item in enumerate(node.inputs)
            if item.producer == at.name
        ]
        if len(reads) != 1:
            break
        [(node, position)] = reads
        if node.inputs[position].output:
            break
        condition = node.spec.demanded(at.schema)
        if condition is not None:
            own = {now: name for name, called in names.items() for now in called}
            kept = renamed(condition, own)
            found += [] if kept is None else [kept]
        names = {
            name: node.spec.carried(position, called, at.schema) if called else called
            for name, called in names.items()
        }
        at = node
    return found
