"""What ``KeyedStream.aggregate`` accepts: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``."""

from __future__ import annotations

from dataclasses import dataclass

from weir.specs import AggregateFunction


@dataclass(frozen=True)
class AggregateCall:
    """A function over a column, still without the name of its output column."""

    function: AggregateFunction
    column: str | None = None


def count() -> AggregateCall:
    """Rows of the key so far; int64."""
    return AggregateCall("count")


def sum(column: str) -> AggregateCall:
    """Running sum; int64 over integers, float64 over floats."""
    return AggregateCall("sum", column)


def min(column: str) -> AggregateCall:
    """Smallest value so far; int64 over integers, float64 over floats."""
    return AggregateCall("min", column)


def max(column: str) -> AggregateCall:
    """Largest value so far; int64 over integers, float64 over floats."""
    return AggregateCall("max", column)


def mean(column: str) -> AggregateCall:
    """Mean so far; float64."""
    return AggregateCall("mean", column)
