"""Which windows and joins of a job go by the time at which rows are read: reading them again gives other results."""

from __future__ import annotations

from weir.plan.graph import Node, PhysicalGraph
from weir.plan.ways_back import producers, steps_before


def sources_by_reading_time(graph: PhysicalGraph, node: Node) -> list[str]:
    """Sources without event time whose rows a step divides or pairs by event time, in the order of the job.

    Empty: there are none, or the step goes by no event time.
    """
    if not node.spec.goes_by_event_time:
        return []
    nodes = {each.name: each for stage in graph.stages for each in stage.nodes}
    before = steps_before(nodes, producers(node), _handing_on)
    found = {each.name for each in before if each.is_source and not each.spec.makes_event_times}
    return [name for name in nodes if name in found]


def _handing_on(node: Node) -> list[str]:
    if node.spec.makes_event_times:
        return []
    return [item.producer for index, item in enumerate(node.inputs) if node.spec.hands_on_times(index)]
