"""Steps before which rows of several channels are brought into the order of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weir.plan.graph import Exchange, Node


def with_time_order(nodes: Sequence[Node], whole: Collection[str] = ()) -> list[Node]:
    """The nodes, of which those say so (`Node.orders_time`) whose rows by key wait until all inputs have come as far.

    These are the steps that ask for it, or go by timers and have inputs that end (`OperatorSpec.needs_time_order`); of
    steps whose rows were brought together by key for a step before, that one.

    Args:
        nodes: in topological order.
        whole: nothing depends on it.
    """
    endless: set[str] = set()
    timed: set[str] = set()
    for node in nodes:
        producers = {item.producer for item in node.inputs}
        if (node.source is not None and not node.source.ends) or producers & endless:
            endless.add(node.name)
        if node.spec.makes_event_times or producers & timed:
            timed.add(node.name)
    wanting = [node for node in nodes if _wants_order(node, by_itself=node.name in timed - endless)]
    ordering = coming_together(nodes, wanting)
    return [replace(node, orders_time=True) if node.name in ordering else node for node in nodes]


def coming_together(nodes: Sequence[Node], wanting: Sequence[Node]) -> frozenset[str]:
    """The names of the steps where rows come together by key for these: themselves, or ones before in their stage."""
    by_name = {node.name: node for node in nodes}
    waiting, found = list(wanting), set[str]()
    while waiting:
        node = waiting.pop()
        if any(item.exchange is Exchange.HASH for item in node.inputs):
            if node.spec.may_order_time:
                found.add(node.name)
        else:
            waiting += [by_name[item.producer] for item in node.inputs]
    return frozenset(found)


def _wants_order(node: Node, *, by_itself: bool) -> bool:
    chosen = node.spec.chosen_time_order
    return chosen if chosen is not None else by_itself and node.spec.needs_time_order
