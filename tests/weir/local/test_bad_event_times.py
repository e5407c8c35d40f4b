"""Event times that are null, far in the future or before 1970, in a whole job: each bad one is told, and nothing else
is affected."""

import json
import time

import polars as pl
import pytest

import weir

GOOD = [
    {"k": "a", "at": -7_200_500, "n": 1},
    {"k": "a", "at": -7_199_500, "n": 2},
    {"k": "b", "at": -1, "n": 3},
    {"k": "b", "at": 0, "n": 4},
    {"k": "a", "at": 86_400_000, "n": 5},
]
IN_A_YEAR_MS = int(time.time() * 1e3) + 365 * 86_400_000
BAD = {
    1: ({"k": "a", "at": None, "n": 100}, "null"),
    3: ({"k": "b", "at": IN_A_YEAR_MS, "n": 100}, "too far ahead of the clock"),
    4: ({"k": "b", "at": -(2**61) - 1, "n": 100}, "is no time in ms since 1970"),
}


class GoesBack(weir.WatermarkGenerator):
    """Says the time of the first row, then ever less."""

    def __init__(self):
        self._next_ms = None

    def on_batch(self, batch):
        first = batch.column("_event_time_ms")[0].as_py()
        self._next_ms = first if self._next_ms is None else self._next_ms - 1_000_000
        return self._next_ms


def windows_of(rows, tmp_path, *, at_source, watermark):
    """Results of windows of an hour, and the dead letters."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flow = weir.Dataflow("bad_times")
    schema = {"k": str, "at": weir.Nullable(int), "n": int}
    source = weir.JsonLines(str(path), schema=schema)
    if at_source:
        timed = flow.source("rows", source, event_time="at", watermark=watermark)
    else:
        timed = flow.source("rows", source).assign_event_time("timed", "at", watermark=watermark)
    counts = timed.key_by("k").window(weir.tumbling("1h")).aggregate("sums", total=weir.sum("n"))
    counts.sink("out", weir.Collect())
    result = weir.run(flow)
    return sorted(map(tuple, result["out"].to_polars().rows())), result.dead_letters


@pytest.mark.parametrize("watermark", [None, weir.custom_watermarks(GoesBack)], ids=["default", "goes back"])
@pytest.mark.parametrize("at_source", [True, False])
def test_bad_times_are_dead_letters_and_the_results_are_those_without_them(tmp_path, at_source, watermark):
    mixed = list(GOOD)
    for place, (row, _) in BAD.items():
        mixed.insert(place, row)
    expected, none = windows_of(GOOD, tmp_path, at_source=at_source, watermark=watermark)
    found, letters = windows_of(mixed, tmp_path, at_source=at_source, watermark=watermark)
    assert not len(none)
    assert found == expected
    hour = 3_600_000
    assert ("a", -3 * hour, -2 * hour, 1) in found
    assert ("b", -hour, 0, 3) in found
    for letter, (row, reason) in zip(letters, BAD.values(), strict=True):
        assert reason in letter.reason
        assert json.loads(letter.raw) == row


def test_the_top_of_windows_takes_any_time_that_rows_may_have():
    """Timers of authors are between the years 1 and 9999."""
    flow = weir.Dataflow("far")
    watermark = weir.bounded_out_of_orderness("1s", future_max=None)
    source = weir.JsonLines("none", schema={"k": str, "at": int})
    rows = flow.source("rows", source, event_time="at", watermark=watermark)
    counts = rows.key_by("k").window(weir.tumbling("1h")).aggregate("counts", n=weir.count())
    counts.window_top("top", by="n").sink("out", weir.Collect())
    times_ms = [-(2**61), -(2**50), 0, 2**50, 2**61]
    with weir.testing.start(flow) as job:
        for at_ms in times_ms:
            job.push("rows", [{"k": "a", "at": at_ms}])
            job.advance_watermark("rows", at_ms)
        # The window of the last row is open.
        assert len(job.rows("out")) == 4
        found = job.finish()["out"]
    assert [row["window_start"] for row in found] == [at_ms // 3_600_000 * 3_600_000 for at_ms in times_ms]


@pytest.mark.parametrize("event_time", ["at", pl.col("at") + 0])
def test_rows_of_a_test_without_a_time_are_put_aside_as_those_of_the_source(event_time):
    flow = weir.Dataflow("given")
    source = weir.JsonLines("none", schema={"k": str, "at": weir.Nullable(int)})
    rows = flow.source("rows", source, event_time=event_time, parallelism=2)
    rows.key_by("k").count("n").sink("out", weir.Collect())
    with weir.testing.start(flow) as job:
        job.push("rows", [{"k": "a", "at": 1}, {"k": "b", "at": None}, {"k": "c", "at": -(2**62)}])
        job.checkpoint()
        job.push("rows", pl.DataFrame({"k": ["d", "e"], "at": [None, 5]}, schema={"k": str, "at": pl.Int64}))
        job.restart()
        found = job.finish()
    assert sorted(row["k"] for row in found["out"]) == ["a", "e"]
    assert sorted((letter.reason, json.loads(letter.raw)["k"]) for letter in found.dead_letters) == [
        ("the event time -4611686018427387904 is no time in ms since 1970", "c"),
        ("the event time is null", "b"),
        ("the event time is null", "d"),
    ]
