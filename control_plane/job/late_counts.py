"""How many rows the steps of a job have dropped because they came too late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from weir.rpc import control_pb2


def late_rows(
    reports: Iterable[control_pb2.SubtaskReport], before: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Count them by step, of those that have dropped any.

    Args:
        reports: of subtasks, each with what it has counted from the start of the job on.
        before: what subtasks counted that are gone.
    """
    found = Counter[str](before or {})
    for report in reports:
        for late in report.late:
            found[late.step] += late.rows
    return dict(sorted(found.items()))


def late_text(rows_late: Mapping[str, int]) -> str:
    """What is said of them in a line; empty if there are none."""
    return "".join(f", {rows:,} late at {step}" for step, rows in rows_late.items())
