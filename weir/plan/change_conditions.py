"""What is between a changelog and a step that keeps what it makes of it: conditions, and what makes rows; pure.

Such a step was told of some rows, and is told when they go. With other conditions it would be told of rows that go and
never came, or not of rows that came. Where other columns or functions make its rows, those that it was told of go as
they are made now.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from itertools import zip_longest

from weir.errors import CheckpointError
from weir.plan.graph import LogicalGraph, Node
from weir.plan.ways_back import before_keys, steps_before
from weir.protocol.checkpoints.manifest import Conditions, Manifest
from weir.rows.changes import is_changelog
from weir.specs.canonical import canonical_expression
from weir.specs.stateless import FilterSpec, UnionSpec
from weir.specs.told_form import told_form

_DIGITS = 16


def conditions_of(graph: LogicalGraph) -> dict[str, Conditions]:
    """Return, by step with state that takes a changelog, for each input the conditions that its changes meet.

    They are in the form of ``weir.specs.canonical``, in no order of meaning. An input of plain rows has none.
    """
    return _between(graph, _condition)


def makers_of(graph: LogicalGraph) -> dict[str, Conditions]:
    """Return, by step with state that takes a changelog, for each input what makes its rows of those of the changelog.

    Each of these steps is a digest of its form (``weir.specs.told_form``), and its name, which says nothing about it.
    """
    # As the author wrote them: the planner leaves out what nobody reads.
    return _between(graph.written or graph, _maker)


def _between(graph: LogicalGraph, told: Callable[[Node], str | None]) -> dict[str, Conditions]:
    """What is told of the nodes before each step with state that takes a changelog, by input."""
    by_name = {node.name: node for node in graph.nodes}
    found = {}
    for node in graph.nodes:
        takes = any(is_changelog(by_name[each.producer].schema_of(each.output)) for each in node.inputs)
        if takes and node.key_columns:
            found[node.name] = tuple(_met(each.producer, by_name, told) for each in node.inputs)
    return found


def _met(name: str, by_name: Mapping[str, Node], told: Callable[[Node], str | None]) -> tuple[str, ...]:
    """What is told of the nodes on the way from the step that makes a changelog."""
    before = steps_before(by_name, [name], _changes_before)
    found = {told(node) for node in before if is_changelog(node.schema)}
    return tuple(sorted(each for each in found if each is not None))


def _changes_before(node: Node) -> list[str]:
    return before_keys(node) if is_changelog(node.schema) else []


def _condition(node: Node) -> str | None:
    return canonical_expression(node.spec.predicate) if isinstance(node.spec, FilterSpec) else None


def _maker(node: Node) -> str | None:
    spec = node.spec
    if node.is_source or node.key_columns or spec.keeps_columns or isinstance(spec, UnionSpec):
        return None
    form = json.dumps(told_form(spec), sort_keys=True, separators=(",", ":"))
    return f"{hashlib.sha256(form.encode()).hexdigest()[:_DIGITS]} {node.name}"


def changed_makers(graph: LogicalGraph, manifest: Manifest) -> dict[str, list[str]]:
    """Return, by step with state that takes a changelog, names of those before it that are new, gone or different.

    Of a function its text is known, and not what it calls; older checkpoints say nothing.
    """
    found = {}
    for step, now in makers_of(graph).items():
        then = manifest.makers.get(step, now)
        names: set[str] = set()
        for old, new in zip_longest(then, now, fillvalue=()):
            before, after = _by_form(old), _by_form(new)
            names.update(*(before[form] for form in before.keys() - after.keys()))
            names.update(*(after[form] for form in after.keys() - before.keys()))
        if names:
            found[step] = sorted(names)
    return found


def _by_form(makers: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for form, _, name in (each.partition(" ") for each in makers):
        found.setdefault(form, []).append(name)
    return found


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
