"""How a job reads on Spark."""

from __future__ import annotations

from typing import Literal, TypeAlias

from weir.plan.graph import LogicalGraph
from weir.specs import SourceSpec

#: Of a job over inputs that end, or over streams.
Mode: TypeAlias = Literal["batch", "streaming"]


def mode_of(graph: LogicalGraph, streaming: bool | None) -> Mode:
    """Return how a job reads: as its user says, or else as a stream where a source never ends."""
    if streaming is None:
        streaming = any(isinstance(node.spec, SourceSpec) and not node.spec.ends for node in graph.nodes)
    return "streaming" if streaming else "batch"
