"""The rules by which a graph that an author wrote becomes the one that runs, in order: all pure, and of one form."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from weir.plan.graph import Node
from weir.plan.rules.partitioning import without_needless_exchanges
from weir.plan.rules.pre_aggregation import with_parts
from weir.plan.rules.projection import without_unread_columns
from weir.plan.rules.pushdown import with_conditions
from weir.plan.rules.sharing import with_shared_parts
from weir.plan.rules.time_order import with_time_order
from weir.plan.rules.versions import with_every_version

#: Nodes in topological order, checked, and the steps whose whole output is looked at from outside; returns nodes alike.
Rule: TypeAlias = Callable[[Sequence[Node], Collection[str]], list[Node]]

#: When a graph is checked: what they do is part of the job's fingerprint.
LOGICAL_RULES: tuple[Rule, ...] = (without_needless_exchanges, with_time_order, with_every_version)
#: When a graph gets its stages, in each process alike: the job's own graph says nothing of them.
PHYSICAL_RULES: tuple[Rule, ...] = (
    with_parts,
    with_conditions,
    with_shared_parts,
    without_unread_columns,
)


def optimized(nodes: Sequence[Node], rules: Sequence[Rule], whole: Collection[str] = ()) -> list[Node]:
    """Return the nodes after each of the rules.

    Args:
        nodes: in topological order, checked.
        rules: `LOGICAL_RULES` or `PHYSICAL_RULES`.
        whole: steps whose whole output is looked at from outside; the processes of a real job have none.
    """
    found = list(nodes)
    for rule in rules:
        found = rule(found, whole)
    return found
