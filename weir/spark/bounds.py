"""How far the watermark stays behind the rows of a step, which says before which rows timers are due."""

from __future__ import annotations

from collections.abc import Mapping

from weir.config import ControlPlaneConfig
from weir.plan.graph import Node
from weir.specs import AssignEventTimeSpec, SourceSpec, WindowAggregateSpec


def bound_ms(nodes: Mapping[str, Node], name: str) -> int:
    """The bound of the rows of a step, ms; of several sources the largest.

    Results of windows leave as of their own time, when the window is complete.
    """
    node = nodes[name]
    if isinstance(node.spec, SourceSpec | AssignEventTimeSpec):
        return own_bound_ms(node)
    if isinstance(node.spec, WindowAggregateSpec):
        return 0
    return max((bound_ms(nodes, item.producer) for item in node.inputs), default=0)


def own_bound_ms(node: Node) -> int:
    """The bound of a source, or of a step that assigns event times, ms."""
    known = node.watermark.out_of_orderness_ms
    return int(ControlPlaneConfig().out_of_order_grace_period * 1000) if known is None else known
