"""Which columns each step of a job reads: what nobody reads is neither decoded by sources nor sent between stages.

Sources are also told what the filters right after them demand, and may pass over rows that cannot meet it.

Pure: both processes come to the same from the same graph. Steps say themselves what they read
(``OperatorSpec.read_columns``); functions and sinks read all that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from weir.plan.rules.pushdown import conditions
from weir.rows.side_outputs import output_id
from weir.specs import SourceSpec

if TYPE_CHECKING:
    from weir.plan.graph import Node


@dataclass(frozen=True)
class Projection:
    """The steps of a graph as they run."""

    #: By name. Schemas, and the columns that sources read, are those that are left.
    nodes: dict[str, Node] = field(default_factory=dict)
    #: By consumer and position of its input: user columns that are sent to it, in order.
    sent: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)


def wanted_columns(nodes: Sequence[Node], whole: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """By output (``Input.output_id``): its columns that anything after it reads; of sinks none.

    Args:
        nodes: in topological order.
        whole: steps whose whole output is looked at from outside. So is that of a step that nothing follows.
    """
    by_name = {node.name: node for node in nodes}
    followed = {item.output_id for node in nodes for item in node.inputs}
    wanted = {
        node.name: frozenset(node.schema.names)
        if node.name in whole or (node.name not in followed and not node.is_sink)
        else frozenset()
        for node in nodes
    }
    wanted |= {output: frozenset() for output in followed if output not in wanted}
    for node in reversed(nodes):
        for position, item in enumerate(node.inputs):
            schema = by_name[item.producer].schema_of(item.output)
            wanted[item.output_id] |= _read(node, position, wanted, schema) | {*item.key_columns}
    return wanted


def project(
    nodes: Sequence[Node], is_chained: Callable[[Node], bool], whole: Collection[str] = ()
) -> Projection:
    """Leave out of a graph the columns that nobody reads.

    Args:
        nodes: in topological order.
        is_chained: whether a step gets the very batches of its producer.
        whole: as for :func:`wanted_columns`.
    """
    wanted = wanted_columns(nodes, whole)
    before = {node.name: node for node in nodes}
    found = Projection()
    for node in nodes:
        if isinstance(node.spec, SourceSpec):
            source = node.spec.reading(wanted[node.name]).filtering(conditions(node, nodes, whole))
            found.nodes[node.name] = replace(node, spec=source, schema=source.schema_read)
            continue
        inputs = []
        for position, item in enumerate(node.inputs):
            given = found.nodes[item.producer].schema_of(item.output)
            if not is_chained(node):
                whole_schema = before[item.producer].schema_of(item.output)
                reads = _read(node, position, wanted, whole_schema) | {*item.key_columns}
                given = pa.schema([column for column in given if column.name in reads] or [given.field(0)])
                found.sent[node.name, position] = tuple(given.names)
            inputs.append(given)
        is_narrower = any(
            len(given) < len(before[item.producer].schema_of(item.output))
            for given, item in zip(inputs, node.inputs, strict=True)
        )
        spec = node.spec.giving(wanted[node.name])
        if is_narrower or spec is not node.spec:
            schema = spec.output_schema(node.name, tuple(inputs))
            sides = spec.sides(node.name, tuple(inputs))
            node = replace(node, spec=spec, schema=schema, side_outputs=sides)
        found.nodes[node.name] = node
    return found


def _read(
    node: Node, position: int, wanted: Mapping[str, frozenset[str]], schema: pa.Schema
) -> frozenset[str]:
    """Columns of an input that a step needs for all of its outputs that are read."""
    read = node.spec.read_columns_of(position, wanted[node.name], schema)
    for item in node.side_outputs:
        name = output_id(node.name, item.name)
        if name in wanted:
            read |= node.spec.read_for_side(item.name, wanted[name], schema)
    return read
