"""Frames of rows: NaN counts in the least and greatest value only if there is no other value."""

import math

import numpy as np
import polars as pl
import pytest

from weir.errors import WeirError
from weir.operators.keyed import over_frames

_VALUES = [math.nan, 2.0, None, math.nan, -1.0, None]


def _plain(values):
    there = [each for each in values if each is not None]
    return [each for each in there if not math.isnan(each)] or there


@pytest.mark.parametrize(("function", "best"), [("min", min), ("max", max)])
def test_nan_counts_only_without_other_values(function, best):
    values = over_frames.values_of(pl.Series(_VALUES, dtype=pl.Float64).to_arrow(), len(_VALUES))
    bounds = [(start, stop) for start in range(6) for stop in range(start + 1, 7)]
    starts, stops = (np.array(each) for each in zip(*bounds, strict=True))
    found = over_frames.framed(function, values, starts, stops)
    told = np.where(found.counts > 0, found.numbers, -99.0)
    frames = [_plain(_VALUES[start:stop]) for start, stop in bounds]
    wanted = [best(each) if each else -99.0 for each in frames]
    np.testing.assert_array_equal(told, wanted)

    nothing = over_frames.Running(np.empty(0), np.empty(0, dtype=np.int64))
    keys = np.zeros(6, dtype=np.int64)
    running = over_frames.running(function, values, keys, nothing, keys[:0])
    up_to = [_plain(_VALUES[: stop + 1]) for stop in range(6)]
    np.testing.assert_array_equal(running.numbers, [best(each) for each in up_to])


_BIG = 2**62


@pytest.mark.parametrize("function", ["sum", "mean"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_passes_64_bits_is_refused_and_one_that_comes_near_is_exact(function, sign):
    """Integers wrap around without a word."""
    nothing = over_frames.Running(*(np.empty(0, dtype=np.int64) for _ in range(2)))
    keys = np.array([0, 0, 0, 1, 1])
    near = over_frames.values_of(
        pl.Series([sign * each for each in (_BIG, _BIG - 1, -5, _BIG, 3)]).to_arrow(), 5
    )
    found = over_frames.running(function, near, keys, nothing, keys[:0])
    wanted = [sign * each for each in (_BIG, 2 * _BIG - 1, 2 * _BIG - 6, _BIG, _BIG + 3)]
    assert found.numbers.tolist() == wanted
    framed = over_frames.framed(function, near, np.array([0, 0, 0, 3, 3]), np.arange(1, 6))
    assert framed.numbers.tolist() == wanted
    over = over_frames.values_of(pl.Series([sign * 2] * 2).to_arrow(), 2)
    carried = over_frames.Running(np.array([wanted[1]]), np.array([2]))
    with pytest.raises(WeirError, match="a sum passes 64 bits; cast the column to float64 first"):
        over_frames.running(function, over, keys[:2], carried, keys[:1])
    three = over_frames.values_of(pl.Series([sign * _BIG] * 3).to_arrow(), 3)
    with pytest.raises(WeirError, match="a sum passes 64 bits"):
        over_frames.framed(function, three, np.array([0, 0, 0]), np.arange(1, 4))


def test_an_integer_beyond_63_bits_is_refused():
    with pytest.raises(
        WeirError, match=r"9223372036854775808 not in range.*cast the column to float64 first"
    ):
        over_frames.values_of(pl.Series([2**63], dtype=pl.UInt64).to_arrow(), 1)
