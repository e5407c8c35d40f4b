"""Different values and quantiles of windows that have not fired, and what is read while windows fire."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.task_manager.queries.test_window_questions import (
    KEYS,
    KINDS_AND_CACHES,
    TEXT_SOURCE,
    WINDOWS,
    Job,
    expected_of,
    rounded,
    table_of,
)
from weir.operators.queries import pane_parts
from weir.operators.queries.state_format import ABSENT
from weir.protocol.queries import QueryError

AGGREGATES = {
    "n": weir.count(),
    "kinds": weir.count_distinct("v"),
    "many": weir.count_distinct("v").where(pl.col("v") > 50),
    "about": weir.approx_distinct("v"),
    "half": weir.quantile("v", 0.5),
    "most": weir.quantile("v", 0.99),
}
TEXTS = {
    "first": weir.first("t"),
    "last": weir.last("t"),
    "some": weir.last("t").where(pl.col("v") > 50),
    "number": weir.last("v"),
}
TYPES = {"half": pa.float64(), "most": pa.float64(), **dict.fromkeys(("first", "last", "some"), pa.string())}


@pytest.mark.parametrize("aggregates", [AGGREGATES, TEXTS], ids=["parts", "texts"])
@pytest.mark.parametrize(("kind", "cache_bytes"), KINDS_AND_CACHES)
def test_values_of_open_windows_are_told_as_they_will_be_emitted(kind, cache_bytes, aggregates, monkeypatch):
    # Keys that begin alike lie among the values of the shorter ones.
    assert any(key != other and other.startswith(key) for key in KEYS for other in KEYS)
    random = np.random.default_rng(5)
    job = Job(WINDOWS[kind], aggregates, cache_bytes=cache_bytes, source=TEXT_SOURCE)
    for round_number in range(4):
        job.take_random(random, 60, 1_000 + 40 * round_number)
        if round_number % 2:
            job.tables.flush()
        if round_number:
            job.watermark(1_000 + 40 * round_number - 33)
    told = {
        state: (
            {key: job.one(job.live_range(), state, key) for key in KEYS},
            {row["key"]: row["value"] for row in job.page(job.live_range(), state).rows},
        )
        for state in aggregates
    }
    # Where a block has too many values it is read in parts.
    monkeypatch.setattr(pane_parts, "PART_ENTRIES_MAX", 40)
    in_parts = {state: job.page(job.live_range(), state).rows for state in aggregates}
    monkeypatch.undo()
    job.tables.flush()
    in_store = {state: {key: job.one(job.stored(), state, key) for key in KEYS} for state in aggregates}
    pages = {state: job.pages(job.stored(), state, 5) for state in aggregates}
    backwards = {state: job.page(job.stored(), state, reverse=True).rows for state in aggregates}
    as_arrow = {state: table_of(job.page(job.stored(), state, arrow=True)) for state in aggregates}
    results = job.results_at_the_end()
    assert len(results) > 15
    for state in aggregates:
        expected = rounded(expected_of(results, state))
        whole = {key: expected.get(key, ABSENT) for key in KEYS}
        rows = [{"key": key, "value": expected[key]} for key in sorted(expected)]
        assert rounded(told[state][0]) == whole, state
        assert rounded(told[state][1]) == expected, state
        assert rounded(in_parts[state]) == rows, state
        assert rounded(in_store[state]) == whole, state
        assert rounded(pages[state]) == rows, state
        assert rounded(backwards[state]) == rows[::-1], state
        assert rounded(as_arrow[state].to_pylist()) == rows, state
        value = TYPES.get(state, pa.int64())
        assert as_arrow[state].schema.field("value").type.value_type.field("value").type == value


def test_one_key_has_too_many_values(monkeypatch):
    job = Job(WINDOWS["sliding"], AGGREGATES)
    job.take(["a"] * 30, [1_000] * 30, range(0, 3_000, 100))
    monkeypatch.setattr(pane_parts, "PART_ENTRIES_MAX", 20)
    for ask in (
        lambda: job.one(job.live_range(), "kinds", "a"),
        lambda: job.page(job.live_range(), "kinds"),
    ):
        with pytest.raises(QueryError, match="have more than") as refused:
            ask()
        assert refused.value.status == 413


def test_only_one_key_group_is_copied_for_one_key():
    job = Job(WINDOWS["sliding"], AGGREGATES)
    job.take_random(np.random.default_rng(1), 200, 1_000)
    whole = {key: job.one(job.live_range(), "kinds", key) for key in KEYS}
    for group in range(4):
        reading = job.live_range(group)
        assert reading.groups == [group]
        of_group = [key for key in KEYS if group_of(job, key) == group]
        assert {key: job.one(reading, "kinds", key) for key in of_group} == {
            key: whole[key] for key in of_group
        }


def group_of(job, key):
    asked = next(iter(job.states.values()))
    return asked.group_of(asked.keys.encode(key))


@pytest.mark.parametrize("state", ["n", "total"])
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "cumulative"])
def test_windows_that_fire_while_they_are_read_are_left_out(kind, state):
    """Their panes leave the store meanwhile: what was left of them was told before."""
    job = Job(WINDOWS[kind], {"n": weir.count(), "total": weir.sum("v")})
    times = list(range(1_000, 1_080, 2))
    for key in ("a", "b"):
        job.take([key] * len(times), times, times)
    job.tables.flush()
    # From now on all of it is in the store alone.
    reading = job.live_range()
    before = {row["key"]: row["value"] for row in job.page(job.live_range(), state).rows}
    job.watermark(1_048)
    job.tables.flush()
    told = {row["key"]: row["value"] for row in job.page(reading, state).rows}
    assert told == {key: [each for each in windows if each["end"] > 1_048] for key, windows in before.items()}
    assert len(told["a"]) < len(before["a"])


def test_sessions_that_are_put_together_while_they_are_read_are_refused():
    job = Job(WINDOWS["session"], {"n": weir.count(), "kinds": weir.count_distinct("v")})
    times = list(range(1_000, 1_040, 4))
    job.take(["a"] * len(times), times, times)
    job.tables.flush()
    for state in ("n", "kinds"):
        reading = job.live_range()
        assert [row["key"] for row in job.page(reading, state).rows] == ["a"]
        reading.check_rearranged()
    reading = job.live_range()
    job.watermark(1_030)
    # The store has what it had.
    assert job.page(reading, "n").rows[0]["value"][0]["value"] == len(times)
    reading.check_rearranged()
    job.tables.flush()
    with pytest.raises(QueryError, match="while they were read: try again") as refused:
        reading.check_rearranged()
    assert refused.value.status == 503
    assert job.one(job.live_range(), "kinds", "a")[0]["value"] == len(times)


@pytest.mark.parametrize("names", [("n",), ("n", "kinds")])
def test_an_open_session_is_told_from_its_beginning_whatever_else_its_step_counts(names):
    calls = {"n": weir.count(), "kinds": weir.count_distinct("v")}
    job = Job(WINDOWS["session"], {name: calls[name] for name in names})
    for time_ms in range(0, 60, 5):
        job.take(["a"], [time_ms], [time_ms])
        job.watermark(time_ms)
    told = [{"start": 0, "end": 62, "value": 12}]
    assert job.one(job.live(), "n", "a") == told
    assert job.page(job.live_range(), "n").rows == [{"key": "a", "value": told}]
