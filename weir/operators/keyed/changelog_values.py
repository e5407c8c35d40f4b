"""Aggregates over a changelog that keep the values of a key: the least, the greatest, and those in between. Pure.

A key has its different values in ascending order, and how often each is there: below 0 while it was taken away before
it came. A quantile has buckets in place of values.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.aggregation.columns import from_words, numbers, words
from weir.operators.aggregation.percentile_places import place_below, place_between, place_with
from weir.operators.aggregation.quantile_buckets import QuantileBuckets
from weir.operators.keyed.changelog_totals import EXTREMES
from weir.specs.keyed import Aggregate


def kept_values(aggregate: Aggregate, column: pa.Array, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is kept of a column, int64 or float64, and which rows count (of length 0: all)."""
    is_float = pa.types.is_floating(column.type)
    if aggregate.function == "quantile":
        plain, valid = numbers(aggregate, column, mask, pa.float64())
        is_nan = np.isnan(plain)
        buckets = QuantileBuckets(aggregate.parameters[1]).of(np.where(is_nan, 0.0, plain))
        return buckets, _without(valid, is_nan)
    values, valid = words(aggregate, column, mask)
    if not is_float:
        return values, valid
    values = values.view(np.float64)
    return values, valid if aggregate.function in EXTREMES else _without(valid, np.isnan(values))


def _without(valid: np.ndarray, is_nan: np.ndarray) -> np.ndarray:
    """Which rows count, less those that are NaN."""
    if not is_nan.any():
        return valid
    counts: np.ndarray = (~is_nan if not len(valid) else (valid != 0) & ~is_nan).astype(np.uint8)
    return counts


def of_values(
    aggregate: Aggregate, dtype: pa.DataType, pairs: list[tuple[np.ndarray, np.ndarray]], *, is_float: bool
) -> pa.Array:
    """The results of keys.

    Args:
        aggregate: which function.
        dtype: of the result.
        pairs: of each key its values, as int64 or the bits of float64, and how often each is there.
        is_float: which of the two they are; buckets are integers.
    """
    out = np.zeros(len(pairs), dtype=np.float64 if pa.types.is_floating(dtype) else np.int64)
    valid = np.zeros(len(pairs), dtype=bool)
    is_float = is_float and aggregate.function != "quantile"
    for key, (values, counts) in enumerate(pairs):
        is_there = counts > 0
        if is_there.any():
            there = values[is_there]
            out[key] = _of_key(aggregate, there.view(np.float64) if is_float else there, counts[is_there])
            valid[key] = True
    if aggregate.function == "quantile":
        out = np.where(valid, QuantileBuckets(aggregate.parameters[1]).values(out.astype(np.int64)), 0.0)
    return from_words(out.view(np.int64), valid, dtype)


def _of_key(aggregate: Aggregate, values: np.ndarray, counts: np.ndarray) -> int | float:
    """The result of a key that has values."""
    if aggregate.function == "min":
        found: int | float = values[0]
        return found
    if aggregate.function == "max":
        # NaN is in the last place, and counts only if there is nothing else.
        is_nan = len(values) > 1 and values.dtype == np.float64 and np.isnan(values[-1])
        found = values[-2 if is_nan else -1]
        return found
    stops = np.cumsum(counts)
    share, count = aggregate.parameters[0], int(stops[-1])
    if aggregate.function == "percentile_cont":
        below, above, way = place_between(share, count)
        lower = float(values[np.searchsorted(stops, below, side="right")])
        upper = float(values[np.searchsorted(stops, above, side="right")])
        # Not beyond the two values, and infinite ones minus themselves are NaN.
        return lower if lower == upper else lower + (upper - lower) * way
    is_disc = aggregate.function == "percentile_disc"
    rank = place_with(share, count) if is_disc else place_below(share, count)
    found = values[np.searchsorted(stops, rank, side="right")]
    return found
