"""A job's logical and physical graph as a JSON document: what ``GET /plan`` and ``weir plan --json`` show."""

from __future__ import annotations

from typing import Any

from weir.graph import PhysicalGraph


def plan_document(graph: PhysicalGraph) -> dict[str, Any]:
    """The document; its form is ``PlanView`` of the control plane."""
    return {
        "job": graph.logical.name,
        "fingerprint": graph.logical.fingerprint,
        "max_parallelism": graph.logical.max_parallelism,
        "operators": [
            {
                "name": node.name,
                "stage": stage.index,
                "spec": node.spec.describe(),
                "columns": {field.name: str(field.type) for field in node.schema},
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
            }
            for stage in graph.stages
            for edge in stage.inputs
        ],
    }
