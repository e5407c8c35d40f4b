"""What Spark's streams have of a job, and why they lack the rest."""

from __future__ import annotations

from weir.plan.graph import Node


def stream_refusal(node: Node) -> str | None:
    """The key in ``refusals.REASONS`` of why a step does not run in a stream; None: it does."""
    return None
