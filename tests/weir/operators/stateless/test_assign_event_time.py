"""The step that gives rows another event time: times, watermarks and dead letters, in a job in this process."""

from __future__ import annotations

import polars as pl
import pytest

import weir
from weir import testing
from weir.errors import GraphError

NOW_MS = 1_700_000_000_000
BOUND = weir.bounded_out_of_orderness("2s")


class Watch(weir.Operator):
    """Notes rows and watermarks in the order in which they come."""

    def __init__(self, seen):
        self._seen = seen

    def process(self, batch):
        self._seen.append(batch.column("_event_time_ms").to_pylist())
        yield batch

    def on_watermark(self, time_ms):
        self._seen.append(time_ms)
        return ()


def run(rows, event_time, watermark=BOUND, keyed=False, parallelism=1):
    seen = []
    flow = weir.Dataflow("job")
    given = flow.source(
        "given",
        weir.JsonLines("unused", schema={"id": int, "at": weir.Nullable(int)}),
        parallelism=parallelism,
    )
    if keyed:
        given = given.key_by("id")
    timed = given.assign_event_time("timed", event_time, watermark=watermark)
    watched = timed.apply("watched", lambda: Watch(seen))
    return seen, testing.run(watched, {"given": rows})


def test_rows_have_the_time_of_the_column_and_watermarks_follow_it():
    rows = [{"id": 1, "at": 10_000}, {"id": 2, "at": 9_000}, {"id": 3, "at": 12_000}]
    seen, result = run([rows[0], *rows[1:]], "at")
    assert result["watched"].to_polars()["id"].to_list() == [1, 2, 3]
    assert seen == [[10_000, 9_000, 12_000], 10_000]


def test_an_expression_and_a_column_are_the_same():
    seconds, _ = run([{"id": 1, "at": 10}], pl.col("at") * 1_000)
    column, _ = run([{"id": 1, "at": 10_000}], "at")
    assert seconds == column == [[10_000], 8_000]


@pytest.mark.parametrize("keyed", [False, True])
def test_rows_with_bad_times_are_put_aside_with_the_reason(keyed):
    far_ms = NOW_MS + 2 * 86_400_000
    rows = [{"id": 1, "at": NOW_MS}, {"id": 2, "at": None}, {"id": 3, "at": far_ms}, {"id": 4, "at": -5}]
    seen, result = run(rows, "at", keyed=keyed)
    assert sorted(result["watched"].to_polars()["id"].to_list()) == [1, 4]
    assert max(item for item in seen if isinstance(item, int)) == NOW_MS - 2_000
    told = {letter.reason.split(";")[0]: letter.raw for letter in result.dead_letters}
    assert told["the event time is null"] == '{"id":2,"at":null}'
    assert told[f"the event time {far_ms} is too far ahead of the clock"] == f'{{"id":3,"at":{far_ms}}}'
    assert {letter.step for letter in result.dead_letters} == {"timed"}


def test_a_watermark_that_would_go_back_changes_nothing():
    class Back(weir.WatermarkGenerator):
        def on_batch(self, batch):
            return {1: 500, 2: 100, 3: 900}[batch.column("id")[0].as_py()]

    flow = weir.Dataflow("job")
    seen = []
    given = flow.source("given", weir.JsonLines("unused", schema={"id": int}))
    timed = given.assign_event_time("timed", pl.col("id"), watermark=weir.custom_watermarks(Back))
    with testing.start(timed.apply("watched", lambda: Watch(seen))) as job:
        for number in (1, 2, 3):
            job.push("given", [{"id": number}])
    assert seen == [[1], 500, [2], [3], 900]


def test_the_second_step_that_assigns_times_counts():
    flow = weir.Dataflow("job")
    seen, before = [], []
    given = flow.source("given", weir.JsonLines("unused", schema={"id": int}))
    first = given.assign_event_time("first", pl.col("id") * 1_000, watermark=BOUND)
    second = first.apply("between", lambda: Watch(before)).assign_event_time(
        "second", pl.col("id"), watermark=BOUND
    )
    testing.run(second.apply("watched", lambda: Watch(seen)), {"given": [{"id": 7_000}]})
    assert before == [[7_000_000], 6_998_000]
    assert seen == [[7_000], 5_000]


def test_times_go_through_an_exchange():
    flow = weir.Dataflow("job")
    seen = []
    given = flow.source("given", weir.JsonLines("unused", schema={"id": int}), parallelism=2)
    timed = given.assign_event_time("timed", pl.col("id") * 1_000, watermark=BOUND)
    counted = timed.key_by("id").count("n", parallelism=1).apply("watched", lambda: Watch(seen))
    rows = testing.PerSubtask([{"id": 10}], [{"id": 20}])
    testing.run(counted, {"given": rows})
    assert next(item for item in seen if isinstance(item, int)) == 8_000


def test_mistakes_are_told_when_the_graph_is_built():
    given = weir.Dataflow("job").source("given", weir.JsonLines("unused", schema={"id": int, "name": str}))
    with pytest.raises(GraphError, match="step 'timed': there is no column 'at'"):
        given.assign_event_time("timed", "at")
    with pytest.raises(GraphError, match="step 'timed': the event time is String; it must be integer ms"):
        given.assign_event_time("timed", "name")
    with pytest.raises(GraphError, match="step 'timed': watermark is 5; write watermark="):
        given.assign_event_time("timed", "id", watermark=5)
