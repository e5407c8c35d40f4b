"""Which of so many values in order a percentile is, from 0 on.

Of the share as it is written: in floats 0.29 of 100 is less than 29.
"""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np

#: Products of two numbers up to this have room in 64 bits.
_EXACT_MAX = 1 << 30


@functools.lru_cache(maxsize=256)
def ratio(share: float) -> tuple[int, int]:
    """A share from 0 to 1 as numerator and denominator."""
    return Fraction(repr(float(share))).as_integer_ratio()


def place_below(share: float, count: int) -> int:
    """The last of ``count`` values that has at most this share of the others below it."""
    over, under = ratio(share)
    return over * max(count - 1, 0) // under


def places_below(share: float, counts: np.ndarray) -> np.ndarray:
    """The same for each of several counts; int64."""
    others = np.maximum(counts.astype(np.int64) - 1, 0)
    over, under = ratio(share)
    if max(under, int(others.max(initial=0))) <= _EXACT_MAX:
        return others * over // under
    return np.array([place_below(share, each + 1) for each in others.tolist()], dtype=np.int64)


def place_with(share: float, count: int) -> int:
    """The first of ``count`` values that has at least this share at and below it."""
    over, under = ratio(share)
    return max(-(-over * count // under) - 1, 0)


def place_between(share: float, count: int) -> tuple[int, int, float]:
    """The two places around a share of the way from the first to the last value, and how far it is between them."""
    over, under = ratio(share)
    lower, rest = divmod(over * max(count - 1, 0), under)
    return lower, lower + bool(rest), rest / under if rest else 0.0
