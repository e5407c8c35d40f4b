"""Before which steps rows of several channels are brought into the order of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weir.plan.graph import Exchange, Node
from weir.specs import SourceSpec
from weir.specs.broadcast import BroadcastProcessSpec


def with_time_order(nodes: Sequence[Node], whole: Collection[str] = ()) -> list[Node]:
    """The nodes, of which those say so (`Node.orders_time`) whose rows by key wait until all inputs have come as far.

    These are the steps that ask for it, or go by timers and have inputs that end (`OperatorSpec.needs_time_order`), and
    those before them by whose channels rows come to these: else rows would be out of order before they are there.
    What windows and joins tell is as of its own time, in whatever order their rows came.

    Args:
        nodes: in topological order.
        whole: nothing depends on it.
    """
    by_name = {node.name: node for node in nodes}
    endless: set[str] = set()
    timed: set[str] = set()
    for node in nodes:
        producers = {item.producer for item in node.inputs}
        if (isinstance(node.spec, SourceSpec) and not node.spec.ends) or producers & endless:
            endless.add(node.name)
        if node.spec.makes_event_times or producers & timed:
            timed.add(node.name)
    waiting = [node for node in nodes if _wants_order(node, by_itself=node.name in timed - endless)]
    leading: set[str] = set()
    while waiting:
        node = waiting.pop()
        if node.name in leading:
            continue
        leading.add(node.name)
        before = (by_name[item.producer] for item in node.inputs)
        waiting += [producer for producer in before if _hands_on_rows(producer)]
    return [replace(node, orders_time=True) if node.name in leading and _may_order(node) else node for node in nodes]


def _wants_order(node: Node, *, by_itself: bool) -> bool:
    chosen = node.spec.chosen_time_order
    return chosen if chosen is not None else by_itself and node.spec.needs_time_order


def _hands_on_rows(node: Node) -> bool:
    """Whether what leaves a step is as of the rows that it is made of."""
    return node.spec.window_time is None and (_takes_rows_alike(node) or isinstance(node.spec, SourceSpec))


def _takes_rows_alike(node: Node) -> bool:
    return not node.spec.takes_several_inputs or isinstance(node.spec, BroadcastProcessSpec)


def _may_order(node: Node) -> bool:
    holds_for_rules = isinstance(node.spec, BroadcastProcessSpec) and node.spec.hold_until is not None
    comes_by_key = any(item.exchange is Exchange.HASH for item in node.inputs)
    return comes_by_key and _takes_rows_alike(node) and not holds_for_rules and node.spec.chosen_time_order is not False
