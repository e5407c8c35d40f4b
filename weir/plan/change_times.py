"""What the event times of a changelog's rows are good for; pure.

Windows go by event time, so a row is taken back from the window that it is in only if it is taken away with the event
time with which it came. The time must be made of the row's own columns: by its source, or by ``assign_event_time``. A
step whose result is updated tells a row that leaves with the time of what drove it out.

A join as of a time goes by the time at which a version came.
"""

from __future__ import annotations

from collections.abc import Mapping

from weir.plan.graph import Node
from weir.plan.ways_back import producers, steps_before
from weir.rows.changes import is_changelog
from weir.specs.joins import ChangeJoinSpec


def step_with_other_times(node: Node, by_name: Mapping[str, Node]) -> str | None:
    """The name of a step whose changes have other times than their rows; None: no such step is before ``node``.

    Called when a graph is checked, for steps that divide a changelog by event time.
    """
    for producer in steps_before(by_name, producers(node), _keeping_times):
        if not _has_row_times(producer) and (producer.is_source or producer.key_columns):
            return producer.name
    return None


def _keeping_times(node: Node) -> list[str]:
    return [] if _has_row_times(node) else producers(node)


def _has_row_times(node: Node) -> bool:
    """Return whether changes that leave a step have the times of their rows, whatever is before it."""
    spec = node.spec
    return spec.makes_event_times or spec.takes_back_at_time or not is_changelog(node.schema)


def join_before_versions(node: Node, by_name: Mapping[str, Node]) -> str | None:
    """The name of a join that is updated, before an input whose versions count by their times; None: there is none.

    What such a join tells hangs on which of its inputs came first: a version may never have been, or with other times.
    """
    minded = [item.producer for at, item in enumerate(node.inputs) if node.spec.minds_version_times(at)]
    before = steps_before(by_name, minded)
    return next((each.name for each in before if isinstance(each.spec, ChangeJoinSpec)), None)
