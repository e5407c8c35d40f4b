"""Minima and maxima of dates, times and booleans: of running values, windows of all kinds, and changelogs."""

import datetime as dt
import random

import polars as pl
import pytest

import weir
from weir import testing

TYPES = {
    "boolean": (pl.Boolean, [True, False]),
    "date": (pl.Date, [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "timestamp": (pl.Datetime("us"), [dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1, 1, 2, 3, 4)]),
    "zoned": (
        pl.Datetime("ms", "UTC"),
        [dt.datetime(2024, 3, 31, hour, tzinfo=dt.UTC) for hour in (0, 1, 2)],
    ),
    "time": (pl.Time, [dt.time(0), dt.time(12, 30, 0, 1), dt.time(23, 59, 59, 999_999)]),
    "duration": (pl.Duration("ms"), [dt.timedelta(days=-5), dt.timedelta(0), dt.timedelta(milliseconds=1)]),
}
CALLS = {
    "low": weir.min("v"),
    "high": weir.max("v"),
    "low_odd": weir.min("v").where(pl.col("at") % 2 == 1),
}
STEPS = {
    "running": lambda rows: rows.key_by("k").aggregate("step", **CALLS),
    "tumbling": lambda rows: rows.key_by("k").window(weir.tumbling("1s")).aggregate("step", **CALLS),
    "added up before": lambda rows: (
        rows.key_by("k").window(weir.tumbling("1s")).aggregate("step", pre_aggregate=True, **CALLS)
    ),
    "sliding": lambda rows: rows.key_by("k").window(weir.sliding("1s", "100ms")).aggregate("step", **CALLS),
    "session": lambda rows: rows.key_by("k").window(weir.session("1s")).aggregate("step", **CALLS),
    "all rows": lambda rows: rows.window_all(weir.tumbling("1s")).aggregate("step", **CALLS),
    "count": lambda rows: rows.key_by("k").count_window(60).aggregate("step", **CALLS),
    "changelog": lambda rows: (
        rows.key_by("k", "at").deduplicate("rows_of", keep="last").key_by("k").aggregate("step", **CALLS)
    ),
}


def expected(values):
    """Of values at 0, 1, 2 and so on."""
    every = [value for value in values if value is not None]
    odd = [value for value in values[1::2] if value is not None]
    return min(every), max(every), min(odd, default=None)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", TYPES)
def test_extremes_are_those_of_python_through_a_restart(name, step):
    dtype, choices = TYPES[name]
    draw = random.Random(f"{name} {step}")
    values = [draw.choice([None, *choices]) for _ in range(60)]
    flow = weir.Dataflow("job")
    source = weir.ArrowIpc("none", schema={"k": str, "at": int, "v": weir.Nullable(dtype)})
    STEPS[step](flow.source("rows", source, event_time="at")).sink("out", weir.Collect())
    given = pl.DataFrame({"k": "a", "at": range(60), "v": values}, schema_overrides={"v": dtype})
    with testing.start(flow) as job:
        job.push("rows", given[:35])
        job.checkpoint()
        job.restart()
        job.push("rows", given[35:])
        found = job.finish()["out"].to_dicts()
    # The windows that have all rows are among the sliding ones.
    kept = [row for row in found if row.get("window_start", 0) <= 0 <= row.get("window_end", 1_000) - 60]
    assert [tuple(row[name] for name in CALLS) for row in kept[-1:]] == [expected(values)]
    assert kept[-1]["low"] is not None


def test_a_changelog_takes_the_extreme_back_when_its_row_goes():
    flow = weir.Dataflow("job")
    schema = {"id": int, "k": str, "day": pl.Date}
    rows = flow.source("rows", weir.JsonLines("none", schema=schema))
    latest = rows.key_by("id").deduplicate("latest", keep="last").key_by("k")
    latest.aggregate("step", last=weir.max("day")).sink("out", weir.Collect())
    early, late = dt.date(2026, 1, 1), dt.date(2026, 2, 1)
    with testing.start(flow) as job:
        job.push("rows", [{"id": 1, "k": "a", "day": early}, {"id": 2, "k": "a", "day": late}])
        job.push("rows", [{"id": 2, "k": "b", "day": late}])
        told = [(row["k"], row["last"], row["_change"]) for row in job.rows("out")]
    assert sorted(told[-3:]) == [
        ("a", early, "update_after"),
        ("a", late, "update_before"),
        ("b", late, "insert"),
    ]
