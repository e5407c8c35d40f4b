"""Aggregate functions of SQL as those of the dataflow API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

import polars as pl
from sqlglot import exp

from weir.dataflow import aggregates as calls
from weir.dataflow.aggregates import AggregateCall
from weir.spelling import did_you_mean
from weir.sql.errors import Unplaced, name_of
from weir.sql.types import Typed, type_words

_ONE: dict[str, Callable[[str], AggregateCall]] = {
    "COUNT": calls.count,
    "SUM": calls.sum,
    "AVG": calls.mean,
    "MIN": calls.min,
    "MAX": calls.max,
    "STDDEV": calls.stddev,
    "STDDEV_SAMP": calls.stddev,
    "STDDEV_POP": lambda name: calls.stddev(name, ddof=0),
    "VARIANCE": calls.variance,
    "VAR_SAMP": calls.variance,
    "VARIANCE_POP": lambda name: calls.variance(name, ddof=0),
    "VAR_POP": lambda name: calls.variance(name, ddof=0),
    "FIRST": calls.first,
    "LAST": calls.last,
    "FIRST_VALUE": calls.first,
    "LAST_VALUE": calls.last,
    "APPROX_DISTINCT": calls.approx_distinct,
}
#: Those that take rows back, without a window.
RETRACTABLE = (
    "COUNT",
    "SUM",
    "AVG",
    "MIN",
    "MAX",
    "APPROX_QUANTILE",
    "PERCENTILE_CONT",
    "PERCENTILE_DISC",
    "MEDIAN",
)
#: Those of values of any type.
_OF_ANY = ("COUNT", "FIRST", "LAST", "FIRST_VALUE", "LAST_VALUE", "APPROX_DISTINCT")
#: Those of numbers alone.
_OF_NUMBERS = frozenset(_ONE) - {*_OF_ANY, "MIN", "MAX"}
#: Those that keep all values, which windows do not.
_PERCENTILES = ("PERCENTILE_CONT", "PERCENTILE_DISC", "MEDIAN")


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of a query.

    Attributes:
        node: in the text, with FILTER.
        function: its name.
        argument: what it is of; None: of rows.
        filter: condition of the rows that count.
        is_distinct: of different values.
        share: of a quantile or a percentile.
    """

    node: exp.Expr
    function: str
    argument: exp.Expr | None
    filter: exp.Expr | None
    is_distinct: bool = False
    share: float | None = None

    def call(self, column: str | None, predicate: pl.Expr | None) -> AggregateCall:
        """The function over a column of a stream.

        Raises:
            GraphError: it cannot be computed.
        """
        if self.share is not None and self.function in _PERCENTILES:
            made = calls.percentile(str(column), self.share, interpolated=self.function != "PERCENTILE_DISC")
        elif self.share is not None:
            made = calls.quantile(str(column), self.share)
        elif self.is_distinct and self.function == "COUNT":
            made = calls.count_distinct(str(column))
        elif column is None:
            made = calls.count()
        else:
            made = _ONE[self.function](column)
        return made if predicate is None else made.where(predicate)


def aggregates_in(nodes: list[exp.Expr]) -> list[Aggregate]:
    """The different aggregates of some expressions, those of queries within them left out.

    Raises:
        Unplaced: one is not there, or is in another one.
    """
    found: dict[str, Aggregate] = {}
    for root in nodes:
        for node in root.walk(
            prune=lambda each: isinstance(
                each, (exp.Filter, exp.AggFunc, exp.Query, exp.WithinGroup, exp.Window)
            )
        ):
            if isinstance(node, (exp.Filter, exp.WithinGroup)) or is_aggregate(node):
                found.setdefault(node.sql(), _aggregate(node))
    return list(found.values())


def is_aggregate(node: exp.Expr) -> bool:
    """Whether it is an aggregate by its name."""
    return isinstance(node, exp.AggFunc) and not isinstance(node, (exp.RowNumber, exp.Lag, exp.Lead))


def _aggregate(node: exp.Expr) -> Aggregate:
    inner, predicate = node, None
    if isinstance(node, exp.Filter):
        inner, predicate = node.this, node.expression.this
    if isinstance(inner, (exp.WithinGroup, *_PERCENTILE_CLASSES)):
        return _percentile(node, inner, predicate)
    if not isinstance(inner, exp.AggFunc):
        raise Unplaced("FILTER comes after an aggregate, such as COUNT(*) FILTER (WHERE ...)", node)
    argument = inner.this
    if isinstance(inner, exp.CountIf):
        condition = (
            argument if predicate is None else exp.And(this=argument.copy(), expression=predicate.copy())
        )
        return Aggregate(node, "COUNT", None, condition)
    share = None
    if isinstance(inner, (exp.Quantile, exp.ApproxQuantile)):
        share = _share(inner)
    if isinstance(argument, exp.Expr) and any(is_aggregate(each) for each in argument.walk()):
        raise Unplaced("an aggregate within an aggregate; make a view of the inner one", inner)
    is_distinct = isinstance(argument, exp.Distinct)
    if is_distinct:
        if len(argument.expressions) != 1:
            raise Unplaced("DISTINCT in an aggregate takes one value", inner)
        argument = argument.expressions[0]
    name = inner.sql_name().upper()
    if share is None and name not in _ONE:
        raise Unplaced(f"there is no aggregate {name_of(inner)}{did_you_mean(name_of(inner), _ONE)}", inner)
    if is_distinct and name not in ("COUNT", "MIN", "MAX"):
        raise Unplaced(f"{name}(DISTINCT ...) is not there; aggregate a view that is SELECT DISTINCT", inner)
    if inner.args.get("expressions"):
        raise Unplaced(
            f"{name} takes one value; for the larger or smaller of several write GREATEST, LEAST", inner
        )
    if isinstance(argument, exp.Star) or argument is None:
        if name != "COUNT" or is_distinct:
            raise Unplaced(f"{name} takes a value", inner)
        argument = None
    return Aggregate(node, name, argument, predicate, is_distinct, share)


#: Functions of sqlglot that are percentiles.
_PERCENTILE_CLASSES = (exp.PercentileCont, exp.PercentileDisc, exp.Median)


def _percentile(node: exp.Expr, inner: exp.Expr, predicate: exp.Expr | None) -> Aggregate:
    """``PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY x)``, ``PERCENTILE_CONT(x, 0.9)`` and ``MEDIAN(x)``."""
    function = inner.this if isinstance(inner, exp.WithinGroup) else inner
    if not isinstance(function, _PERCENTILE_CLASSES):
        raise Unplaced("WITHIN GROUP comes after PERCENTILE_CONT or PERCENTILE_DISC", inner)
    name = function.sql_name().upper()
    if isinstance(function, exp.Median):
        if function is not inner:
            raise Unplaced("MEDIAN takes no WITHIN GROUP", inner)
        return _of_values(Aggregate(node, name, function.this, predicate, share=0.5))
    if function is inner:
        if function.expression is None:
            raise Unplaced(f"{name} is {name}(0.5) WITHIN GROUP (ORDER BY x)", inner)
        return _of_values(
            Aggregate(node, name, function.this, predicate, share=_checked(function.expression))
        )
    order = inner.expression.expressions if isinstance(inner.expression, exp.Order) else []
    if len(order) != 1:
        raise Unplaced(f"{name} goes by one value: WITHIN GROUP (ORDER BY x)", inner)
    share = _checked(function.this)
    if order[0].args.get("desc"):
        if name == "PERCENTILE_DISC":
            raise Unplaced("PERCENTILE_DISC by a descending order is not there; take 1 - the share", order[0])
        share = float(1 - Decimal(repr(share)))
    return _of_values(Aggregate(node, name, order[0].this, predicate, share=share))


def _of_values(made: Aggregate) -> Aggregate:
    argument = made.argument
    if argument is None or isinstance(argument, (exp.Star, exp.Distinct)):
        raise Unplaced(f"{made.function} takes a value", made.node)
    if any(is_aggregate(each) for each in argument.walk()):
        raise Unplaced("an aggregate within an aggregate; make a view of the inner one", argument)
    return made


def _checked(node: exp.Expr | None) -> float:
    """The share of a percentile.

    Raises:
        Unplaced: it is no constant from 0 to 1.
    """
    text = str(node.this) if isinstance(node, exp.Literal) and not node.is_string else ""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise Unplaced("the share of a percentile is a constant from 0 to 1, such as 0.5", node)
    return share


def _share(node: exp.Expr) -> float:
    try:
        return float(node.args["quantile"].name)
    except (KeyError, ValueError, AttributeError):
        raise Unplaced("the share of a quantile is a constant from 0 to 1", node) from None


def check_takes_back(aggregate: Aggregate) -> None:
    """Refuse what cannot be told without a window.

    Raises:
        Unplaced: it is such.
    """
    if aggregate.function not in RETRACTABLE:
        raise Unplaced(
            f"{aggregate.node.sql()} is of windows only (GROUP BY window_start, window_end); without one there are "
            f"{', '.join(RETRACTABLE)}",
            aggregate.node,
        )
    if aggregate.is_distinct and aggregate.function == "COUNT":
        raise Unplaced(
            "COUNT(DISTINCT ...) is of windows only; without one, count a view that is SELECT DISTINCT",
            aggregate.node,
        )


def check_of_windows(aggregate: Aggregate) -> None:
    """Refuse what cannot be told of a window.

    Raises:
        Unplaced: it is such.
    """
    if aggregate.function in _PERCENTILES:
        value = aggregate.argument.sql() if aggregate.argument is not None else "x"
        raise Unplaced(
            f"{aggregate.function} keeps all values, which windows do not; APPROX_QUANTILE({value}, "
            f"{aggregate.share:g}) is within 1 % of it",
            aggregate.node,
        )


def check_values(aggregate: Aggregate, value: Typed, *, of_windows: bool) -> None:
    """Refuse an aggregate of values that it does not take.

    Raises:
        Unplaced: they are no numbers, or decimals.
    """
    if aggregate.function in _OF_NUMBERS and not (value.is_number or value.is_null):
        raise Unplaced(
            f"{aggregate.function} is of numbers, and this is {type_words(value.dtype)}; CAST it",
            aggregate.node,
        )
    if not isinstance(value.dtype, pl.Decimal) or aggregate.function in _OF_ANY:
        return
    if of_windows and aggregate.function in ("SUM", "AVG", "MIN", "MAX"):
        return
    where = "" if of_windows else " without a window"
    raise Unplaced(
        f"{aggregate.function} of DECIMAL{where} is not there; CAST it AS DOUBLE, or count whole hundredths: "
        "CAST(ROUND(x * 100) AS BIGINT)",
        aggregate.node,
    )


def named(aggregate: Aggregate, value: Typed | None) -> str:
    """What its column is called where the text does not say it."""
    of = (
        value.name
        if value is not None and value.name
        else "value"
        if aggregate.argument is not None
        else "rows"
    )
    return f"{aggregate.function.lower()}_{of}"
