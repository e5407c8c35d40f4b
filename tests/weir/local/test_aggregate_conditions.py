"""Aggregates of one step with conditions that Polars writes alike: each takes its own rows."""

import polars as pl
import polars.selectors as cs
import pytest

import weir
from weir import testing

ROWS = [
    {"shop": "a", "at": number, "country": country, "x": number}
    for number, country in enumerate(["it", "it", "es", "de"])
]
#: Polars writes both as ["de", "fr", … "uk"].
WITH_ITALY = pl.col("country").is_in(["de", "fr", "it", "uk"])
WITH_SPAIN = pl.col("country").is_in(["de", "fr", "es", "uk"])


def udf(names):
    """Polars writes all of these as python_udf()."""
    return pl.col("country").map_batches(lambda column: column.is_in(names), return_dtype=pl.Boolean)


PAIRS = {
    "lists": (WITH_ITALY, WITH_SPAIN),
    "functions": (udf(["de", "it"]), udf(["de", "es"])),
    "series": (
        pl.col("country").is_in(pl.Series([["de", "it"]])),
        pl.col("country").is_in(pl.Series([["de", "es"]])),
    ),
}
STEPS = {
    "running": lambda rows, calls: rows.key_by("shop").aggregate("step", **calls),
    "window": lambda rows, calls: rows.key_by("shop").window(weir.tumbling("1s")).aggregate("step", **calls),
    "window_all": lambda rows, calls: rows.window_all(weir.tumbling("1s")).aggregate("step", **calls),
    "count_window": lambda rows, calls: rows.key_by("shop").count_window(4, 4).aggregate("step", **calls),
}


def last_row(make, calls):
    flow = weir.Dataflow("job")
    schema = {"shop": str, "at": int, "country": str, "x": int}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema, event_time="at"))
    make(rows, calls).sink("out", weir.Collect())
    return testing.run(flow, {"rows": ROWS})["out"].to_dicts()[-1]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("step", STEPS)
def test_conditions_that_are_written_alike_are_two(pair, step):
    italy, spain = PAIRS[pair]
    calls = {
        "italy": weir.count().where(italy),
        "spain": weir.count().where(spain),
        "different_italy": weir.count_distinct("x").where(italy),
        "different_spain": weir.count_distinct("x").where(spain),
        "again": weir.count().where(italy),
    }
    found = last_row(STEPS[step], calls)
    assert [found[name] for name in calls] == [3, 2, 3, 2, 3]


def test_quantiles_of_rows_whose_conditions_are_written_alike_are_two():
    calls = {
        "italy": weir.quantile("x", 0.5).where(WITH_ITALY),
        "spain": weir.quantile("x", 0.5).where(WITH_SPAIN),
    }
    found = last_row(STEPS["window"], calls)
    # Of 0, 1, 3 and of 2, 3.
    assert (found["italy"], found["spain"]) == (pytest.approx(1, rel=0.01), pytest.approx(2, rel=0.01))


def test_conditions_over_a_changelog_that_are_written_alike_are_two():
    def make(rows, calls):
        return rows.key_by("shop").top("top", by="x", rows=9).key_by("shop").aggregate("step", **calls)

    calls = {"italy": weir.count().where(WITH_ITALY), "spain": weir.count().where(WITH_SPAIN)}
    found = last_row(make, calls)
    assert (found["italy"], found["spain"]) == (3, 2)


def test_conditions_with_selectors_and_with_times_go_together():
    calls = {
        "small": weir.count().where(pl.max_horizontal(cs.integer()) < 3),
        "timed": weir.count().where(pl.col("_event_time_ms") >= 2),
    }
    found = last_row(STEPS["running"], calls)
    # With the times of reading among the numbers, no row would be small.
    assert (found["small"], found["timed"]) == (3, 2)
