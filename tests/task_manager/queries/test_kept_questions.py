"""What windows keep for an author's code is told as the code would get it: rows, or accumulators merged by it."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.task_manager.queries.test_window_questions import (
    GROUPS,
    KEYS,
    KINDS_AND_CACHES,
    WINDOWS,
    Job,
    table_of,
)
from weir.author.operator import OperatorContext
from weir.operators.queries import kept_windows
from weir.operators.queries.state_format import ABSENT, Cut
from weir.operators.registry import create_operator
from weir.protocol.queries import QueryError
from weir.rows.records import with_times

#: Of a round: enough for some windows of nearly every key.
ROWS = 36


class Sorted(weir.Aggregator):
    accumulator = list[int]

    def create(self):
        return []

    def add(self, accumulator, rows):
        return self.merge(accumulator, rows["v"].to_list())

    def merge(self, left, right):
        return sorted([*left, *right])

    def result(self, accumulator):
        return {"values": accumulator}


def all_values(key, window, rows):
    return pl.DataFrame({"values": [rows["v"].to_list()]}, schema={"values": pl.List(pl.Int64)})


def with_rows(windowed):
    return windowed.process("step", all_values, {"values": pl.List(pl.Int64)})


def with_accumulators(windowed):
    return windowed.aggregate_with("step", Sorted, {"values": pl.List(pl.Int64)})


def filled(kind, make, cache_bytes=1 << 20):
    random = np.random.default_rng(9)
    job = Job(WINDOWS[kind], make=make, cache_bytes=cache_bytes)
    for round_number in range(4):
        now_ms = 1_000 + 40 * round_number
        keys = [KEYS[number] for number in random.integers(len(KEYS), size=ROWS)]
        # Of equal times nobody says which row comes first.
        times = now_ms - 30 + random.permutation(90)[:ROWS]
        job.take(keys, times, random.integers(100, size=ROWS))
        if round_number % 2:
            job.tables.flush()
        if round_number:
            job.watermark(now_ms - 33)
    return job


def expected_of(results):
    found = {}
    for row in sorted(results, key=lambda row: (row["window_start"], row["window_end"])):
        window = {"start": row["window_start"], "end": row["window_end"], "value": row["values"]}
        found.setdefault(row["k"], []).append(window)
    return found


def values_only(windows):
    return (
        windows
        if windows is ABSENT
        else [{**window, "value": [row["v"] for row in window["value"]]} for window in windows]
    )


@pytest.mark.parametrize(("kind", "cache_bytes"), KINDS_AND_CACHES)
@pytest.mark.parametrize("form", ["rows", "aggregator"])
def test_what_open_windows_keep(kind, form, cache_bytes):
    job = filled(kind, with_rows if form == "rows" else with_accumulators, cache_bytes)
    shown = values_only if form == "rows" else (lambda windows: windows)
    one = {key: shown(job.one(job.live_range(), form, key)) for key in KEYS}
    backwards = {key: shown(job.one(job.live_range(), form, key, reverse=True)) for key in KEYS}
    ranged = job.page(job.live_range(), form).rows
    counted = job.page(job.live_range(), form, counts=True).count
    job.tables.flush()
    in_store = {key: shown(job.one(job.stored(), form, key)) for key in KEYS}
    pages = job.pages(job.stored(), form, 5)
    some = job.page(job.stored(), form, first=KEYS[3], last=KEYS[9], time_from_ms=1_100, reverse=True).rows
    as_arrow = table_of(job.page(job.stored(), form, arrow=True)).to_pylist()
    late = {key: shown(job.one(job.stored(), form, key, first="1100")) for key in KEYS}
    expected = expected_of(job.results_at_the_end())
    assert sum(map(len, expected.values())) > 15
    assert one == in_store == {key: expected.get(key, ABSENT) for key in KEYS}
    assert backwards == {key: expected[key][::-1] if key in expected else ABSENT for key in KEYS}
    rows = [{"key": key, "value": expected[key]} for key in sorted(expected)]
    assert [{**row, "value": shown(row["value"])} for row in ranged] == rows
    assert [{**row, "value": shown(row["value"])} for row in pages] == rows
    assert counted == len(rows)
    if form == "rows":
        assert as_arrow == ranged
        assert set(ranged[0]["value"][0]["value"][0]) == {"k", "v"}
    else:
        assert [{**row, "value": row["value"]} for row in as_arrow] == rows
    is_session = kind == "session"
    after = {
        key: [each for each in windows if (each["end"] if is_session else each["start"]) >= 1_100]
        for key, windows in expected.items()
    }
    assert late == {key: after.get(key) or ABSENT for key in KEYS}
    assert [{**row, "value": shown(row["value"])} for row in some] == [
        {"key": key, "value": after[key]}
        for key in sorted(after, reverse=True)
        if after[key] and KEYS[3] <= key <= KEYS[9]
    ]


def test_windows_over_a_changelog_tell_the_changes_that_they_keep():
    schema = {"k": str, "v": int, "_change": str}
    source = weir.JsonLines("none", schema=schema, event_time="v")
    job = Job(weir.sliding("20ms", "10ms"), {"n": weir.count()}, source=source)
    changes = [("a", 11, "insert"), ("b", 12, "insert"), ("a", 13, "insert"), ("a", 11, "delete")]
    rows = [dict(zip(schema, change, strict=True)) for change in changes]
    times = pa.array([row["v"] for row in rows])
    batch = pa.RecordBatch.from_pylist([{"k": row["k"], "_change": row["_change"]} for row in rows])
    job.take_batch(with_times(batch, times, pa.array([0] * len(rows))))
    of_a = [{"k": "a", "_change": change} for change in ("insert", "delete", "insert")]
    told = [{"start": start, "end": start + 20, "value": of_a} for start in (0, 10)]
    assert job.one(job.live_range(), "rows", "a") == told
    assert [row["key"] for row in job.page(job.live_range(), "rows").rows] == ["a", "b"]
    assert job.results_at_the_end() == [
        {"k": key, "window_start": start, "window_end": start + 20, "n": 1}
        for start in (0, 10)
        for key in "ab"
    ]


def test_how_many_rows_a_window_has():
    job = filled("sliding", with_accumulators)
    found = job.one(job.live_range(), "aggregator", KEYS[0])
    counted = job.one(job.live(), "rows", KEYS[0])
    assert [window["value"] for window in counted] == [len(window["value"]) for window in found]


def test_whoever_gives_a_limit_gets_the_rows_of_the_first_windows_only():
    job = Job(WINDOWS["tumbling"], make=with_rows)
    job.take(["a"] * 3, [1_000, 1_010, 1_020], [1, 2, 3])
    whole = job.one(job.live_range(), "rows", "a")
    assert len(whole) == 3
    assert job.one(job.live_range(), "rows", "a", limit=2, cuts=True) == Cut(whole[:2])
    assert job.one(job.live_range(), "rows", "a", limit=1, cuts=True, reverse=True) == Cut(whole[2:])


def test_rows_that_change_while_they_are_read():
    job = Job(WINDOWS["tumbling"], make=with_rows)
    job.take(["a", "a"], [1_000, 1_001], [1, 2])
    job.tables.flush()
    reading = job.live_range()
    job.take(["a"], [1_002], [3])
    job.tables.flush()
    # More rows, as many as are counted now.
    assert len(job.one(reading, "rows", "a")[0]["value"]) == 3
    reading = job.live_range()
    job.watermark(1_003)
    # The window has left: nothing of it is told.
    job.tables.flush()
    assert job.one(reading, "rows", "a") is ABSENT
    job.take(["b"], [1_004], [1])
    reading = job.live_range()
    job.take(["b"], [1_005], [2])
    job.tables.flush()
    # Of the count the copy is read, of the rows one more.
    with pytest.raises(QueryError, match="while it was read: try again") as refused:
        job.one(reading, "rows", "b")
    assert refused.value.status == 503


def test_bounds(monkeypatch):
    job = Job(WINDOWS["tumbling"], make=with_rows)
    job.take(["a"] * 9, [1_000] * 9, range(9))
    monkeypatch.setattr(kept_windows, "_ROWS_MAX", 8)
    with pytest.raises(QueryError, match="9 rows, at most 8") as refused:
        job.one(job.live_range(), "rows", "a")
    assert refused.value.status == 413
    monkeypatch.undo()
    monkeypatch.setattr(kept_windows, "_BYTES_MAX", 8)
    with pytest.raises(QueryError, match="ask for less time"):
        job.page(job.live_range(), "rows")
    with pytest.raises(QueryError, match="it has rows") as unknown:
        job.one(job.live(), "values", "a")
    assert unknown.value.status == 404


def test_an_author_whose_merge_raises(monkeypatch):
    job = Job(WINDOWS["sliding"], make=with_accumulators)
    job.take(["a", "a"], [1_000, 1_011], [1, 2])
    reading = job.live_range()

    def broken(self, left, right):
        raise ValueError("no")

    monkeypatch.setattr(Sorted, "merge", broken)
    with pytest.raises(QueryError, match=r"Sorted\.merge raised ValueError: no") as refused:
        job.one(reading, "aggregator", "a")
    assert refused.value.status == 500


class AllRowsJob(Job):
    """A step over all rows, which come from the step before it as they are."""

    def __init__(self, window, make):
        super().__init__(window, make=lambda windowed: make(windowed._stream.window_all(window)))
        part = next(node for node in self.graph.nodes if node.name == "step.part")
        self.part = create_operator(part.spec)
        context = OperatorContext("asked", "step.part", 1, 0, 1, max_parallelism=GROUPS, schema=part.schema)
        self.part.open(context)

    def take(self, keys, times, values):
        batch = pa.RecordBatch.from_pydict({"k": keys, "v": pa.array(values, pa.int64())})
        made = with_times(batch, pa.array(times, pa.int64()), pa.array([0] * len(keys)))
        for given in self.part.process(made):
            self._note(self.operator.process(given))


def of_all(window, rows):
    return pl.DataFrame({"values": [rows["v"].to_list()]}, schema={"values": pl.List(pl.Int64)})


@pytest.mark.parametrize("kind", WINDOWS)
def test_rows_of_windows_over_all_rows(kind):
    job = AllRowsJob(
        WINDOWS[kind], lambda windowed: windowed.process("step", of_all, {"values": pl.List(pl.Int64)})
    )
    job.take(["a", "b", "a"], [1_000, 1_004, 1_009], [1, 2, 3])
    job.watermark(990)
    told = job.one(job.live_range(), "rows", "0")
    page = job.page(job.live_range(), "rows", arrow=True)
    (row,) = table_of(page).to_pylist()
    assert row["value"] == told
    job.tables.flush()
    assert job.one(job.stored(), "rows", "0") == told
    names = {name for window in told for each in window["value"] for name in each}
    assert names == {"k", "v"}
    expected = [
        {"start": row["window_start"], "end": row["window_end"], "value": row["values"]}
        for row in sorted(job.results_at_the_end(), key=lambda row: (row["window_start"], row["window_end"]))
    ]
    assert [{**window, "value": [each["v"] for each in window["value"]]} for window in told] == expected
