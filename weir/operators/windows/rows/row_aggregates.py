"""Aggregates over all rows of a window at once, as Polars expressions: of rows that are kept, not of accumulators.

Used where no cell of fixed length can hold a value: by aggregates of texts, and by windows of so many rows.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import polars as pl
import pyarrow as pa

from weir.author.aggregator import WindowBounds
from weir.errors import WeirError
from weir.operators.aggregation.percentile_places import ratio
from weir.rows.changes import rows_there
from weir.rows.records import EVENT_TIME_COLUMN, UNNAMED_COLUMN
from weir.specs.windows import WindowAggregate


class RowAggregates:
    """The aggregates of one step."""

    def __init__(self, aggregates: tuple[WindowAggregate, ...], schema: pa.Schema) -> None:
        """``schema`` has the type of each aggregate's values."""
        self._sums = [each.output for each in aggregates if each.function == "sum"]
        self._decimals = {
            each.output: schema.field(each.output).type
            for each in aggregates
            if each.function in ("sum", "mean") and pa.types.is_decimal(schema.field(each.output).type)
        }
        self.expressions = [
            _value_of(each, schema.field(each.output).type).alias(each.output) for each in aggregates
        ]

    def __call__(self, key: dict[str, Any], window: WindowBounds, rows: pl.DataFrame) -> pl.DataFrame:
        """Return a window's aggregates, as ``weir.author.aggregator.RowsFunction`` asks, in order of event time."""
        # All that counts of these is their order.
        ordered = rows.drop(EVENT_TIME_COLUMN, strict=False).with_row_index(EVENT_TIME_COLUMN)
        window_of = pl.lit(0).alias(UNNAMED_COLUMN)
        return self.checked(ordered.group_by(window_of).agg(self.expressions).drop(UNNAMED_COLUMN))

    def of_windows(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The same of many windows at once: a call of Polars for each takes milliseconds.

        Args:
            rows: in the order of their event times within each window, which the column :data:`UNNAMED_COLUMN` numbers.

        Returns:
            :data:`UNNAMED_COLUMN`, ascending, and the aggregates; nothing of windows without rows.

        Raises:
            WeirError: see :meth:`checked`.
        """
        ordered = rows.drop(EVENT_TIME_COLUMN, strict=False).with_row_index(EVENT_TIME_COLUMN)
        return self.checked(ordered.group_by(UNNAMED_COLUMN).agg(self.expressions).sort(UNNAMED_COLUMN))

    def checked(self, made: pl.DataFrame) -> pl.DataFrame:
        """Results of :attr:`expressions`, with integer sums as int64 and decimals of the type that they have.

        Raises:
            WeirError: a sum of integers passes 64 bits, or a result of decimals 38 digits.
        """
        for name, dtype in self._decimals.items():
            found = [_decimal_of(name, dtype, **each) for each in made[name].to_list()]
            made = made.with_columns(pl.Series(name, found, pl.Decimal(38, dtype.scale)))
        for name in self._sums:
            if made[name].dtype == pl.Int128:
                try:
                    made = made.with_columns(pl.col(name).cast(pl.Int64))
                except pl.exceptions.PolarsError:
                    raise WeirError(
                        f"aggregate {name!r}: the sum of a window passes 64 bits; cast the column to float64 first"
                    ) from None
        return made


class ChangelogRowAggregates:
    """The same, of the rows of several windows that are there after all changes of them; no first and last values."""

    def __init__(self, aggregates: tuple[WindowAggregate, ...], schema: pa.Schema) -> None:
        """Make the aggregates; the arguments are those of :class:`RowAggregates`."""
        self._of_rows = RowAggregates(aggregates, schema)

    def __call__(self, changes: pl.DataFrame) -> pl.DataFrame:
        """Return a row for each window that has rows.

        Args:
            changes: of all windows, with columns ``_change`` and :data:`UNNAMED_COLUMN`, a number for each window.

        Returns:
            :data:`UNNAMED_COLUMN`, ascending, and the aggregates.

        Raises:
            WeirError: see :meth:`RowAggregates.checked`.
        """
        made = rows_there(changes).group_by(UNNAMED_COLUMN).agg(self._of_rows.expressions)
        return self._of_rows.checked(made.sort(UNNAMED_COLUMN))


def _value_of(aggregate: WindowAggregate, dtype: pa.DataType) -> pl.Expr:
    """An aggregate over all rows of a group, as of windows over time: nulls do not count.

    Args:
        aggregate: what is computed.
        dtype: type of its values.
    """
    counts = pl.lit(value=True) if aggregate.condition is None else aggregate.condition.fill_null(value=False)
    if aggregate.column is None:
        return pl.len().cast(pl.Int64) if aggregate.condition is None else counts.sum().cast(pl.Int64)
    column = pl.col(aggregate.column)
    taken = column.is_not_null() & counts
    values = column.filter(taken)
    function, parameters = aggregate.function, aggregate.parameters
    if function in ("first", "last"):
        ordered = values.sort_by(pl.col(EVENT_TIME_COLUMN).filter(taken), maintain_order=True)
        return ordered.first() if function == "first" else ordered.last()
    if function == "count":
        return values.len().cast(pl.Int64)
    if function in ("count_distinct", "approx_distinct"):
        return values.n_unique().cast(pl.Int64)
    if function in ("variance", "stddev"):
        numbers, ddof = values.cast(pl.Float64), int(parameters[0])
        return numbers.var(ddof) if function == "variance" else numbers.std(ddof)
    return _ordered_or_summed(function, values, parameters, dtype)


def _ordered_or_summed(
    function: str, values: pl.Expr, parameters: Sequence[float], dtype: pa.DataType
) -> pl.Expr:
    of = dtype.value_type if pa.types.is_list(dtype) else dtype
    if pa.types.is_integer(of):
        values = values.cast(pl.Int64)
    elif pa.types.is_floating(of):
        values = values.cast(pl.Float64)
    elif pa.types.is_decimal(of) and function in ("sum", "mean"):
        # A total that passes 128 bits begins anew at the other end; what floats have about says whether it did.
        about = values.cast(pl.Float64).sum()
        return pl.struct(
            total=values.sum(), about=about, count=values.len(), is_mean=pl.lit(function == "mean")
        )
    if function == "sum":
        total = (values.cast(pl.Int128) if pa.types.is_integer(of) else values).sum()
        return pl.when(values.len() > 0).then(total)
    if function == "mean":
        return values.mean()
    if function == "quantile":
        over, under = ratio(parameters[0])
        real = values.filter(values.is_not_nan()).sort()
        others = real.len().cast(pl.Int128) - 1
        return real.get((others * over // under).cast(pl.Int64), null_on_oob=True)
    if function == "largest":
        real = values.filter(values.is_not_nan()) if pa.types.is_floating(of) else values
        return real.sort(descending=True).head(int(parameters[0]))
    return values.min() if function == "min" else values.max()


def _decimal_of(
    name: str, dtype: pa.DataType, total: decimal.Decimal, about: float, count: int, *, is_mean: bool
) -> decimal.Decimal | None:
    """A sum or mean of decimals, of type ``dtype``.

    Raises:
        WeirError: it does not fit the type.
    """
    if not count:
        return None
    exact = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)
    # The total itself has 38 digits, with those after the point of its column.
    unit = 10.0 ** int(total.as_tuple().exponent)
    fits = abs(about) < 1.3e38 * unit
    value = exact.divide(total, decimal.Decimal(count)) if is_mean else total
    value = value.quantize(decimal.Decimal(1).scaleb(-dtype.scale), context=exact)
    if not fits or abs(value) >= decimal.Decimal(10).scaleb(37 - dtype.scale):
        raise WeirError(
            f"aggregate {name!r}: the {'mean' if is_mean else 'sum'} of a window passes the 38 digits of a decimal; "
            "cast the column to float64 first"
        )
    return value
