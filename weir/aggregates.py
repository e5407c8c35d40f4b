"""What ``KeyedStream.aggregate`` accepts: ``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from weir.errors import GraphError
from weir.specs import AggregateFunction


@dataclass(frozen=True)
class AggregateCall:
    """A function over a column, still without the name of its output column."""

    function: AggregateFunction
    column: str | None = None
    #: Of windows only: the rows that count.
    condition: pl.Expr | None = None

    def where(self, predicate: pl.Expr) -> AggregateCall:
        """The same over the rows alone for which a boolean expression is true: ``weir.count().where(pl.col("x") > 3)``.

        Raises:
            GraphError: it is no expression, or there is a condition already.
        """
        if not isinstance(predicate, pl.Expr):
            raise GraphError(f"where takes a Polars expression, got {type(predicate).__name__}")
        if self.condition is not None:
            raise GraphError("where was called twice for one aggregate; combine the conditions with &")
        return replace(self, condition=predicate)


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
