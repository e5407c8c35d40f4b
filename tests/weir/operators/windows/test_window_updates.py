"""Results before windows are complete, and again for late rows."""

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError, WeirError

SCHEMA = {"user": str, "at": int, "n": int}


def flow_of(window, *, parallelism=1, aggregates=None, **options):
    flow = weir.Dataflow("updated")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    windowed = events.key_by("user").window(window, **options)
    aggregates = aggregates or {"rows": weir.count(), "total": weir.sum("n")}
    results = windowed.aggregate("windows", parallelism=parallelism, **aggregates)
    results.sink("out", weir.Collect())
    if window.kind != "global" and window.time == "event":
        results.side_output("late").sink("late", weir.Collect())
    return flow


def event(user, at, n=1):
    return {"user": user, "at": at, "n": n}


def told(job):
    return [tuple(row.values()) for row in job.rows("out")]


class Told:
    """What a job has told since the last look."""

    def __init__(self, job):
        self.job, self.seen = job, 0

    def __call__(self):
        rows = told(self.job)
        new, self.seen = rows[self.seen :], len(rows)
        return sorted(new)


@pytest.mark.parametrize("results", ["accumulating", "discarding"])
def test_late_rows_within_the_allowed_lateness_are_told(results):
    flow = flow_of(weir.tumbling(10), allowed_lateness=5, results=results)
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("bob", 2)])
        job.advance_watermark("events", 10)
        assert new() == [("ann", 0, 10, 1, 1), ("bob", 0, 10, 1, 1)]
        job.push("events", [event("ann", 3, 5), event("ann", 4, 5), event("ann", 11)])
        # Each late row is told, whatever batch it comes in.
        each = [("ann", 0, 10, 2, 6), ("ann", 0, 10, 3, 11)]
        assert new() == (each if results == "accumulating" else [("ann", 0, 10, 1, 5)] * 2)
        job.advance_watermark("events", 14)
        job.push("events", [event("cy", 9)])
        assert new() == [("cy", 0, 10, 1, 1)]
        job.advance_watermark("events", 15)
        job.push("events", [event("ann", 9)])
        assert new() == []
        assert [row["at"] for row in job.rows("late")] == [9]
        job.finish()
        assert new() == [("ann", 10, 20, 1, 1)]


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_late_rows_update_all_sliding_windows_that_have_left(state):
    flow = flow_of(weir.sliding(20, 10), allowed_lateness=20)
    with testing.start(flow, {"events": []}, state=state) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("ann", 12, 2), event("bob", 12)])
        job.advance_watermark("events", 20)
        assert new() == [("ann", -10, 10, 1, 1), ("ann", 0, 20, 2, 3), ("bob", 0, 20, 1, 1)]
        job.push("events", [event("ann", 3, 5)])
        assert new() == [("ann", -10, 10, 2, 6), ("ann", 0, 20, 3, 8)]
        savepoint = job.savepoint()
    with testing.start(flow, {"events": []}, state=state, from_savepoint=savepoint) as job:
        new = Told(job)
        # The window that ends at 10 has closed; this row belongs to two more.
        job.advance_watermark("events", 31)
        assert new() == [("ann", 10, 30, 1, 2), ("bob", 10, 30, 1, 1)]
        job.push("events", [event("ann", 3, 7)])
        assert new() == [("ann", 0, 20, 4, 15)]
        job.finish()
        assert new() == []


@pytest.mark.parametrize("window", [weir.tumbling(20), weir.sliding(20, 10)])
def test_values_that_are_kept_apart_are_told_again(window):
    aggregates = {"users": weir.count_distinct("n"), "middle": weir.quantile("n", 0.5)}
    flow = flow_of(window, allowed_lateness=20, early=weir.every("1s"), aggregates=aggregates)
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 11, 1), event("ann", 12, 1)])
        job.advance_time(1000)
        assert ("ann", 0, 20, 1) in [row[:4] for row in new()]
        job.push("events", [event("ann", 13, 5)])
        job.advance_watermark("events", 20)
        assert [row[:4] for row in new()] == [("ann", 0, 20, 2)]
        job.push("events", [event("ann", 14, 7), event("ann", 15, 5)])
        # Each late row is told.
        _, row = new()
        assert row[:4] == ("ann", 0, 20, 3)
        assert row[4] == pytest.approx(5, rel=0.05)


@pytest.mark.parametrize("state", ["memory", "rocksdb"])
def test_late_rows_prolong_and_join_sessions_that_have_left(state):
    flow = flow_of(weir.session(10), allowed_lateness=30, results="changelog")
    with testing.start(flow, {"events": []}, state=state) as job:
        job.push("events", [event("ann", 1), event("ann", 20), event("bob", 2), event("ann", 39)])
        job.advance_watermark("events", 31)
        both = [("ann", 1, 11, 1, 1, "insert"), ("ann", 20, 30, 1, 1, "insert")]
        assert sorted(told(job)) == [*both, ("bob", 2, 12, 1, 1, "insert")]
        # Two that have left become one that is complete: told at once.
        job.push("events", [event("ann", 10, 5)])
        assert told(job)[3:] == [
            ("ann", 1, 11, 1, 1, "delete"),
            ("ann", 20, 30, 1, 1, "update_before"),
            ("ann", 1, 30, 3, 7, "update_after"),
        ]
        # Now it goes on to one that is open: told at its end.
        job.push("events", [event("ann", 30, 9)])
        assert len(told(job)) == 6
        savepoint = job.savepoint()
    with testing.start(flow, {"events": []}, state=state, from_savepoint=savepoint) as job:
        job.advance_watermark("events", 43)
        # A row is late by itself, also if its session is still open.
        job.push("events", [event("ann", 2)])
        assert [row["at"] for row in job.rows("late")] == [2]
        job.advance_watermark("events", 50)
        changes = [("ann", 1, 30, 3, 7, "update_before"), ("ann", 1, 49, 5, 17, "update_after")]
        assert told(job) == changes
        job.push("events", [event("ann", 15)])
        assert told(job)[2:] == [
            ("ann", 1, 49, 5, 17, "update_before"),
            ("ann", 1, 49, 6, 18, "update_after"),
        ]
        job.finish()
        assert len(told(job)) == 4


@pytest.mark.parametrize("results", ["accumulating", "discarding"])
def test_sessions_tell_what_late_rows_add(results):
    flow = flow_of(weir.session(10), allowed_lateness=20, results=results)
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("ann", 8, 2)])
        job.advance_watermark("events", 19)
        assert new() == [("ann", 1, 18, 2, 3)]
        job.push("events", [event("ann", 5, 4), event("ann", 0, 8)])
        assert new() == (
            [("ann", 0, 18, 4, 15), ("ann", 1, 18, 3, 7)]
            if results == "accumulating"
            else [("ann", 0, 18, 1, 8), ("ann", 1, 18, 1, 4)]
        )
        job.advance_watermark("events", 39)
        job.push("events", [event("ann", 8)])
        assert (len(new()), [row["at"] for row in job.rows("late")]) == (0, [8])


def test_values_of_sessions_that_are_kept_apart_are_told_again():
    flow = flow_of(weir.session(10), allowed_lateness=20, aggregates={"users": weir.count_distinct("n")})
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1, 1), event("ann", 8, 2)])
        job.advance_watermark("events", 19)
        job.push("events", [event("ann", 5, 1), event("ann", 6, 4)])
        assert new() == [("ann", 1, 18, 2), ("ann", 1, 18, 2), ("ann", 1, 18, 3)]


def test_sessions_with_another_lateness_do_not_read_the_state():
    window = weir.session(10)
    with testing.start(
        flow_of(window, allowed_lateness=5), {"events": [event("ann", 1)]}, state="memory"
    ) as job:
        savepoint = job.savepoint()
    with pytest.raises(WeirError, match="has allowed_lateness_ms 5; the job now needs 7"):
        testing.start(flow_of(window, allowed_lateness=7), {"events": []}, from_savepoint=savepoint)
    with testing.start(flow_of(window, allowed_lateness=5), {"events": []}, from_savepoint=savepoint) as job:
        assert [tuple(row.values()) for row in job.finish()["out"]] == [("ann", 1, 11, 1, 1)]


def test_early_results_by_the_clock_only_of_what_has_changed():
    flow = flow_of(weir.tumbling(10_000), early=weir.every("1s"))
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("bob", 2)])
        assert new() == []
        job.advance_time(1000)
        assert new() == [("ann", 0, 10_000, 1, 1), ("bob", 0, 10_000, 1, 1)]
        job.push("events", [event("ann", 1, 4)])
        job.advance_time(1000)
        assert new() == [("ann", 0, 10_000, 2, 5)]
        job.advance_time(5000)
        assert new() == []
        job.advance_watermark("events", 10_000)
        assert new() == [("ann", 0, 10_000, 2, 5), ("bob", 0, 10_000, 1, 1)]


def test_early_results_of_sliding_windows_by_event_time():
    flow = flow_of(weir.sliding(20, 10), early=weir.every("5ms", time="event"))
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("bob", 12)])
        job.advance_watermark("events", 4)
        new()
        job.push("events", [event("ann", 6)])
        job.advance_watermark("events", 5)
        assert new() == [("ann", -10, 10, 2, 2), ("ann", 0, 20, 2, 2)]
        job.advance_watermark("events", 9)
        assert new() == []
        job.advance_watermark("events", 10)
        assert new() == [("ann", -10, 10, 2, 2)]


@pytest.mark.parametrize("results", ["accumulating", "discarding"])
def test_sessions_are_told_before_and_after_a_row_makes_two_of_them_one(results):
    flow = flow_of(weir.session(10_000), early=weir.every("1s"), results=results)
    accumulates = results == "accumulating"
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1_000), event("ann", 20_000, 2), event("bob", 2_000)])
        job.advance_time(1000)
        assert new() == [
            ("ann", 1_000, 11_000, 1, 1),
            ("ann", 20_000, 30_000, 1, 2),
            ("bob", 2_000, 12_000, 1, 1),
        ]
        job.push("events", [event("ann", 10_500, 5), event("cy", 1)])
        savepoint = job.savepoint()
    with testing.start(flow, {"events": []}, from_savepoint=savepoint) as job:
        new = Told(job)
        job.advance_time(1000)
        whole = (3, 8) if accumulates else (1, 5)
        assert new() == [("ann", 1_000, 30_000, *whole), ("cy", 1, 10_001, 1, 1)]
        job.advance_time(5000)
        assert new() == []
        job.advance_watermark("events", 30_001)
        last = [("ann", 1_000, 30_000, 3, 8), ("bob", 2_000, 12_000, 1, 1), ("cy", 1, 10_001, 1, 1)]
        assert new() == (last if accumulates else [])
        job.push("events", [event("ann", 15_000)])
        assert [row["at"] for row in job.rows("late")] == [15_000]


def test_sessions_by_the_clock_are_told_early():
    flow = flow_of(weir.session("10s", time="processing"), early=weir.every("3s"))
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("bob", 2)])
        job.advance_time(3000)
        assert [row[0] for row in new()] == ["ann", "bob"]
        job.push("events", [event("ann", 2, 4)])
        job.advance_time(3000)
        assert [(row[0], *row[3:]) for row in new()] == [("ann", 2, 5)]
        job.advance_time(20_000)
        assert [(row[0], *row[3:]) for row in new()] == [("ann", 2, 5), ("bob", 1, 1)]


def test_what_was_told_early_is_not_told_again_after_a_restart_and_the_rest_is():
    options = {"early": weir.every("1s"), "results": "discarding"}
    with testing.start(flow_of(weir.tumbling(10_000), **options), {"events": []}, state="rocksdb") as job:
        new = Told(job)
        job.push("events", [event(f"user {number}", 1) for number in range(20)])
        job.advance_time(1000)
        assert len(new()) == 20
        job.push("events", [event(f"user {number}", 2, 7) for number in range(0, 20, 2)])
        savepoint = job.savepoint()
    flow = flow_of(weir.tumbling(10_000), parallelism=3, **options)
    with testing.start(flow, {"events": []}, state="rocksdb", from_savepoint=savepoint) as job:
        new = Told(job)
        job.advance_time(1000)
        expected = sorted((f"user {number}", 0, 10_000, 1, 7) for number in range(0, 20, 2))
        assert new() == expected
        job.push("events", [event("user 3", 3, 5)])
        job.finish()
        assert new() == [("user 3", 0, 10_000, 1, 5)]


@pytest.mark.parametrize("results", ["accumulating", "discarding"])
def test_every_so_many_rows_exactly(results):
    flow = flow_of(weir.global_window(), early=weir.every(rows=3), results=results)
    events = [event("ann", at, at) for at in range(8)] + [event("bob", 1)]
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", events[:2])
        job.push("events", events[2:])
        if results == "discarding":
            assert new() == [("ann", 0, 3, 3, 3), ("ann", 3, 6, 3, 12)]
        else:
            assert new() == [("ann", 0, 3, 3, 3), ("ann", 0, 6, 6, 15)]
        savepoint = job.savepoint()
    flow = flow_of(weir.global_window(), early=weir.every(rows=3), results=results, parallelism=2)
    with testing.start(flow, {"events": []}, from_savepoint=savepoint) as job:
        new = Told(job)
        job.push("events", [event("ann", 8, 8)])
        assert new() == [("ann", 6, 9, 3, 21) if results == "discarding" else ("ann", 0, 9, 9, 36)]
        job.finish()
        assert new() == [("bob", 1, 2, 1, 1)]


def test_a_row_may_make_its_window_tell():
    flow = flow_of(weir.global_window(), early=weir.every(where=pl.col("n") > 9), results="discarding")
    with testing.start(flow, {"events": []}) as job:
        new = Told(job)
        job.push("events", [event("ann", 1), event("bob", 2), event("ann", 3, 10)])
        assert new() == [("ann", 1, 4, 2, 11)]
        job.push("events", [event("ann", 5, 4)])
        assert new() == []
        job.finish()
        assert new() == [("ann", 5, 6, 1, 4), ("bob", 2, 3, 1, 1)]


def test_updates_as_changes():
    flow = flow_of(weir.tumbling(10), early=weir.every(rows=2), allowed_lateness=5, results="changelog")
    with testing.start(flow, {"events": []}) as job:
        job.push("events", [event("ann", 1), event("ann", 2), event("bob", 3)])
        assert told(job) == [("ann", 0, 10, 2, 2, "insert")]
        job.push("events", [event("ann", 4, 5)])
        job.advance_watermark("events", 10)
        assert sorted(told(job)[1:]) == [
            ("ann", 0, 10, 2, 2, "update_before"),
            ("ann", 0, 10, 3, 7, "update_after"),
            ("bob", 0, 10, 1, 1, "insert"),
        ]
        job.push("events", [event("bob", 4, 5)])
        assert told(job)[4:] == [("bob", 0, 10, 1, 1, "update_before"), ("bob", 0, 10, 2, 6, "update_after")]
        rows = job.finish()["out"].to_polars()
    assert sorted(testing.folded(rows).rows()) == [("ann", 0, 10, 3, 7), ("bob", 0, 10, 2, 6)]


def test_a_job_with_other_results_does_not_read_the_state():
    window = weir.tumbling(10)
    with testing.start(flow_of(window), {"events": [event("ann", 1)]}) as job:
        savepoint = job.savepoint()
    with pytest.raises(WeirError, match="has told none"):
        testing.start(flow_of(window, early=weir.every("1s")), {"events": []}, from_savepoint=savepoint)


@pytest.mark.parametrize("window", [weir.tumbling(10), weir.sliding(20, 10)], ids=["tumbling", "sliding"])
def test_late_rows_find_no_windows_that_left_before_a_job_took_late_rows(window):
    """They would begin them anew, and tell them with themselves alone."""
    with testing.start(flow_of(window, allowed_lateness=5), {"events": [event("ann", 1)]}) as job:
        savepoint = job.savepoint()
    with testing.start(flow_of(window, allowed_lateness=3), {"events": []}, from_savepoint=savepoint) as job:
        shorter = job.savepoint()
    for before, after in ((savepoint, 6), (shorter, 5)):
        with pytest.raises(WeirError, match="the job now takes late rows for"):
            testing.start(flow_of(window, allowed_lateness=after), {"events": []}, from_savepoint=before)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: flow_of(weir.tumbling(10), allowed_lateness=-1), "allowed_lateness is -1"),
        (lambda: flow_of(weir.tumbling(10), allowed_lateness="soon"), "not a duration"),
        (lambda: flow_of(weir.tumbling(10, time="processing"), allowed_lateness=1), "no late rows"),
        (lambda: flow_of(weir.tumbling(10), early="1s"), "early takes"),
        (lambda: flow_of(weir.tumbling(10), results="both"), "results is 'both'"),
        (lambda: flow_of(weir.tumbling(10), results="discarding"), "one result"),
        (lambda: flow_of(weir.sliding(20, 10), allowed_lateness=1, results="changelog"), "share their rows"),
        (lambda: flow_of(weir.sliding(20, 10), early=weir.every(rows=3)), "by time"),
        (lambda: flow_of(weir.session(10), early=weir.every(rows=3)), "by time"),
        (lambda: flow_of(weir.global_window()), "never ends"),
        (lambda: flow_of(weir.global_window(), early=weir.every("1s"), allowed_lateness=1), "no row is late"),
        (lambda: flow_of(weir.tumbling(10), early=weir.every(where=pl.col("n") + 1)), "not Boolean"),
        (
            lambda: flow_of(
                weir.global_window(),
                early=weir.every("1s"),
                results="discarding",
                aggregates={"n": weir.count_distinct("n")},
            ),
            "different values",
        ),
        (lambda: weir.every(), "only one"),
        (lambda: weir.every("1s", rows=3), "only one"),
        (lambda: weir.every(rows=0), "rows is 0"),
        (lambda: weir.every("0s"), "not a duration"),
        (lambda: weir.every(rows=1, time="event"), "time is 'event'"),
        (lambda: weir.every(where="n > 3"), "Polars expression"),
    ],
)
def test_what_cannot_work_is_refused_when_the_graph_is_built(make, message):
    with pytest.raises(GraphError, match=message):
        make()


def test_the_largest_of_results_that_change_is_refused():
    flow = weir.Dataflow("top")
    events = flow.source("events", weir.JsonLines("/absent", schema=SCHEMA, event_time="at"))
    windowed = events.key_by("user").window(weir.tumbling(10), allowed_lateness=5)
    with pytest.raises(GraphError, match="one result"):
        windowed.aggregate("windows", n=weir.count()).window_top("top", by="n")
