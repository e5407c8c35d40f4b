"""Counts of rows that a job on Spark puts aside: those that Spark has seen, and those within tasks.

What a sink asks for is made for it alone, from the sources on. So whatever several sinks ask for is made several times,
and counts are kept of each sink: those of the sink that has come farthest are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: By step, reasons and how many rows were put aside for each.
Counts: TypeAlias = dict[str, dict[str, int]]
#: A property of Spark's jobs, which tasks see: the sink for which they run.
SINK_PROPERTY = "weir.sink"
#: Different reasons that are kept of a step; the rows of further ones count for its first.
_REASONS_MAX = 100


def count_bad(told: Counts, name: str, seen: Mapping[str, Any]) -> None:
    """Add what Spark has seen of the bad rows of a source, or step: ``rows`` and, of one of them, the ``reason``."""
    if seen["rows"]:
        # Of a stream the reason stays the first one: each trigger may have another text.
        reasons = told.setdefault(name, {seen["reason"]: 0})
        reasons[next(iter(reasons))] += seen["rows"]


def of_farthest(told: Iterable[Mapping[str, Mapping[str, int]]]) -> Counts:
    """Return of each step what was told for the sink that has come farthest; ``told``: for each sink."""
    found: Counts = {}
    for steps in told:
        for step, reasons in steps.items():
            if sum(reasons.values()) > sum(found.get(step, {}).values()):
                found[step] = dict(reasons)
    return found


class Teller:
    """Counts rows that were put aside, from tasks to the driver.

    Args:
        aside: what :func:`accumulator` returned.
    """

    def __init__(self, aside: Any) -> None:
        self._aside = aside

    def __call__(self, step: str, reason: str, rows: int) -> None:
        """Count rows of a step, in the task that put them aside."""
        from pyspark import TaskContext

        context = TaskContext.get()
        sink = "" if context is None else context.getLocalProperty(SINK_PROPERTY) or ""
        self._aside.add({sink: {step: {reason: rows}}})


def accumulator(session: SparkSession) -> Any:
    """What tasks have put aside so far, by sink."""
    from pyspark.accumulators import AccumulatorParam

    class Sum(AccumulatorParam[Any]):
        def zero(self, value: Any) -> Any:
            return {}

        def addInPlace(self, value1: Any, value2: Any) -> Any:
            for sink, steps in value2.items():
                for step, reasons in steps.items():
                    known = value1.setdefault(sink, {}).setdefault(step, {})
                    for reason, rows in reasons.items():
                        if len(known) >= _REASONS_MAX and reason not in known:
                            # A stream may have others in each trigger.
                            reason = next(iter(known))
                        known[reason] = known.get(reason, 0) + rows
            return value1

    return session.sparkContext.accumulator({}, Sum())


def of_tasks(aside: Any) -> Counts:
    """Return what tasks have put aside so far; ``aside``: what :func:`accumulator` returned."""
    # Copies: another thread adds to them.
    steps = [[*steps.items()] for steps in [*aside.value.values()]]
    return of_farthest({step: dict(reasons) for step, reasons in each} for each in steps)
