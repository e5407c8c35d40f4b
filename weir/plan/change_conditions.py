"""The conditions between a changelog and a step that keeps what it makes of it; pure.

Such a step was told of some rows, and is told when they go. With other conditions it would be told of rows that go and
never came, or not of rows that came.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph, Node
from weir.protocol.checkpoints.manifest import Conditions, Manifest
from weir.rows.changes import is_changelog
from weir.specs.canonical import canonical_expression
from weir.specs.stateless import FilterSpec


def conditions_of(graph: LogicalGraph) -> dict[str, Conditions]:
    """Return, by step with state that takes a changelog, for each input the conditions that its changes meet.

    They are in the form of ``weir.specs.canonical``, in no order of meaning. An input of plain rows has none.
    """
    by_name = {node.name: node for node in graph.nodes}
    found = {}
    for node in graph.nodes:
        takes = any(is_changelog(by_name[each.producer].schema_of(each.output)) for each in node.inputs)
        if takes and node.key_columns:
            found[node.name] = tuple(_met(each.producer, by_name) for each in node.inputs)
    return found


def _met(name: str, by_name: Mapping[str, Node]) -> tuple[str, ...]:
    """The conditions on the way from the step that makes a changelog."""
    found = set()
    waiting = [name]
    while waiting:
        node = by_name[waiting.pop()]
        if not is_changelog(node.schema):
            continue
        if isinstance(node.spec, FilterSpec):
            found.add(canonical_expression(node.spec.predicate))
        if not node.key_columns:
            waiting += [each.producer for each in node.inputs]
    return tuple(sorted(found))


def check_conditions(graph: LogicalGraph, manifest: Manifest) -> None:
    """Check that changes come to each step that keeps what it made of them as they came when it was told of their rows.

    Raises:
        CheckpointError: they meet other conditions.
    """
    for step, now in conditions_of(graph).items():
        then = manifest.conditions.get(step, now)
        if then != now:
            before, after = (_shown(each) for each in (then, now))
            raise CheckpointError(
                f"step {step!r}: its input is a changelog, whose rows meet {before} in the checkpoint, and {after} in "
                "the job: rows would be taken away that never came, or stay for ever; write the conditions as they "
                "were, put others behind the step, or give this step and the one that makes the changelog other names "
                "if they may begin empty"
            )


def _shown(conditions: Conditions) -> str:
    found = dict.fromkeys(each for met in conditions for each in met)
    return " and ".join(found) if found else "no condition"
