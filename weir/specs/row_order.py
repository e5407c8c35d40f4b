"""Orders of rows by several columns of any type, as steps that keep the first rows have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from weir.errors import GraphError
from weir.specs.expression_checks import check_is_name
from weir.spelling import did_you_mean


@dataclass(frozen=True)
class OrderColumn:
    """A column of an order. NaN is above all numbers.

    Attributes:
        name: of the column.
        ascending: the lowest values go first.
        nulls_first: null goes before all values, else after them.
    """

    name: str
    ascending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class FirstRows:
    """What a function of all rows of a window looks at, if it has this as its ``first_rows``: the first ones.

    Attributes:
        order: of the rows; at least one column.
        rows: so many, and those that are equal to the last of these in the order.
    """

    order: tuple[OrderColumn, ...]
    rows: int


def order_columns(
    step: str,
    by: Sequence[str],
    ascending: bool | Sequence[bool],
    nulls_first: bool | Sequence[bool],
) -> tuple[OrderColumn, ...]:
    """The order that an author writes down; called when the step is.

    Args:
        step: its name, for messages.
        by: names of columns, the first one counts most.
        ascending: for all of them, or for each.
        nulls_first: in the same way.

    Raises:
        GraphError: there is no column, or another number of them than of directions.
    """
    names = list(by)
    if not names:
        raise GraphError(f"step {step!r}: by has no column; give at least one")
    flags = []
    for word, given in (("ascending", ascending), ("nulls_first", nulls_first)):
        listed = [given] * len(names) if isinstance(given, bool) else list(given)
        if len(listed) != len(names) or not all(isinstance(each, bool) for each in listed):
            raise GraphError(
                f"step {step!r}: {word} is {given!r}; it is True or False, or a list of {len(names)} of these, one for "
                "each column of by"
            )
        flags.append(listed)
    for name in names:
        check_is_name(f"step {step!r}: by", name)
    if len(set(names)) < len(names):
        raise GraphError(f"step {step!r}: a column is in by twice")
    return tuple(OrderColumn(*each) for each in zip(names, *flags, strict=True))


def check_row_order(step: str, order: Iterable[OrderColumn], schema: pa.Schema) -> None:
    """Refuse columns that are absent or have no order.

    Raises:
        GraphError: names the column.
    """
    for each in order:
        if each.name not in schema.names:
            raise GraphError(
                f"step {step!r}: there is no column {each.name!r} to go by{did_you_mean(each.name, schema.names)}"
            )
        dtype = schema.field(each.name).type
        if is_unordered(dtype):
            raise GraphError(
                f"step {step!r}: it goes by column {each.name!r}, which is {dtype} and has no order; go by numbers, "
                "times, texts, bytes or Booleans"
            )


def is_unordered(dtype: pa.DataType) -> bool:
    """Return whether values of a type are no single ones, and so have no order."""
    return bool(
        pa.types.is_nested(dtype)
        or pa.types.is_dictionary(dtype)
        or pa.types.is_null(dtype)
        or pa.types.is_interval(dtype)
    )
