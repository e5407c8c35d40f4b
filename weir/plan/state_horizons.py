"""How far back the states of a job reach: see ``weir.protocol.checkpoints.horizons``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weir.plan.graph import LogicalGraph
from weir.protocol.checkpoints.horizons import Horizon, Horizons
from weir.protocol.checkpoints.manifest import Manifest
from weir.specs.keyed import ExpiringSpec


def horizons_of(graph: LogicalGraph) -> dict[str, tuple[Horizon, ...]]:
    """Return the horizons that the steps of a graph have, by step."""
    return {
        node.name: node.spec.horizons
        for node in graph.nodes
        if isinstance(node.spec, ExpiringSpec) and node.spec.horizons
    }


def with_horizons(graph: LogicalGraph, horizons: Horizons) -> LogicalGraph:
    """Return the same job, whose states reach back as far as this; those that are not among them, for ever."""
    if not horizons:
        return graph
    nodes = tuple(
        replace(node, spec=replace(node.spec, horizons=horizons[node.name]))
        if node.name in horizons and isinstance(node.spec, ExpiringSpec)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, written=graph.written or graph)


def fitted_horizons(graph: LogicalGraph, manifest: Manifest) -> dict[str, tuple[Horizon, ...]]:
    """Return by step how far back the states of a job reach that starts from a checkpoint of an earlier one.

    Args:
        graph: the job.
        manifest: of the checkpoint, with the names that the job has. Those of earlier versions do not tell it.
    """
    found: dict[str, dict[str, Horizon]] = {}
    for node in graph.nodes:
        if not isinstance(node.spec, ExpiringSpec):
            continue
        of_step = found.setdefault(node.name, {})
        for part in manifest.parts:
            kept: Any = part.operators.get(node.name)
            times = kept.get("times", {}) if isinstance(kept, dict) else {}
            for state, first_ms in times.get("first_ms", {}).items():
                if state in node.states and (state not in of_step or of_step[state].first_ms < first_ms):
                    of_step[state] = Horizon(state, kept["codec"]["states"][state]["stamps"], first_ms)
    return {step: tuple(states[name] for name in sorted(states)) for step, states in found.items() if states}
