"""Windows of the last rows of a key, against plain Python."""

import math
import random

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.errors import GraphError

SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("at", pa.int64()),
        ("price", pa.int64()),
        ("rate", pa.float64()),
        ("name", pa.string()),
    ]
)
HIGH = pl.col("price") > 5


def flow_of(rows, slide, parallelism=2, **aggregates):
    flow = weir.Dataflow("shop")
    source = flow.source("orders", weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at"))
    windows = source.key_by("user").count_window(rows, slide)
    windows.aggregate("last", parallelism=parallelism, **aggregates).sink("out", weir.Collect())
    return flow


def orders(count, seed=1):
    made = random.Random(seed)
    return [
        {
            "user": made.choice(["ann", "bob", "cy"]),
            "at": made.randrange(1000),
            "price": made.choice([None, *range(12)]),
            "rate": made.choice([None, 0.5, -2.0, 7.25]),
            "name": made.choice([None, "", "Zoë", "ann", "bo"]),
        }
        for _ in range(count)
    ]


def expected(given, rows, slide):
    told, kept = [], {}
    for row in given:
        all_rows = kept.setdefault(row["user"], [])
        all_rows.append(row)
        if len(all_rows) % slide == 0:
            told.append(result_of(row["user"], all_rows[-rows:]))
    return told


def result_of(user, rows):
    prices = [row["price"] for row in rows if row["price"] is not None]
    names = [row["name"] for row in rows if row["name"] is not None]
    named = sorted((row for row in rows if row["name"] is not None), key=lambda row: row["at"])
    rates = [row["rate"] for row in rows if row["rate"] is not None]
    return {
        "user": user,
        "window_start": min(row["at"] for row in rows),
        "window_end": max(row["at"] for row in rows) + 1,
        "n": len(rows),
        "high": sum(price > 5 for price in prices),
        "total": sum(prices) if prices else None,
        "rate": math.fsum(rates) / len(rates) if rates else None,
        "least": min(names, default=None),
        "first": named[0]["name"] if named else None,
        "last": named[-1]["name"] if named else None,
        "largest": sorted(names, reverse=True)[:2],
        "prices": sorted((price for price in prices if price > 5), reverse=True)[:3],
        "different": len(set(names)),
        "median": sorted(prices)[(len(prices) - 1) // 2] if prices else None,
    }


AGGREGATES = {
    "n": weir.count(),
    "high": weir.count().where(HIGH),
    "total": weir.sum("price"),
    "rate": weir.mean("rate"),
    "least": weir.min("name"),
    "first": weir.first("name"),
    "last": weir.last("name"),
    "largest": weir.largest("name", 2),
    "prices": weir.largest("price", 3).where(HIGH),
    "different": weir.count_distinct("name"),
    "median": weir.quantile("price", 0.5),
}


@pytest.mark.parametrize(("rows", "slide"), [(5, 2), (4, 4), (7, 1), (6, None), (1, 1), (200, 150)])
def test_the_last_rows_of_each_key_equal_plain_python(rows, slide):
    given = orders(120)
    with testing.start(flow_of(rows, slide, **AGGREGATES), {"orders": []}) as job:
        for start in range(0, 60, 6):
            job.push("orders", given[start : start + 6])
        job.checkpoint()
        job.restart()
        job.push("orders", given[60:])
        told = job.finish()["out"]
    wanted = expected(given, rows, slide or rows)
    for user in ("ann", "bob", "cy"):
        found = [row for row in told if row["user"] == user]
        assert found == [row for row in wanted if row["user"] == user]


@pytest.mark.parametrize("window", [weir.tumbling(100), weir.sliding(300, 100), weir.session(30)])
def test_aggregates_of_texts_in_windows_by_time_equal_plain_python(window):
    flow = weir.Dataflow("shop")
    source = flow.source("orders", weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at"))
    source.key_by("user").window(window).aggregate("texts", parallelism=2, **AGGREGATES).sink(
        "out", weir.Collect()
    )
    given = orders(60)
    with testing.start(flow, {"orders": []}) as job:
        job.push("orders", given[:40])
        job.checkpoint()
        job.restart()
        job.push("orders", given[40:])
        told = job.finish()["out"]
    found = {(row["user"], row["window_start"], row["window_end"]): row for row in told}
    assert len(found) == len(told)
    wanted = {}
    for user in ("ann", "bob", "cy"):
        rows = sorted((row for row in given if row["user"] == user), key=lambda row: row["at"])
        for start, end, inside in bounds_of(window, rows):
            bounds = {"window_start": start, "window_end": end}
            wanted[user, start, end] = {**result_of(user, inside), **bounds}
    assert found == wanted


@pytest.mark.parametrize("window", [weir.tumbling(100), weir.session(30)])
def test_texts_of_windows_with_late_rows_are_told_until_they_equal_plain_python(window):
    flow = weir.Dataflow("shop")
    events = weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at")
    source = flow.source("orders", events, watermark=weir.bounded_out_of_orderness("0ms"))
    windows = source.key_by("user").window(window, allowed_lateness="1s")
    windows.aggregate("texts", parallelism=2, **AGGREGATES).sink("out", weir.Collect())
    given = orders(60)
    with testing.start(flow, watermarks="follow_rows") as job:
        for start in range(0, 60, 6):
            job.push("orders", given[start : start + 6])
            if start == 30:
                job.restart()
        told = job.finish()["out"]
    wanted = 0
    for user in ("ann", "bob", "cy"):
        found = [row for row in told if row["user"] == user]
        # Of equal times the first or the last that came.
        rows = sorted((row for row in given if row["user"] == user), key=lambda row: row["at"])
        for start, end, inside in bounds_of(window, rows):
            within = [row for row in found if start <= row["window_start"] and row["window_end"] <= end]
            bounds = {"window_start": start, "window_end": end}
            assert within[-1] == {**result_of(user, inside), **bounds}
            wanted += 1
    assert len(told) > wanted


def bounds_of(window, rows):
    """Start, end and rows of each window of one key, whose rows are in the order of time."""
    if window.kind == "session":
        sessions = []
        for row in rows:
            if not sessions or row["at"] - sessions[-1][-1]["at"] > window.size_ms:
                sessions.append([])
            sessions[-1].append(row)
        return [(each[0]["at"], each[-1]["at"] + window.size_ms, each) for each in sessions]
    starts = range(-window.size_ms, 1000, window.step_ms)
    found = [
        (start, start + window.size_ms, [row for row in rows if start <= row["at"] < start + window.size_ms])
        for start in starts
    ]
    return [each for each in found if each[2]]


def test_a_sum_that_passes_64_bits_is_told():
    given = [{"user": "ann", "at": 1, "price": 2**62, "rate": None, "name": None}] * 2
    with pytest.raises(weir.WeirError, match="passes 64 bits"):
        testing.run(flow_of(2, 2, total=weir.sum("price")), {"orders": given})


@pytest.mark.parametrize(
    ("rows", "slide", "aggregates", "message"),
    [
        (0, None, {"n": weir.count()}, "rows is 0; it must be a whole number from 1 to 100,000"),
        (3, True, {"n": weir.count()}, "slide is True"),
        (3, 4, {"n": weir.count()}, "slide 4 is larger than rows 3"),
        (3, 1, {}, "give at least one aggregate"),
        (3, 1, {"n": weir.sum("name")}, "the column is string, not a number"),
        (3, 1, {"n": weir.max("nam")}, "there is no such column; did you mean 'name'"),
        (3, 1, {"user": weir.count()}, "output column 'user' exists already"),
    ],
)
def test_what_cannot_work_is_refused_when_the_graph_is_built(rows, slide, aggregates, message):
    with pytest.raises(GraphError, match=message):
        flow_of(rows, slide, **aggregates)


@pytest.mark.parametrize(
    ("window", "more", "message"),
    [
        (weir.tumbling(10), {"early": weir.every("1s")}, "leave out early, results"),
        (weir.session(10), {"allowed_lateness": 5, "results": "changelog"}, "leave out early, results"),
        (weir.tumbling(10), {"allowed_lateness": 5, "results": "discarding"}, "leave out early, results"),
        (weir.global_window(), {"early": weir.every(rows=2)}, "of all rows of a window when it is complete"),
    ],
)
def test_texts_do_not_go_with_results_before_a_window_is_complete(window, more, message):
    flow = weir.Dataflow("shop")
    source = flow.source("orders", weir.JsonLines("orders.jsonl", schema=SCHEMA, event_time="at"))
    with pytest.raises(GraphError, match=message):
        source.key_by("user").window(window, **more).aggregate("texts", least=weir.min("name"))
