"""Random columns as Spark SQL expressions: each value is a pure function of (seed, row number, tag).

Nothing here depends on partitions, tasks or the order of evaluation, so a workload is the same however many
machines make it. Spark's ``rand()`` does not have that property.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Name of the column with the row number, 0-based, that every expression here reads.
ROW = "row"
#: Zipf candidates drawn per row. One is refused with a probability below 0.02 whatever the exponent, so all
#: of them are with a probability below 3e-14; the last one is then taken all the same.
ZIPF_TRIALS = 8
#: Largest exponent: beyond it nearly every event carries the first key.
ZIPF_EXPONENT_MAX = 20.0
_SHA512_HEX_CHARS = 128


def hashed(seed: int, tag: str) -> Column:
    """Return 64 random bits (long, signed) per row."""
    from pyspark.sql import functions as f

    return f.xxhash64(f.lit(seed), f.lit(tag), f.col(ROW))


def uniform_integer(seed: int, tag: str, count: int) -> Column:
    """Return a uniform integer in 1..``count`` (long); the bias of the modulo is below count / 2**63."""
    from pyspark.sql import functions as f

    return f.pmod(hashed(seed, tag), f.lit(count).cast("long")) + 1


def uniform_fraction(seed: int, tag: str) -> Column:
    """Return a uniform number in [0, 1) with 53 random bits (double)."""
    from pyspark.sql import functions as f

    return f.shiftrightunsigned(hashed(seed, tag), 11).cast("double") * 2.0**-53


def zipf_integer(seed: int, tag: str, count: int, exponent: float) -> Column:
    """Return an integer k in 1..``count`` (long) with probability proportional to ``k ** -exponent``.

    The law is exact, not a truncated or continuous approximation, and needs no table: rejection-inversion
    after Hoermann and Derflinger (1996). Let H be the integral of ``x ** -s`` from 1. A u is drawn uniformly
    between ``H(1.5) - 1`` and ``H(count + 0.5)``; the candidate is the integer k nearest to ``H**-1(u)``, and
    it is accepted when u lies in the part of k's interval whose length is ``k ** -s``. The trials are
    numbered, so the result stays a pure function of the row.

    Args:
        seed: The workload's seed.
        tag: Which column this is; columns with different tags are independent.
        count: Number of keys.
        exponent: s, above 0 and at most ``ZIPF_EXPONENT_MAX``.

    Returns:
        The column.
    """
    from pyspark.sql import functions as f

    low = _integral(1.5, exponent) - 1.0
    high = _integral(count + 0.5, exponent)
    trials = []
    for trial in range(ZIPF_TRIALS):
        u = f.lit(low) + uniform_fraction(seed, f"{tag}/{trial}") * f.lit(high - low)
        nearest = f.floor(_inverse_integral(u, exponent) + 0.5)
        k = f.least(f.greatest(nearest, f.lit(1).cast("long")), f.lit(count).cast("long"))
        x = k.cast("double")
        accepted = u >= _integral_column(x + 0.5, exponent) - f.exp(f.log(x) * -exponent)
        trials.append(k if trial == ZIPF_TRIALS - 1 else f.when(accepted, k))
    # coalesce stops at the first accepted candidate: a row costs little more than one trial.
    return f.coalesce(*trials)


def random_text(seed: int, tag: str, length: int) -> Column:
    """Return ``length`` random hexadecimal characters (string): 4 bits of entropy in each, no repetition."""
    from pyspark.sql import functions as f

    blocks = f.sequence(f.lit(1), f.lit(math.ceil(length / _SHA512_HEX_CHARS)))
    prefix = f.lit(f"{seed}/{tag}")
    text = f.array_join(
        f.transform(blocks, lambda block: f.sha2(f.concat_ws("/", prefix, ROW, block), 512)), ""
    )
    return f.substring(text, 1, length)


def _integral(x: float, exponent: float) -> float:
    """Return the integral of ``t ** -exponent`` from 1 to x; expm1 keeps it exact for exponents next to 1."""
    if exponent == 1.0:
        return math.log(x)
    return math.expm1((1.0 - exponent) * math.log(x)) / (1.0 - exponent)


def _integral_column(x: Column, exponent: float) -> Column:
    from pyspark.sql import functions as f

    if exponent == 1.0:
        return f.log(x)
    return f.expm1(f.log(x) * (1.0 - exponent)) / (1.0 - exponent)


def _inverse_integral(u: Column, exponent: float) -> Column:
    from pyspark.sql import functions as f

    if exponent == 1.0:
        return f.exp(u)
    return f.exp(f.log1p(u * (1.0 - exponent)) / (1.0 - exponent))
