"""The steps before others, against the way of rows; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from weir.plan.graph import Node


def producers(node: Node) -> list[str]:
    """Return the names of the steps that a step's rows come from."""
    return [item.producer for item in node.inputs]


def before_keys(node: Node) -> list[str]:
    """Return the same, but nothing of a step that keeps state by key: ways end at it."""
    return [] if node.key_columns else producers(node)


def steps_before(
    by_name: Mapping[str, Node],
    names: Iterable[str],
    onward: Callable[[Node], Iterable[str]] = producers,
) -> Iterator[Node]:
    """Yield steps and all that are before them, each once.

    Args:
        by_name: all steps.
        names: where to begin; these are yielded, too.
        onward: names of the steps to go on to from one; nothing where its way is to end.
    """
    waiting = list(names)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            node = by_name[name]
            yield node
            waiting += onward(node)
