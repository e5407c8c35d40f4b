"""Which windows and joins of a job go by the time at which rows are read: reading them again gives other results."""

from __future__ import annotations

from weir.plan.graph import Node, PhysicalGraph


def sources_by_reading_time(graph: PhysicalGraph, node: Node) -> list[str]:
    """Sources without event time whose rows a step divides or pairs by event time, in the order of the job.

    Empty: there are none, or the step goes by no event time.
    """
    if not node.spec.goes_by_event_time:
        return []
    nodes = {each.name: each for stage in graph.stages for each in stage.nodes}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [item.producer for item in node.inputs]
    while waiting:
        name = waiting.pop()
        before = nodes[name]
        if name in seen or before.spec.makes_event_times:
            continue
        seen.add(name)
        if before.is_source:
            found.add(name)
        waiting += [
            item.producer for index, item in enumerate(before.inputs) if before.spec.hands_on_times(index)
        ]
    return [name for name in nodes if name in found]
