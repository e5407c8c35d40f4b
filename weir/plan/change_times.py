"""Whether rows of a changelog are taken away with the event time with which they came; pure.

Windows go by event time, so only then is a row taken back from the window that it is in. The time must be made of the
row's own columns: by its source, or by ``assign_event_time``. A step whose result is updated tells a row that leaves
with the time of what drove it out, of the key's last row in a batch: by that a window would depend on how batches are
cut.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.plan.graph import Node
from weir.rows.changes import is_changelog


def step_with_other_times(node: Node, by_name: Mapping[str, Node]) -> str | None:
    """The name of a step whose changes have other times than their rows; None: no such step is before ``node``.

    Called when a graph is checked, for steps that divide a changelog by event time.
    """
    waiting = [item.producer for item in node.inputs]
    seen: set[str] = set()
    while waiting:
        producer = by_name[waiting.pop()]
        spec = producer.spec
        if producer.name in seen or spec.makes_event_times:
            continue
        seen.add(producer.name)
        if not is_changelog(producer.schema) or spec.takes_back_at_time:
            continue
        if producer.is_source or producer.key_columns:
            return producer.name
        waiting += [item.producer for item in producer.inputs]
    return None
