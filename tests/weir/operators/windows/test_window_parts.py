"""Rows that are added up before the exchange: results are those of rows that go one by one."""

from functools import partial

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings

import weir
from tests.effort import cases
from tests.weir.operators.windows.pushed_rows import pushed
from tests.weir.operators.windows.pushed_rows import source as of_schema
from weir import testing
from weir.author.operator import OperatorContext
from weir.operators.windows.panes.window_part import WindowPartOperator
from weir.rows.records import with_times
from weir.specs.window_parts import WindowPartSpec
from weir.specs.windows import WINDOW_PART, WindowAggregate

SCHEMA = {"k": str, "at": int, "v": weir.Nullable(int)}
ROWS = st.lists(
    st.fixed_dictionaries(
        {"k": st.sampled_from("ab"), "at": st.integers(0, 60), "v": st.none() | st.integers(-9, 9)}
    ),
    max_size=60,
)
WINDOWS = st.sampled_from(
    [
        weir.tumbling(20),
        weir.sliding(30, 10),
        weir.cumulative(20, 5),
        weir.session(5),
        weir.tumbling(7, offset=3),
    ]
)
AGGREGATES = {
    "n": weir.count(),
    "odd": weir.count().where(pl.col("v") % 2 == 1),
    "total": weir.sum("v"),
    "low": weir.min("v"),
    "mean": weir.mean("v"),
    "last": weir.last("v"),
    "best": weir.largest("v", 2),
}


source = partial(of_schema, schema=SCHEMA)


def results(flow, rows):
    """Of rows some of which are late."""
    return sorted(pushed(flow, rows)["out"], key=str)


@given(rows=ROWS, window=WINDOWS)
@settings(max_examples=cases(8), deadline=None)
def test_adding_up_before_the_exchange_changes_no_result(rows, window):
    told = []
    for pre_aggregate in (False, True):
        flow = weir.Dataflow("parts")
        windows = source(flow).key_by("k").window(window)
        windows.aggregate("w", pre_aggregate=pre_aggregate, **AGGREGATES).sink("out", weir.Collect())
        told.append(results(flow, rows))
    assert told[0] == told[1]


@pytest.mark.parametrize("pre_aggregate", [False, True])
def test_sessions_keep_a_key_that_comes_when_the_watermark_is_beyond_its_pane(pre_aggregate):
    flow = weir.Dataflow("late")
    events = weir.JsonLines("rows.jsonl", schema={"k": str, "at": int}, event_time="at")
    sessions = flow.source("rows", events).key_by("k").window(weir.session(10))
    sessions.aggregate("w", pre_aggregate=pre_aggregate, n=weir.count()).sink("out", weir.Collect())
    with testing.start(flow, {"rows": []}) as job:
        job.push("rows", [{"k": "a", "at": 2}])
        # The pane is looked at.
        job.advance_watermark("rows", 18)
        job.push("rows", [{"k": "c", "at": 9}])
        for time_ms in (20, 30, 40):
            job.advance_watermark("rows", time_ms)
        told = [(row["k"], row["window_start"], row["n"]) for row in job.rows("out")]
    assert told == [("a", 2, 1), ("c", 9, 1)]


@given(rows=ROWS, window=WINDOWS)
@settings(max_examples=cases(4), deadline=None)
def test_windows_without_a_key_equal_those_of_one_key_that_all_rows_have(rows, window):
    more = {"values": weir.count_distinct("v"), "median": weir.quantile("v", 0.5)}
    for aggregates in (AGGREGATES, AGGREGATES | more):
        flow, keyed = weir.Dataflow("all"), weir.Dataflow("keyed")
        source(flow).window_all(window).aggregate("w", **aggregates).sink("out", weir.Collect())
        one = source(keyed).with_columns("one", one=pl.lit(0)).key_by("one").window(window)
        one.aggregate("w", **aggregates).sink("out", weir.Collect())
        wanted = [{name: row[name] for name in row if name != "one"} for row in results(keyed, rows)]
        assert results(flow, rows) == sorted(wanted, key=str)


def operator(keys=("k",)):
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    aggregates = (WindowAggregate("n", "count"), WindowAggregate("s", "sum", "v"))
    made = WindowPartOperator(WindowPartSpec(keys, weir.tumbling(10), aggregates, schema))
    made.open(OperatorContext("job", "w.part", 1, 0, 1))
    return made


def batch_of(keys):
    rows = pa.record_batch({"k": pa.array(keys, pa.string()), "v": pa.array(range(len(keys)), pa.int64())})
    return with_times(rows, np.arange(len(keys)) // 50, 0)


def test_rows_pass_as_they_are_where_keys_hardly_repeat_and_are_added_up_again_later():
    made = operator()
    different, alike = batch_of([str(n) for n in range(40)]), batch_of(["a", "b"] * 20)
    (out,) = made.process(different)
    assert out.num_rows == 40
    assert out.column(WINDOW_PART).null_count == 40
    # The batches after it pass without a look at their keys.
    counts = [next(iter(made.process(alike))).num_rows for _ in range(17)]
    assert counts == [40] * 15 + [2, 2]


def test_one_row_stands_for_all_of_a_batch_in_windows_without_a_key():
    (out,) = operator(()).process(batch_of(["a", "b", "c", "d"]))
    assert out.num_rows == 1
    assert out.column(WINDOW_PART).null_count == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (weir.sum("x"), r"total adds double, whose sum depends on the order"),
        (weir.stddev("v"), r"total is a stddev"),
        (weir.count_distinct("v"), r"total is a count_distinct"),
    ],
)
def test_what_could_change_results_is_refused(call, message):
    flow = weir.Dataflow("refused")
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA | {"x": float}, event_time="at")
    windows = flow.source("rows", events).key_by("k").window(weir.tumbling(10))
    with pytest.raises(weir.GraphError, match=message):
        windows.aggregate("w", pre_aggregate=True, total=call)


def test_a_plan_shows_the_step_that_adds_up():
    flow = weir.Dataflow("plan")
    windows = source(flow).key_by("k").window(weir.tumbling(10))
    windows.aggregate("w", pre_aggregate=True, n=weir.count()).sink("out", weir.Collect())
    assert [node.name for node in flow.build().nodes] == ["rows", "w.part", "w", "out"]
