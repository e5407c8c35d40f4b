"""Windows by the calendar of a time zone: bounds where clocks change, against Python's own zones."""

import datetime as dt
import itertools
from zoneinfo import ZoneInfo

import polars as pl
import pytest

import weir
from weir import testing
from weir.sql.calendars import calendar_bounds

HOUR = 3_600_000


def ms(text, zone):
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


@pytest.mark.parametrize(
    ("zone", "noon", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T12:00", 23),
        ("Europe/Berlin", "2026-10-25T12:00", 25),
        ("Europe/Berlin", "2026-07-01T12:00", 24),
        ("America/New_York", "2026-11-01T12:00", 25),
        # The clock went forward at midnight.
        ("America/Sao_Paulo", "2017-10-15T12:00", 23),
        ("Asia/Beirut", "2022-03-27T12:00", 23),
        # It went back at midnight: 23 o'clock was there twice.
        ("America/Sao_Paulo", "2018-02-17T12:00", 25),
        ("Australia/Lord_Howe", "2026-04-05T12:00", 24.5),
        # The 30th was left out.
        ("Pacific/Apia", "2011-12-29T12:00", 24),
    ],
)
def test_days_are_as_long_as_they_are(zone, noon, hours):
    at = ms(noon, zone)
    starts, ends = calendar_bounds(pl.Series([at]), "1d", zone)
    start, end = starts[0], ends[0]
    assert (end - start) / HOUR == hours
    local = [
        dt.datetime.fromtimestamp(t / 1000, ZoneInfo(zone)).date()
        for t in (start - 1, start, at, end - 1, end)
    ]
    assert local[1] == local[2] == local[3]
    assert local[0] < local[1] < local[4]


def test_every_moment_is_in_one_window():
    zone = "Europe/Berlin"
    times = pl.Series(range(ms("2026-01-01T00:00", zone), ms("2027-01-01T00:00", zone), 1_800_000))
    for unit, name in (("1d", "day"), ("1mo", "month"), ("1y", "year"), ("1w", "week")):
        starts, ends = calendar_bounds(times, unit, zone)
        assert ((starts <= times) & (times < ends)).all(), name
        edges = sorted(set(starts) | set(ends))
        assert sorted(set(starts)) == edges[:-1]


def test_the_end_of_a_day_that_comes_again_after_midnight_belongs_to_the_next_day():
    """In Newfoundland clocks went from one minute past midnight to one past eleven; one window follows another."""
    zone = "America/St_Johns"
    times = pl.Series(range(ms("2010-11-06T12:00", zone), ms("2010-11-08T12:00", zone), 30_000))
    starts, ends = calendar_bounds(times, "1d", zone)
    assert ((starts <= times) & (times < ends)).all()
    edges = sorted(set(starts) | set(ends))
    assert [(b - a) / HOUR for a, b in itertools.pairwise(edges)] == [24, 25, 24]


def test_a_day_leaves_when_its_end_has_passed():
    flow = weir.Dataflow("days")
    source = weir.JsonLines("none", schema={"at": int, "v": int}, event_time="at")
    rows = flow.source("t", source, watermark=weir.bounded_out_of_orderness("2s"))
    query = (
        "SELECT window_start, window_end, COUNT(*) AS n, SUM(v) AS s FROM "
        "TUMBLE(t, at, INTERVAL '1' DAY, 'Europe/Berlin') GROUP BY window_start, window_end"
    )
    flow.sql(query, t=rows, step="days").sink("out", weir.Collect())
    start, end = ms("2026-10-25T00:00", "Europe/Berlin"), ms("2026-10-26T00:00", "Europe/Berlin")
    with testing.start(flow, watermarks="follow_rows") as job:
        job.push("t", [{"at": start, "v": 1}, {"at": end - 1, "v": 2}, {"at": end + 1_900, "v": 4}])
        assert job.rows("out").to_dicts() == []
        # Out of order, and not late.
        job.push("t", [{"at": end - 50, "v": 8}])
        job.push("t", [{"at": end + 2_000, "v": 16}])
        assert [tuple(row.values()) for row in job.rows("out").to_dicts()] == [(start, end, 3, 11)]
        # Late.
        job.push("t", [{"at": end - 20_000, "v": 32}])
        result = job.finish()
        assert [row["s"] for row in result["out"].to_dicts()] == [11, 20]
        assert sum(result.late_rows.values()) == 1
