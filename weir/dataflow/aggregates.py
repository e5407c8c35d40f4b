"""The functions that ``aggregate`` of keyed streams and of windows takes.

``aggregate("totals", n=weir.count(), bytes=weir.sum("size"))``. Each function returns a description of itself and
computes nothing. Its rows are those of a key so far, or those of a window; null values of its column do not count.
``renamed_from=`` says what its column was called in the checkpoint that the job starts from: its state goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from weir.errors import GraphError
from weir.plan.step_names import renamed_column
from weir.specs.aggregate_functions import LARGEST_MAX, AggregateFunction
from weir.specs.expression_checks import check_is_name
from weir.specs.keyed import Aggregate
from weir.specs.windows import WindowAggregate

_Aggregate = TypeVar("_Aggregate", Aggregate, WindowAggregate)


@dataclass(frozen=True)
class AggregateCall:
    """A function over a column, still without the name of its output column."""

    function: AggregateFunction
    column: str | None = None
    #: The rows that count.
    condition: pl.Expr | None = None
    #: Numbers that the function needs.
    parameters: tuple[float, ...] = ()
    #: What its column was called before.
    renamed_from: str | None = None

    def __post_init__(self) -> None:
        if self.renamed_from is not None and not isinstance(self.renamed_from, str):
            raise GraphError(
                f"weir.{self.function}: renamed_from is {self.renamed_from!r}; it is the name that the column had"
            )
        if self.column is not None or self.function != "count":
            check_is_name(f"weir.{self.function}", self.column)

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


def count(column: str | None = None, *, renamed_from: str | None = None) -> AggregateCall:
    """Number of rows, or of the values of ``column`` that are not null; int64."""
    return AggregateCall("count", column, renamed_from=renamed_from)


def sum(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """Sum of a column; int64 over integers, float64 over floats, over decimals a decimal of 38 digits."""
    return AggregateCall("sum", column, renamed_from=renamed_from)


def min(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """Smallest value of a column: int64 over integers, float64 over floats, else of the column's type.

    The column has numbers, decimals, dates, times, durations or booleans; in windows it may have texts or bytes too.
    """
    return AggregateCall("min", column, renamed_from=renamed_from)


def max(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """Largest value of a column: int64 over integers, float64 over floats, else of the column's type.

    The column has numbers, decimals, dates, times, durations or booleans; in windows it may have texts or bytes too.
    """
    return AggregateCall("max", column, renamed_from=renamed_from)


def mean(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """Mean of a column; float64, over decimals a decimal with six digits after the point at least."""
    return AggregateCall("mean", column, renamed_from=renamed_from)


def variance(column: str, *, ddof: int = 1, renamed_from: str | None = None) -> AggregateCall:
    """Variance; float64. Null for ``ddof`` values or fewer.

    Args:
        column: of numbers.
        ddof: what the number of values is lessened by in the divisor: 1 for a sample, 0 for the whole population.
        renamed_from: what its column was called.

    Raises:
        GraphError: ``ddof`` is neither.
    """
    return AggregateCall("variance", column, parameters=(_checked_ddof(ddof),), renamed_from=renamed_from)


def stddev(column: str, *, ddof: int = 1, renamed_from: str | None = None) -> AggregateCall:
    """Standard deviation, the square root of :func:`variance`; float64.

    Raises:
        GraphError: ``ddof`` is neither 0 nor 1.
    """
    return AggregateCall("stddev", column, parameters=(_checked_ddof(ddof),), renamed_from=renamed_from)


def first(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """The value of the row with the lowest event time that is not null; of equal times that of the row that came first.

    Of numbers, booleans, dates and times; of windows also of texts and bytes.
    """
    return AggregateCall("first", column, renamed_from=renamed_from)


def last(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """The value of the row with the highest event time that is not null; of equal times that of the row that came last.

    Of numbers, booleans, dates and times; of windows also of texts and bytes.
    """
    return AggregateCall("last", column, renamed_from=renamed_from)


def largest(column: str, n: int, *, renamed_from: str | None = None) -> AggregateCall:
    """The largest ``n`` values, descending; a list of int64 or float64. NaN does not count.

    Raises:
        GraphError: ``n`` is not from 1 to 100.
    """
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= LARGEST_MAX:
        raise GraphError(f"weir.largest: n is {n!r}; it must be a whole number from 1 to {LARGEST_MAX}")
    return AggregateCall("largest", column, parameters=(n,), renamed_from=renamed_from)


def count_distinct(column: str, *, renamed_from: str | None = None) -> AggregateCall:
    """Number of different values; int64. Exact: each value is kept, once for all such aggregates of the column."""
    return AggregateCall("count_distinct", column, renamed_from=renamed_from)


def approx_distinct(column: str, *, error: float = 0.02, renamed_from: str | None = None) -> AggregateCall:
    """About how many different values there are; int64. However many, a key has some kB at most (HyperLogLog).

    Args:
        column: of numbers, text, bytes, booleans, dates or times.
        error: standard error of the result, relative; 0.006 to 0.25. The memory grows with its inverse square.
        renamed_from: what its column was called.

    Raises:
        GraphError: the error is out of range.
    """
    return AggregateCall(
        "approx_distinct",
        column,
        parameters=(_checked_share("approx_distinct", "error", error, 0.006, 0.25),),
        renamed_from=renamed_from,
    )


def quantile(column: str, q: float, *, error: float = 0.01, renamed_from: str | None = None) -> AggregateCall:
    """About the value below which a share ``q`` of the values lies; float64. Of windows and changelogs (DDSketch).

    The result is at most ``error``, relative, from the value at place ``floor(q * (n - 1))`` of the sorted ones, from
    0 on. NaN and infinite values do not count. Quantiles of the same column, error and condition share their state.

    Args:
        column: of numbers.
        q: 0 to 1; 0.5 is the median.
        error: 0.0005 to 0.2; entries of a key grow with its inverse.
        renamed_from: what its column was called.

    Raises:
        GraphError: a number is out of range.
    """
    shares = (
        _checked_share("quantile", "q", q, 0, 1),
        _checked_share("quantile", "error", error, 0.0005, 0.2),
    )
    return AggregateCall("quantile", column, parameters=shares, renamed_from=renamed_from)


def percentile(
    column: str, q: float, *, interpolated: bool = True, renamed_from: str | None = None
) -> AggregateCall:
    """The value below which a share ``q`` of the values lies, exactly. Over changelogs only, where all values are kept.

    NaN does not count. The state of a key has each different value, as that of ``min`` and ``max`` over a changelog;
    :func:`quantile` has a bounded one.

    Args:
        column: of numbers; of dates and times, too, if nothing is interpolated.
        q: 0 to 1; 0.5 is the median.
        interpolated: between the two values that place ``q * (n - 1)`` lies between, as PERCENTILE_CONT; float64.
            False: the first value that at least a share ``q`` of the values does not exceed, as PERCENTILE_DISC.
        renamed_from: what its column was called.

    Raises:
        GraphError: ``q`` is out of range.
    """
    share = _checked_share("percentile", "q", q, 0, 1)
    function: AggregateFunction = "percentile_cont" if interpolated else "percentile_disc"
    return AggregateCall(function, column, parameters=(share,), renamed_from=renamed_from)


def listed_aggregates(
    step: str | None, kind: type[_Aggregate], aggregates: Mapping[str, AggregateCall]
) -> tuple[_Aggregate, ...]:
    """Return the aggregates of a step as specs of one kind, in order; called where ``aggregate`` is.

    Raises:
        GraphError: what was given for a column is no aggregate.
    """
    for output, call in aggregates.items():
        if not isinstance(call, AggregateCall):
            raise GraphError(
                f"step {step!r}: {output} needs an aggregate such as weir.sum('x'), got {type(call).__name__}"
            )
    return tuple(
        kind(
            renamed_column(output, call.renamed_from),
            call.function,
            call.column,
            call.condition,
            call.parameters,
        )
        for output, call in aggregates.items()
    )


def _checked_share(function: str, name: str, value: object, least: float, most: float) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return float(value)
    raise GraphError(f"weir.{function}: {name} is {value!r}; it must be a number from {least} to {most}")


def _checked_ddof(ddof: object) -> int:
    if isinstance(ddof, int) and not isinstance(ddof, bool) and ddof in (0, 1):
        return ddof
    raise GraphError(f"ddof is {ddof!r}; it is 1 (of a sample) or 0 (of the whole population)")
