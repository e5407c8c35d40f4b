"""Arithmetic that Polars has not got, and a check of times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl


def remainder(dividend: pl.Expr, divisor: pl.Expr) -> pl.Expr:
    """What is left of a float when another one is taken away as often as it is there; exact, with the dividend's sign.

    Polars computes it from a rounded quotient: of 0.3 and 0.1 there would be less than nothing left.
    """
    made = pl.map_batches([dividend, divisor], _remainders, return_dtype=pl.Float64, is_elementwise=True)
    return pl.when(dividend.is_not_null() & divisor.is_not_null()).then(made)


def _remainders(values: Sequence[pl.Series]) -> pl.Series:
    one, other = values
    with np.errstate(invalid="ignore"):
        # Of an infinite number nothing is known.
        return pl.Series(one.name, np.fmod(one.to_numpy(), other.to_numpy()))


def quotient(dividend: pl.Expr, divisor: pl.Expr) -> pl.Expr:
    """A float divided by another one.

    By a constant Polars multiplies with its reciprocal: 7.0 / 5 would be 1.4000000000000001. So it gets a column.
    """
    if divisor.meta.root_names() or not dividend.meta.root_names():
        return dividend / divisor
    return dividend / (dividend.is_null().cast(pl.Float64) + divisor)


def power(base: pl.Expr, exponent: pl.Expr) -> pl.Expr:
    """A number to the power of another one, as floats."""
    base, exponent = base.cast(pl.Float64), exponent.cast(pl.Float64)
    if not exponent.meta.root_names() and base.meta.root_names():
        # By a constant half Polars takes the square root, which an infinite number below zero has not.
        exponent = base.is_null().cast(pl.Float64) + exponent
    return base**exponent


def in_whole_ms(time: pl.Expr) -> pl.Expr:
    """True for each row of a column of times; a row whose time has more digits than ms fails, with the reason."""
    return pl.map_batches([time], _checked, return_dtype=pl.Boolean, is_elementwise=True)


def _checked(values: Sequence[pl.Series]) -> pl.Series:
    (times,) = values
    finer = (times != times.dt.truncate("1ms")).fill_null(False)
    if finer.any():
        first = times.filter(finer)[0]
        raise ValueError(f"{times.name} has more digits than ms, by which this join goes: {first}")
    return pl.Series(times.name, [True]).new_from_index(0, len(times))
