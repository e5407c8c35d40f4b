"""Which columns each step of a job reads: what nobody reads is neither decoded by sources nor sent between stages.

Pure: both processes come to the same from the same graph. Steps say themselves what they read
(``OperatorSpec.read_columns``); functions and sinks read all that they are given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.plan.graph import Node, chains_to_producer, consumer_counts
from weir.rows.side_outputs import output_id


def wanted_columns(nodes: Sequence[Node], whole: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """Return by output (``Input.output_id``) its columns that anything after it reads; of sinks none.

    Args:
        nodes: in topological order.
        whole: steps whose whole output is looked at from outside. So is that of a step that nothing follows.
    """
    by_name = {node.name: node for node in nodes}
    followed = {item.output_id for node in nodes for item in node.inputs}
    wanted = {
        node.name: frozenset(node.schema.names)
        if node.name in whole or (node.name not in followed and not node.is_sink)
        else node.kept_columns
        for node in nodes
    }
    wanted |= {output: frozenset() for output in followed if output not in wanted}
    for node in reversed(nodes):
        for position, item in enumerate(node.inputs):
            schema = by_name[item.producer].schema_of(item.output)
            wanted[item.output_id] |= _read(node, position, wanted, schema) | {*item.key_columns}
    return wanted


def without_unread_columns(nodes: Sequence[Node], whole: Collection[str]) -> list[Node]:
    """Return the same nodes without the columns that nobody reads; a rule of ``weir.plan.stages``.

    Schemas, and what sources read, are what is left. Inputs of steps that begin a stage say which columns are sent.
    """
    wanted = wanted_columns(nodes, whole)
    before, consumers = {node.name: node for node in nodes}, consumer_counts(nodes)
    found: dict[str, Node] = {}
    for node in nodes:
        if node.source is not None:
            source = node.source.reading(wanted[node.name])
            found[node.name] = replace(node, spec=source, schema=source.schema_read)
            continue
        is_chained = chains_to_producer(before, node, consumers)
        given, inputs = [], []
        for position, item in enumerate(node.inputs):
            schema = found[item.producer].schema_of(item.output)
            if not is_chained:
                whole_schema = before[item.producer].schema_of(item.output)
                reads = _read(node, position, wanted, whole_schema) | {*item.key_columns}
                schema = pa.schema([column for column in schema if column.name in reads] or [schema.field(0)])
                item = replace(item, columns=tuple(schema.names))
            given.append(schema)
            inputs.append(item)
        is_narrower = any(
            len(schema) < len(before[item.producer].schema_of(item.output))
            for schema, item in zip(given, inputs, strict=True)
        )
        node, spec = replace(node, inputs=tuple(inputs)), node.spec.giving(wanted[node.name])
        if is_narrower or spec is not node.spec:
            schema = spec.output_schema(node.name, tuple(given))
            sides = spec.sides(node.name, tuple(given))
            node = replace(node, spec=spec, schema=schema, side_outputs=sides)
        found[node.name] = node
    return list(found.values())


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
