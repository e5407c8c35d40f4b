"""Which windows and joins of a job go by the time at which rows are read: reading them again gives other results."""

from __future__ import annotations

from weir.plan.graph import Exchange, Node, PhysicalGraph
from weir.specs import AssignEventTimeSpec, JoinSpec, SourceSpec
from weir.specs.joins import AsOfJoinSpec
from weir.specs.multi_joins import MultiJoinSpec
from weir.specs.window_kinds import Window
from weir.specs.window_parts import WindowPartSpec


def sources_by_reading_time(graph: PhysicalGraph, node: Node) -> list[str]:
    """Sources without event time whose rows a step divides or pairs by event time, in the order of the job.

    Empty: there are none, or the step goes by no event time.
    """
    if not _goes_by_event_time(node):
        return []
    nodes = {each.name: each for stage in graph.stages for each in stage.nodes}
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [item.producer for item in node.inputs]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        before = nodes[name]
        spec = before.spec
        if isinstance(spec, SourceSpec):
            if spec.event_time_column is None and spec.event_time_expression is None:
                found.add(name)
        elif not isinstance(spec, AssignEventTimeSpec):
            # Rows after an as-of join have the times of its first input, and those after a step with rules their own.
            inputs = before.inputs[:1] if isinstance(spec, AsOfJoinSpec) else before.inputs
            waiting += [item.producer for item in inputs if item.exchange is not Exchange.BROADCAST]
    return [name for name in nodes if name in found]


def _goes_by_event_time(node: Node) -> bool:
    spec = node.spec
    window = getattr(spec, "window", None)
    if isinstance(window, Window):
        is_step_before = isinstance(spec, WindowPartSpec)
        return window.time == "event" and window.kind != "global" and not is_step_before
    if isinstance(spec, MultiJoinSpec):
        return spec.window_ms is not None or spec.span_ms is not None
    return isinstance(spec, JoinSpec) and (spec.bounds is not None or isinstance(spec, AsOfJoinSpec))
