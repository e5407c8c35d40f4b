"""Places of percentiles: of the share as it is written, and not of the float next to it."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest

import weir
from weir import testing
from weir.operators.aggregation.percentile_places import place_below, place_between, place_with, places_below

_SCHEMA = {"x": int, "at": int}


@pytest.mark.parametrize("share", [0.0, 0.07, 0.29, 0.57, 0.9, 0.123456789012345, 1 / 3, 1.0])
def test_places_are_those_of_the_decimal_number(share):
    counts = [1, 2, 3, 10, 99, 100, 101, 1_001, 1 << 40]
    exact = Fraction(repr(share))
    assert places_below(share, np.array(counts)).tolist() == [math.floor(exact * (n - 1)) for n in counts]
    for count in counts:
        assert place_below(share, count) == math.floor(exact * (count - 1))
        assert place_with(share, count) == max(math.ceil(exact * count) - 1, 0)
        below, above, way = place_between(share, count)
        assert (below, above) == (math.floor(exact * (count - 1)), math.ceil(exact * (count - 1)))
        assert below + way == pytest.approx(float(exact * (count - 1)))


@pytest.mark.parametrize(
    "steps",
    [
        lambda t: t.window_all(weir.tumbling("1d")).aggregate("q", v=weir.quantile("x", 0.29, error=0.001)),
        lambda t: t.key_by("k").count_window(101).aggregate("q", v=weir.quantile("x", 0.29)),
        lambda t: (
            t.with_columns("c", _change=pl.lit("insert"))
            .key_by("k")
            .aggregate("q", v=weir.quantile("x", 0.29, error=0.001))
        ),
        lambda t: (
            t.with_columns("c", _change=pl.lit("insert"))
            .key_by("k")
            .aggregate("q", v=weir.percentile("x", 0.29))
        ),
    ],
    ids=["windows", "rows", "changes", "percentile"],
)
def test_a_quantile_is_at_its_place(steps):
    """0.29 * 100 is less than 29 in floats."""
    flow = weir.Dataflow("places")
    rows = flow.source("t", weir.JsonLines("unused", schema=_SCHEMA, event_time="at"))
    steps(rows.with_columns("key", k=pl.lit(1, pl.Int64))).sink("out", weir.Collect())
    found = testing.run(flow, {"t": [{"x": 1_000 * n, "at": n} for n in range(101)]})["out"].to_dicts()
    assert found[-1]["v"] == pytest.approx(29_000, rel=0.01)


def test_an_exact_percentile_is_at_its_place():
    flow = weir.Dataflow("places")
    rows = flow.source("t", weir.JsonLines("unused", schema=_SCHEMA, event_time="at"))
    percentile = "PERCENTILE_DISC(0.07) WITHIN GROUP (ORDER BY x)"
    flow.sql(f"SELECT {percentile} AS v FROM t", t=rows, step="q").sink("out", weir.Collect())
    found = testing.run(flow, {"t": [{"x": n, "at": n} for n in range(100)]})["out"].to_dicts()
    assert found[-1]["v"] == 6
