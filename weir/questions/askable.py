"""Which states of a job can be asked, by their names in questions; formats are in ``weir.operators.queries``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.graph import LogicalGraph
from weir.protocol.queries import QueryError


def askable(graph: LogicalGraph) -> dict[str, list[str]]:
    """Return for each step of a job its states that can be asked."""
    return {node.name: list(node.spec.asked_names) for node in graph.nodes}


def asked_pairs(known: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Steps and their states, in order."""
    return sorted((step, state) for step, states in known.items() for state in states)


def refused_step(step: str, known: Mapping[str, Sequence[str]]) -> QueryError:
    """Why nothing can be asked of a step, and what can be.

    Args:
        step: without state, or not there.
        known: see :func:`askable`.
    """
    there_is = ", ".join("/".join(pair) for pair in asked_pairs(known)) or "nothing"
    why = f"step {step!r} keeps nothing by key" if step in known else f"the job has no step {step!r}"
    return QueryError(404, f"{why}; what can be asked, as STEP/STATE: {there_is}")
