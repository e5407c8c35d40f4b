"""The sources of the inputs of joins and the like: what such steps keep belongs to one input or the other."""

from __future__ import annotations

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph
from weir.protocol.checkpoints.manifest import Manifest, Origins


def origins_of(graph: LogicalGraph) -> dict[str, Origins]:
    """Return, by step with state and several inputs, for each input the sources whose rows come there."""
    sources: dict[str, frozenset[str]] = {}
    found = {}
    for node in graph.nodes:
        by_input = [sources[each.producer] for each in node.inputs]
        sources[node.name] = frozenset([node.name]) if node.is_source else frozenset().union(*by_input)
        if len(by_input) > 1 and node.key_columns:
            found[node.name] = tuple(tuple(sorted(names)) for names in by_input)
    return found


def check_origins(graph: LogicalGraph, manifest: Manifest) -> None:
    """Check that no step takes the rows of one input for those of another.

    Raises:
        CheckpointError: inputs have changed places.
    """
    for step, now in origins_of(graph).items():
        then = manifest.origins.get(step, now)
        if then != now and sorted(then) == sorted(now):
            before, after = (" and ".join("+".join(names) for names in each) for each in (then, now))
            raise CheckpointError(
                f"step {step!r}: its inputs come from {before} in the checkpoint, in the job from {after}: they "
                "have changed places; write them as they were, or give the step another name if it may begin empty"
            )
