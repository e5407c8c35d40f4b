"""Steps that tell every version of their rows, because a step after them minds which versions there were.

A changelog tells what a batch has changed: of two versions of a key in a batch the later one. The table is the same
whichever way rows are cut into batches, and so is what is made of a table. But a join as of a time, a window or a
process would say something else of other versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.plan.graph import Node
from weir.plan.rules.time_order import coming_together
from weir.plan.ways_back import steps_before
from weir.specs import OperatorSpec
from weir.specs.keyed import VersionedSpec


def with_every_version(nodes: Sequence[Node], whole: Collection[str] = ()) -> list[Node]:
    """The nodes, of which those tell every version (`VersionedSpec`) that are before one that minds them.

    A join as of a time minds their times, too: the version at a time must be made of the rows up to that time. So rows
    that come together by key in the steps before it do so in the order of their times (`Node.sorts_times`), whichever
    split or subtask they come from. Fingerprints do not say any of that: the steps after these do.

    Args:
        nodes: in topological order.
        whole: nothing depends on it.
    """
    telling = _before(nodes, lambda spec, index, schema: spec.minds_versions(index, schema))
    timed = _before(nodes, lambda spec, index, schema: spec.minds_version_times(index))
    versioned = [node for node in nodes if isinstance(node.spec, VersionedSpec) and node.name in telling]
    made, sorting = coming_together(nodes, [node for node in versioned if node.name in timed])
    found = []
    for node in made:
        if node.name in telling and isinstance(node.spec, VersionedSpec):
            node = replace(node, spec=replace(node.spec, every_version=True))
        if node.name in sorting:
            node = replace(node, orders_time=True, sorts_times=True)
        found.append(node)
    return found


def _before(nodes: Sequence[Node], minds: Callable[[OperatorSpec, int, pa.Schema], bool]) -> frozenset[str]:
    """The names of all steps before an input of which something is minded: of a step, an index and user columns."""
    by_name = {node.name: node for node in nodes}
    minded = [
        item.producer
        for node in nodes
        for index, item in enumerate(node.inputs)
        if minds(node.spec, index, by_name[item.producer].schema_of(item.output))
    ]
    return frozenset(node.name for node in steps_before(by_name, minded))
