"""Steps before which rows of several channels are brought into the order of time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    made, ordering = coming_together(nodes, wanting)
    return [replace(node, orders_time=True) if node.name in ordering else node for node in made]


def coming_together(nodes: Sequence[Node], wanting: Sequence[Node]) -> tuple[Sequence[Node], frozenset[str]]:
    """The nodes, and the names of those where rows come together by key for some: themselves, or ones before.

    A step with several inputs takes rows as they come. One that stands behind it in its stage gets an exchange of its
    own, which moves no row, and begins a stage.

    Args:
        nodes: in topological order.
        wanting: those of them for which rows are to come in order, in that order.
    """
    by_name = {node.name: node for node in nodes}
    found, parted = set[str](), set[str]()
    for node in wanting:
        firsts = _firsts(node, by_name, parted)
        if all(each.spec.may_order_time for each in firsts):
            found.update(each.name for each in firsts)
        elif node.name not in {each.name for each in firsts} and len(node.key_columns) == 1:
            parted.add(node.name)
            found.add(node.name)
    return [_parted(node) if node.name in parted else node for node in nodes], frozenset(found)


def _firsts(node: Node, by_name: Mapping[str, Node], parted: Collection[str]) -> list[Node]:
    """The steps to which rows come by key from other stages, on their way to this one."""
    waiting, found = [node], list[Node]()
    while waiting:
        node = waiting.pop()
        if node.name in parted or any(item.exchange is Exchange.HASH for item in node.inputs):
            found.append(node)
        else:
            waiting += [by_name[item.producer] for item in node.inputs]
    return found


def _parted(node: Node) -> Node:
    """A step that is chained to the one before it, with an exchange by its key between them."""
    (item,) = node.inputs
    (columns,) = node.key_columns
    return replace(node, inputs=(replace(item, exchange=Exchange.HASH, key_columns=tuple(columns)),))


def _wants_order(node: Node, *, by_itself: bool) -> bool:
    chosen = node.spec.chosen_time_order
    return chosen if chosen is not None else by_itself and node.spec.needs_time_order
