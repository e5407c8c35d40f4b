"""What a step that runs on Spark may say otherwise than elsewhere; docs/runners.md lists it, and a plan tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.graph import Node
from weir.spark.modes import Mode
from weir.spark.streams import has_state
from weir.specs import AssignEventTimeSpec, UnionSpec, WindowAggregateSpec
from weir.specs.joins import JoinSpec

#: What may differ, and when: told by a step of a plan.
REMARKS: Mapping[str, str] = {
    "times": "it gives rows new times: where these are further out of order than its watermark allows, which rows are "
    "late hangs on the order in which Spark's tasks read",
    "quiet": "a source without rows holds the others back for good, where elsewhere it counts as idle after "
    "idle_timeout; of several sources the one that is behind counts, also for late rows",
    "global": "what is left in a window over all time is told at the end of the input, which a stream has not",
}


def remark(nodes: Sequence[Node], node: Node, mode: Mode) -> str:
    """Return what a step may say otherwise on Spark; "": nothing is known that it may.

    Called by ``weir.spark.translation`` for steps that are not refused.

    Args:
        nodes: all steps of the job, each after those that it reads.
        node: one of them.
        mode: how its sources are read.
    """
    spec = node.spec
    if isinstance(spec, AssignEventTimeSpec):
        return REMARKS["times"] if _is_read_by_state(nodes, node) else ""
    if mode != "streaming":
        return ""
    if isinstance(spec, WindowAggregateSpec) and spec.window.kind == "global":
        return REMARKS["global"]
    if isinstance(spec, JoinSpec):
        return REMARKS["quiet"]
    return REMARKS["quiet"] if isinstance(spec, UnionSpec) and _is_read_by_state(nodes, node) else ""


def _is_read_by_state(nodes: Sequence[Node], node: Node) -> bool:
    """Return whether a step with state comes somewhere after a step."""
    after = {node.name}
    for each in nodes:
        if any(item.producer in after for item in each.inputs):
            if has_state(each):
                return True
            after.add(each.name)
    return False
