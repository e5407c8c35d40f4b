"""Arithmetic that Polars has not got."""

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
