"""Windows in jobs of one process: results, late rows, restarts, and jobs that are refused."""

import datetime as dt

import polars as pl
import pytest

import weir
from weir import testing
from weir.dataflow.streams import WindowResults
from weir.errors import GraphError, WeirError

SCHEMA = {"user": str, "at": int, "n": int}


def flow_of(window, *, parallelism=1, **aggregates):
    flow = weir.Dataflow("windowed")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    windowed = events.key_by("user").window(window)
    aggregates = aggregates or {"rows": weir.count(), "total": weir.sum("n")}
    windowed.aggregate("windows", parallelism=parallelism, **aggregates).sink("out", weir.Collect())
    return flow


def event(user, at, n=1):
    return {"user": user, "at": at, "n": n}


def told(job):
    return [tuple(row.values()) for row in job.rows("out")]


def test_a_tumbling_window_fires_when_the_watermark_reaches_its_end():
    with testing.start(flow_of(weir.tumbling("10ms")), {"events": []}) as job:
        job.push("events", [event("ann", 1), event("ann", 9, 5), event("bob", 10), event("ann", -3)])
        job.advance_watermark("events", 9)
        assert told(job) == [("ann", -10, 0, 1, 1)]
        job.advance_watermark("events", 10)
        assert told(job)[1:] == [("ann", 0, 10, 2, 6)]
        # Late for its window, and the others are not.
        job.push("events", [event("ann", 9), event("bob", 12)])
        result = job.finish()
    assert [tuple(row.values()) for row in result["out"]][2:] == [("bob", 10, 20, 2, 2)]


def test_late_rows_may_be_dead_letters_which_do_not_fail_the_job_however_many_they_are():
    flow = weir.Dataflow("late")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    windows = events.key_by("user").window(weir.tumbling(10)).aggregate("windows", n=weir.count())
    windows.sink("out", weir.Collect())
    late = windows.side_output("late")
    late.sink("late_rows", weir.DeadLetters("late for its window"))
    with testing.start(flow, {"events": []}) as job:
        job.advance_watermark("events", 20)
        job.push("events", [event("ann", at) for at in range(21)])
        result = job.finish()
    assert [tuple(row.values()) for row in result["out"]] == [("ann", 20, 30, 1)]
    assert {letter.step for letter in result.dead_letters} == {"late_rows"}
    assert [letter.reason for letter in result.dead_letters] == ["late for its window"] * 20
    assert result.dead_letters[3].raw == '{"user":"ann","at":3,"n":1}'
    for reason in ("", "two\nlines", 3):
        with pytest.raises(GraphError, match="give a line of text"):
            late.sink("wrong", weir.DeadLetters(reason))


@pytest.mark.parametrize("kind", ["sliding", "cumulative"])
def test_windows_share_panes(kind):
    window = weir.sliding(20, 10) if kind == "sliding" else weir.cumulative(20, 10)
    with testing.start(flow_of(window, parallelism=2), {"events": []}) as job:
        job.push("events", [event("ann", 1), event("ann", 15, 2), event("ann", 31, 4)])
        job.advance_watermark("events", 31)
        first = [("ann", 0, 10, 1, 1), ("ann", 0, 20, 2, 3)]
        if kind == "sliding":
            first = [("ann", -10, 10, 1, 1), ("ann", 0, 20, 2, 3), ("ann", 10, 30, 1, 2)]
        assert told(job) == first
        last = [tuple(row.values()) for row in job.finish()["out"]][len(first) :]
    sliding = [("ann", 20, 40, 1, 4), ("ann", 30, 50, 1, 4)]
    assert last == (sliding if kind == "sliding" else [("ann", 20, 40, 1, 4)])


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_a_job_that_starts_again_fires_no_window_twice_and_takes_no_late_row(state):
    with testing.start(flow_of(weir.tumbling(10)), {"events": []}, state=state) as job:
        job.push("events", [event("ann", 1), event("ann", 12)])
        job.advance_watermark("events", 10)
        savepoint = job.savepoint()
    flow = flow_of(weir.tumbling(10), parallelism=2)
    with testing.start(flow, {"events": []}, state=state, from_savepoint=savepoint) as job:
        # The watermark begins anew; the windows do not.
        job.push("events", [event("ann", 2), event("ann", 14, 7)])
        job.advance_watermark("events", 11)
        assert told(job) == []
        assert [tuple(row.values()) for row in job.finish()["out"]] == [("ann", 10, 20, 2, 8)]


def test_a_job_with_other_windows_does_not_read_the_state():
    with testing.start(flow_of(weir.tumbling(10)), {"events": [event("ann", 1)]}) as job:
        savepoint = job.savepoint()
    for window, aggregates, message in (
        (weir.tumbling(20), {}, "has window"),
        (weir.tumbling(10), {"rows": weir.count()}, "holds aggregates that the job has not got: total=sum"),
    ):
        with pytest.raises(WeirError, match=message):
            testing.start(flow_of(window, **aggregates), {"events": []}, from_savepoint=savepoint)


def test_conditions_and_nulls():
    flow = flow_of(
        weir.tumbling(10),
        odd=weir.count().where(pl.col("n") % 2 == 1),
        large=weir.sum("n").where(pl.col("n") > 100),
        rows=weir.count(),
    )
    with testing.start(flow, {"events": [event("ann", 1, 3), event("ann", 2, 4)]}) as job:
        assert [tuple(row.values()) for row in job.finish()["out"]] == [("ann", 0, 10, 1, None, 2)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weir.tumbling(0), "size is 0"),
        (lambda: weir.tumbling("-5s"), "not a duration"),
        (lambda: weir.tumbling(-5), "size is -5"),
        (lambda: weir.tumbling("10s", offset="10s"), "offset is '10s'"),
        (lambda: weir.tumbling("10s", time="wall"), "time is 'wall'"),
        (lambda: weir.sliding("10s", "20s"), "slide '20s' is larger"),
        (lambda: weir.sliding("10s", "3s"), "not a multiple"),
        (lambda: weir.sliding("10d", 1), "at most 100,000"),
        (lambda: weir.cumulative("10s", dt.timedelta(seconds=4)), "not a multiple"),
        (lambda: flow_of("10s"), "expected a window"),
        (lambda: flow_of(weir.tumbling(1), s=weir.sum("user")), "not a number"),
        (lambda: flow_of(weir.tumbling(1), s=weir.sum("absent")), "no such column"),
        (lambda: flow_of(weir.tumbling(1), window_end=weir.count()), "exists already"),
        (lambda: flow_of(weir.tumbling(1), s=weir.count().where(pl.col("n") + 1)), "not Boolean"),
        (lambda: flow_of(weir.tumbling(1), s=3), "needs an aggregate"),
        (lambda: weir.count().where("n > 3"), "Polars expression"),
    ],
)
def test_what_cannot_work_is_refused_when_the_graph_is_built(make, message):
    with pytest.raises(GraphError, match=message):
        make()


def test_windows_by_event_time_do_not_follow_windows_by_the_clock():
    flow = weir.Dataflow("windowed")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    by_clock = events.key_by("user").window(weir.tumbling(10, time="processing"))
    counted = by_clock.aggregate("clock", n=weir.count())
    counted.key_by("user").window(weir.tumbling(10)).aggregate("event", n=weir.count()).sink(
        "out", weir.Collect()
    )
    with pytest.raises(GraphError, match="by the clock"):
        flow.build()


def test_windows_by_the_clock_fire_when_it_reaches_their_end():
    with testing.start(flow_of(weir.tumbling(1000, time="processing")), {"events": []}) as job:
        now_ms = job.clock.now_us() // 1000
        job.push("events", [event("ann", 1), event("ann", 10**9)])
        end_ms = now_ms - now_ms % 1000 + 1000
        job.advance_time(end_ms - now_ms - 1)
        assert told(job) == []
        job.advance_time(1)
        assert told(job) == [("ann", end_ms - 1000, end_ms, 2, 2)]


def top_flow(*, ties, rows=1, parallelism=2):
    flow = weir.Dataflow("hot")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    counted = (
        events.key_by("user").window(weir.sliding(20, 10)).aggregate("counted", n=weir.count(), parallelism=3)
    )
    counted.window_top("hottest", by="n", rows=rows, ties=ties, parallelism=parallelism).sink(
        "out", weir.Collect()
    )
    return flow


@pytest.mark.parametrize("ties", [False, True])
def test_the_largest_rows_of_each_window_over_all_keys(ties):
    events = [event(user, at) for user, at in (("a", 1), ("b", 2), ("b", 3), ("c", 12), ("c", 13), ("d", 14))]
    with testing.start(top_flow(ties=ties), {"events": []}) as job:
        job.push("events", events)
        job.advance_watermark("events", 10)
        assert told(job) == [("b", -10, 10, 2)]
        savepoint = job.savepoint()
    with testing.start(top_flow(ties=ties, parallelism=1), {"events": []}, from_savepoint=savepoint) as job:
        rows = sorted(tuple(row.values()) for row in job.finish()["out"])
    second = [("b", 0, 20, 2), ("c", 0, 20, 2)] if ties else [("b", 0, 20, 2)]
    assert rows == sorted([*second, ("c", 10, 30, 2)])


def test_the_largest_rows_do_not_depend_on_how_rows_are_divided():
    events = [event(f"user{i * 7 % 40}", i % 37) for i in range(900)]
    found = set()
    for parallelism in (1, 3):
        with testing.start(top_flow(ties=False, rows=3, parallelism=parallelism), {"events": events}) as job:
            found.add(tuple(sorted(tuple(row.values()) for row in job.finish()["out"])))
    (rows,) = found
    assert [row[1] for row in rows].count(0) == 3


@pytest.mark.parametrize(
    ("arguments", "message"), [({"by": "m"}, "no column 'm'"), ({"by": "n", "rows": 0}, "rows is 0")]
)
def test_a_top_that_cannot_work_is_refused(arguments, message):
    flow = weir.Dataflow("hot")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    counted = events.key_by("user").window(weir.tumbling(10)).aggregate("counted", n=weir.count())
    with pytest.raises(GraphError, match=message):
        counted.window_top("hottest", **arguments)


def test_sessions_merge_and_close_gaps_and_fire_when_they_are_over():
    with testing.start(flow_of(weir.session(10), parallelism=2), {"events": []}) as job:
        job.push("events", [event("ann", 1), event("ann", 11, 2), event("ann", 31, 4), event("bob", 5)])
        job.advance_watermark("events", 15)
        assert told(job) == []
        # It closes the gap.
        job.push("events", [event("ann", 21, 8)])
        job.advance_watermark("events", 16)
        assert told(job) == [("bob", 5, 15, 1, 1)]
        job.advance_watermark("events", 41)
        assert told(job)[1:] == []
        # The watermark has passed it, but its session is open.
        job.push("events", [event("ann", 34, 16), event("ann", 31, 32), event("bob", 31)])
        job.advance_watermark("events", 45)
        assert sorted(told(job)[1:]) == [("ann", 1, 44, 6, 63), ("bob", 31, 41, 1, 1)]
        job.push("events", [event("ann", 34)])
        assert len(job.finish()["out"]) == 3


@pytest.mark.parametrize("window", [weir.tumbling(10), weir.session(10)], ids=["tumbling", "session"])
def test_late_rows_leave_by_the_side_output_with_all_their_columns(window):
    flow = weir.Dataflow("windowed")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    counted = events.key_by("user").window(window).aggregate("windows", n=weir.count())
    counted.sink("out", weir.Collect())
    counted.side_output("late").sink("late", weir.Collect())
    with testing.start(flow, {"events": []}) as job:
        job.advance_watermark("events", 30)
        job.push("events", [event("ann", 9, 7), event("ann", 31)])
        result = job.finish()
    assert [tuple(row.values()) for row in result["late"]] == [("ann", 9, 7)]
    assert [row["n"] for row in result["out"]] == [1]


@pytest.mark.parametrize(
    ("by", "ties", "message"),
    [
        ("tags", True, "it goes by column 'tags', which is list<item: int64> and has no order"),
        ("at", False, "equal rows go by column 'tags', which is list"),
    ],
)
def test_what_has_no_order_is_refused_when_the_graph_is_built(by, ties, message):
    flow = weir.Dataflow("top")
    schema = {"at": int, "tags": pl.List(pl.Int64), "window_start": int, "window_end": int}
    rows = flow.source("rows", weir.JsonLines("in", schema=schema), event_time="at")
    results = WindowResults(rows.flow, rows.node)
    with pytest.raises(weir.GraphError, match=f"step 'best.part': {message}"):
        results.window_top("best", by=by, ties=ties)
    assert ties is False or results.window_top("other", by="at", ties=True)
