"""The functions of aggregates: over which columns they go, of what type their values are, and how state names them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.types as pat

from weir.errors import GraphError
from weir.specs.arrow_form import arrow_form
from weir.specs.row_wise import has_selector
from weir.spelling import did_you_mean

AggregateFunction = Literal[
    "count",
    "sum",
    "min",
    "max",
    "mean",
    "variance",
    "stddev",
    "first",
    "last",
    "largest",
    "count_distinct",
    "approx_distinct",
    "quantile",
    "percentile_cont",
    "percentile_disc",
    # Of an aggregate that the job has no more: its cells stay unused.
    "dropped",
]
_BY_TIME = ("first", "last")
_COMPARING = ("min", "max", "first", "last", "largest")
_FLOATS = ("mean", "variance", "stddev", "quantile", "percentile_cont")
_DISTINCT = ("count_distinct", "approx_distinct")
#: Exact ones, over changelogs only, where all values are kept.
PERCENTILES = ("percentile_cont", "percentile_disc")
_OF_DECIMALS = ("sum", "min", "max", "mean")
#: Digits after the point that a mean of decimals has at least, as in SQL.
_MEAN_SCALE = 6
#: Values that ``largest`` keeps, at most.
LARGEST_MAX = 100
#: Aggregates over the different values of one column, at most: each has a bit of the value's entry.
_DISTINCT_MAX = 63
#: Cells of those functions that have more than one.
_CELLS = {"mean": 2, "variance": 3, "stddev": 3, "first": 2, "last": 2}
_DECIMAL_CELLS = {"sum": 2, "min": 2, "max": 2, "mean": 3}
_REGISTER_CELLS = 16


class AnyAggregate(Protocol):
    """An aggregate of a window, or a running one of a key."""

    @property
    def output(self) -> str:
        """Name of its column."""

    @property
    def function(self) -> AggregateFunction:
        """What is done with the values."""

    @property
    def column(self) -> str | None:
        """Whose values; None: rows are counted."""

    @property
    def condition(self) -> pl.Expr | None:
        """Which rows count; None: all."""

    @property
    def parameters(self) -> tuple[float, ...]:
        """Numbers that the function needs."""


Some = TypeVar("Some", bound=AnyAggregate)


def in_order(aggregates: tuple[Some, ...], shown: tuple[str, ...]) -> tuple[Some, ...]:
    """The aggregates of these names, in their order; of (), all as they are."""
    if not shown:
        return aggregates
    by_name = {aggregate.output: aggregate for aggregate in aggregates}
    return tuple(by_name[name] for name in shown)


def aggregate_type(
    step: str,
    function: AggregateFunction,
    column: str | None,
    schema: pa.Schema,
    *,
    takes_texts: bool = False,
    of_changelog: bool = False,
) -> pa.DataType:
    """The type of an aggregate's values over a column of ``schema``; None only for a bare count.

    ``takes_texts``: values of any length go with those functions that only compare. ``of_changelog``: all values are
    kept, so that there are exact percentiles.

    Raises:
        GraphError: there is no such column, or it is of a type that the function does not take.
    """
    if column is None and function in ("count", "dropped"):
        return pa.int64()
    if column is None or column not in schema.names:
        raise GraphError(
            f"step {step!r}: {function} over {column!r}: there is no such column"
            f"{did_you_mean(str(column), schema.names)}"
        )
    if function in PERCENTILES and not of_changelog:
        raise GraphError(
            f"step {step!r}: {function} over {column!r} keeps all values, which only aggregates over a changelog do; "
            f"take weir.quantile({column!r}, ...), in a window"
        )
    dtype = schema.field(column).type
    if function == "count":
        return pa.int64()
    if function in _DISTINCT:
        is_number = pat.is_integer(dtype) or pat.is_floating(dtype) or pat.is_decimal128(dtype)
        if not (is_number or _is_bytes(dtype) or _is_word(dtype)):
            raise GraphError(
                f"step {step!r}: {function} over {column!r}: values of type {dtype} cannot be told apart; take a "
                "column of numbers, text, bytes, booleans, dates or times"
            )
        return pa.int64()
    if takes_texts and compares_texts(function, column, schema):
        return pa.list_(dtype) if function == "largest" else dtype
    if pat.is_decimal128(dtype) and function in _OF_DECIMALS:
        return decimal_type(function, dtype)
    is_number = pat.is_integer(dtype) or pat.is_floating(dtype)
    mend = ""
    if compares_texts(function, column, schema):
        mend = "; of texts and bytes it goes with windows: key_by(...).window(...), window_all(...)"
    elif pat.is_decimal(dtype):
        mend = f"; {decimal_mend(column, dtype)}"
    if function in ("min", "max", "percentile_disc") and _is_word(dtype):
        return dtype
    if function in _BY_TIME and not is_number:
        if not _is_word(dtype):
            raise GraphError(
                f"step {step!r}: {function} over {column!r}: the column is {dtype}; it takes numbers, booleans, dates "
                f"and times{mend}"
            )
        return dtype
    if not is_number:
        raise GraphError(
            f"step {step!r}: {function} over {column!r}: the column is {dtype}, not a number{mend}"
        )
    number = pa.int64() if pat.is_integer(dtype) and function not in _FLOATS else pa.float64()
    return pa.list_(number) if function == "largest" else number


def decimal_type(function: AggregateFunction, dtype: pa.DataType) -> pa.DataType:
    """Return the type of a sum, an extreme or a mean of decimals, as in SQL: exact, and of up to 38 digits."""
    if function in ("min", "max"):
        return dtype
    return pa.decimal128(38, max(dtype.scale, _MEAN_SCALE) if function == "mean" else dtype.scale)


def decimal_mend(column: str | None, dtype: pa.DataType) -> str:
    """What to do before an aggregate that does not take decimals."""
    unit = f"pl.col({column!r})" if dtype.scale <= 0 else f"(pl.col({column!r}) * {10**dtype.scale})"
    exact = f" or, exactly, {unit}.cast(pl.Int64)" if dtype.precision <= 18 else ""
    return f"cast it in a step before, pl.col({column!r}).cast(pl.Float64){exact}"


def compares_texts(function: AggregateFunction, column: str | None, schema: pa.Schema) -> bool:
    """Return whether an aggregate's value is a text or bytes of the column, or some of them."""
    found = function in _COMPARING and column in schema.names
    return found and _is_bytes(schema.field(column).type)


def is_coded_text(function: AggregateFunction, dtype: pa.DataType | None) -> bool:
    """Return whether an aggregate keeps the code of a text or of bytes, and the text beside it."""
    plain = (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary)
    return dtype is not None and function in _BY_TIME and any(is_kind(dtype) for is_kind in plain)


def has_coded_texts(aggregates: Iterable[AnyAggregate], schema: pa.Schema) -> bool:
    """Return whether one of these is :func:`is_coded_text`."""
    return any(
        each.column in schema.names and is_coded_text(each.function, schema.field(str(each.column)).type)
        for each in aggregates
    )


def aggregated_columns(aggregates: Iterable[AnyAggregate], schema: pa.Schema) -> frozenset[str]:
    """Columns of ``schema`` that aggregates and their conditions look at."""
    read: set[str] = set()
    for aggregate in aggregates:
        if aggregate.column is not None:
            read.add(aggregate.column)
        if aggregate.condition is not None:
            if has_selector(aggregate.condition):
                return frozenset(schema.names)
            read.update(aggregate.condition.meta.root_names())
    return frozenset(read.intersection(schema.names))


def different_conditions(aggregates: Iterable[AnyAggregate]) -> tuple[list[pl.Expr], list[int | None]]:
    """Return each condition once, and for each aggregate which of them it has; None: it has none.

    What Polars writes of an expression does not tell it from others: of lists the middle is left out, and of Python
    functions there is nothing.
    """
    found: list[pl.Expr] = []
    numbers: list[int | None] = []
    for condition in (aggregate.condition for aggregate in aggregates):
        if condition is None:
            numbers.append(None)
            continue
        number = next((i for i, other in enumerate(found) if condition.meta.eq(other)), len(found))
        if number == len(found):
            found.append(condition)
        numbers.append(number)
    return found, numbers


def stored_function(aggregate: AnyAggregate) -> str:
    """The function, as far as the bytes of its state depend on it; part of snapshots."""
    if aggregate.function == "dropped":
        return f"dropped {int(aggregate.parameters[0])}"
    if aggregate.function == "stddev":
        return "variance"
    if aggregate.function == "largest":
        return f"largest {int(aggregate.parameters[0])}"
    if aggregate.function == "approx_distinct":
        return f"approx_distinct {hyperloglog_precision(aggregate.parameters[0])}"
    if aggregate.function == "quantile":
        return f"quantile {aggregate.parameters[1]!r}"
    if aggregate.function in PERCENTILES:
        return "percentile"
    return aggregate.function


@dataclass(frozen=True)
class AggregatePart:
    """Entries of its own that some aggregates of a step keep: different values, registers, buckets."""

    #: Name of the state.
    name: str
    function: AggregateFunction
    column: str
    #: Which aggregates of the step use it.
    members: tuple[int, ...]


def aggregate_parts(aggregates: Iterable[AnyAggregate]) -> tuple[AggregatePart, ...]:
    """What aggregates keep besides cells; part of the persisted form of a step's state.

    Counts of different values of a column share their entries, and so do quantiles of the same rows.

    Raises:
        GraphError: too many of them share.
    """
    found: dict[tuple[str, ...], list[int]] = {}
    listed = list(aggregates)
    _, numbers = different_conditions(listed)
    for number, aggregate in enumerate(listed):
        if aggregate.function == "count_distinct":
            group: tuple[str, ...] = (aggregate.function, str(aggregate.column))
        elif aggregate.function == "approx_distinct":
            group = (aggregate.function, str(aggregate.column), str(number))
        elif aggregate.function == "quantile":
            error = repr(aggregate.parameters[1])
            group = (aggregate.function, str(aggregate.column), str(numbers[number]), error)
        else:
            continue
        found.setdefault(group, []).append(number)
    for group, members in found.items():
        if len(members) > _DISTINCT_MAX:
            raise GraphError(
                f"there are {len(members)} times {group[0]} of {group[1]!r}; at most {_DISTINCT_MAX}"
            )
    return tuple(
        AggregatePart(f"{group[0]}_{members[0]}", listed[members[0]].function, group[1], tuple(members))
        for group, members in found.items()
    )


def hyperloglog_precision(error: float) -> int:
    """Bits of a hash that choose a register, so that the standard error is at most ``error``."""
    return max(4, math.ceil(2 * math.log2(1.04 / error)))


def stored_number(schema: pa.Schema | None, aggregate: AnyAggregate) -> str | None:
    """The type of the numbers in its state; part of snapshots. None: it is not known yet."""
    if aggregate.function == "count":
        return "int64"
    if aggregate.function == "dropped":
        return None
    if aggregate.function in _FLOATS and aggregate.function not in _OF_DECIMALS:
        return "float64"
    if schema is None or aggregate.column not in schema.names:
        return None
    dtype = schema.field(aggregate.column).type
    if pat.is_decimal(dtype):
        # Its digits after the point say what the bytes mean, whatever the type's number of digits.
        return f"decimal of scale {dtype.scale}"
    if aggregate.function in _FLOATS:
        return "float64"
    if aggregate.function == "count_distinct" and pat.is_integer(dtype):
        return "int64 in blocks"
    if pat.is_integer(dtype) or pat.is_floating(dtype):
        return "int64" if pat.is_integer(dtype) else "float64"
    if _is_bytes(dtype):
        return "string" if _is_text(dtype) else "binary"
    return arrow_form(dtype)


def stored_cells(schema: pa.Schema | None, aggregate: AnyAggregate) -> int:
    """Cells of 8 bytes that a key, or an entry of a window, has for an aggregate; part of the persisted form."""
    function, parameters = aggregate.function, aggregate.parameters
    if function == "dropped":
        return int(parameters[0])
    if function == "largest":
        return 1 + int(parameters[0])
    if function == "approx_distinct":
        return _REGISTER_CELLS
    dtype = None if schema is None or aggregate.column is None else schema.field(aggregate.column).type
    if dtype is not None and pat.is_decimal(dtype):
        return _DECIMAL_CELLS.get(function, _CELLS.get(function, 1))
    return _CELLS.get(function, 1)


def adds_up(aggregate: AnyAggregate, schema: pa.Schema) -> bool:
    """Whether neither rounding nor the order of rows has a part in an aggregate: rows can be added up in any parts.

    Args:
        aggregate: of a window, or a running one.
        schema: has the column that is aggregated.
    """
    function = aggregate.function
    if function in ("count", "dropped"):
        return True
    if function not in ("sum", "min", "max", "mean"):
        return False
    dtype = schema.field(str(aggregate.column)).type
    if pat.is_decimal128(dtype):
        return True
    if function in ("min", "max"):
        return bool(pat.is_integer(dtype)) or _is_word(dtype)
    return bool(pat.is_integer(dtype)) and function == "sum"


def _is_word(dtype: pa.DataType) -> bool:
    """Booleans, dates and times."""
    return bool(pat.is_boolean(dtype) or (pat.is_temporal(dtype) and not pat.is_interval(dtype)))


def _is_text(dtype: pa.DataType) -> bool:
    if pat.is_dictionary(dtype):
        return _is_text(dtype.value_type)
    return bool(pat.is_string(dtype) or pat.is_large_string(dtype) or pat.is_string_view(dtype))


def _is_bytes(dtype: pa.DataType) -> bool:
    """Text and bytes, also in dictionaries."""
    if pat.is_dictionary(dtype):
        return _is_bytes(dtype.value_type)
    plain = (pat.is_string, pat.is_large_string, pat.is_binary, pat.is_large_binary)
    views = (pat.is_string_view, pat.is_binary_view, pat.is_fixed_size_binary)
    return any(is_kind(dtype) for is_kind in (*plain, *views))
