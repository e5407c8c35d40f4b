"""What a step that runs on Spark may say otherwise than elsewhere, however it runs there. docs/runners.md has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.plan.graph import Node
from weir.spark.modes import Mode
from weir.specs import AssignEventTimeSpec, SourceSpec
from weir.specs.window_kinds import Window

#: Told by ``weir plan --runner spark``, and listed in docs/runners.md.
DIFFERENCES: Mapping[str, str] = {
    "order": "where event times that a step gives are out of order, which rows are late hangs on the order of reading",
    "idle": "a source never counts as idle in a stream: while it has no rows, steps wait that also read other ones",
    "untold": "what is left in a window over all time is told at the end of the input, which a stream has not",
}


def difference(nodes: Sequence[Node], node: Node, mode: Mode) -> str:
    """What a step may say otherwise on Spark; empty: nothing that would be known before it runs.

    Args:
        nodes: all steps of the job.
        node: one of them.
        mode: how its sources are read.
    """
    found = None
    if isinstance(node.spec, AssignEventTimeSpec):
        found = "order"
    elif mode == "streaming" and isinstance(node.spec, SourceSpec) and _meets_others(nodes, node):
        found = "idle"
    elif mode == "streaming" and _is_over_all_time(node):
        found = "untold"
    return "" if found is None else DIFFERENCES[found]


def _meets_others(nodes: Sequence[Node], source: Node) -> bool:
    """Whether rows of another source come to a step that rows of this one come to."""
    sources: dict[str, frozenset[str]] = {}
    for node in nodes:
        mine = [sources[item.producer] for item in node.inputs]
        sources[node.name] = frozenset().union(*mine) if mine else frozenset((node.name,))
    return any(source.name in found and len(found) > 1 for found in sources.values())


def _is_over_all_time(node: Node) -> bool:
    window = getattr(node.spec, "window", None)
    return isinstance(window, Window) and window.kind == "global"
