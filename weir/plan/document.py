"""A job's logical and physical graph as a JSON document: what ``GET /plan`` and ``weir plan --json`` show."""

from __future__ import annotations

from typing import Any

from weir.plan.fingerprints import fingerprint_of
from weir.plan.graph import Node, PhysicalGraph
from weir.plan.reading_times import sources_by_reading_time
from weir.redaction import redacted


def columns_not_read(node: Node) -> list[str]:
    """Columns that a source has and does not decode, because no step reads them; of other steps none."""
    source = node.source
    if source is None:
        return []
    return [name for name in source.schema.names if name not in source.schema_read.names]


def plan_document(graph: PhysicalGraph) -> dict[str, Any]:
    """The document; its form is ``PlanView`` of the control plane."""
    return {
        "job": graph.logical.name,
        "fingerprint": fingerprint_of(graph.logical),
        "max_parallelism": graph.logical.max_parallelism,
        "operators": [
            {
                "name": node.name,
                "stage": stage.index,
                "spec": redacted(node.spec.describe()),
                "columns": {field.name: str(field.type) for field in node.schema},
                "columns_not_read": columns_not_read(node),
                "states": list(node.states.values()),
                "key_columns": node.key_columns,
                "window": node.spec.time_words,
                "event_time": node.spec.event_time_words,
                "sources_by_reading_time": sources_by_reading_time(graph, node),
                "side_outputs": {
                    item.name: {field.name: str(field.type) for field in item.schema}
                    for item in node.side_outputs
                },
            }
            for stage in graph.stages
            for node in stage.nodes
        ],
        "stages": [
            {
                "stage": stage.index,
                "name": stage.name,
                "parallelism": stage.parallelism,
                "keyed": stage.is_keyed,
            }
            for stage in graph.stages
        ],
        "edges": [
            {
                "producer_stage": edge.producer_stage,
                "consumer_stage": edge.consumer_stage,
                "exchange": edge.exchange.value,
                "key_columns": list(edge.key_columns),
                "columns": None if edge.columns is None else list(edge.columns),
                "output": edge.output or None,
            }
            for stage in graph.stages
            for edge in stage.inputs
        ],
    }
