"""Frames of rows: NaN counts in the least and greatest value only if there is no other value."""

import math

import numpy as np
import polars as pl
import pytest

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
