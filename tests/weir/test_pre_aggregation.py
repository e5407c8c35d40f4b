"""Where the planner puts steps that add up rows before windows."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from weir import testing
from weir.author.operator import OperatorContext
from weir.operators.windows.panes.window_part import WindowPartOperator
from weir.plan.fingerprints import fingerprint_of
from weir.plan.rules import pre_aggregation
from weir.plan.stages import physical_graph
from weir.rows.records import with_times
from weir.specs.window_parts import WindowPartSpec
from weir.specs.windows import WINDOW_PART, WindowAggregate

SCHEMA = {"k": str, "at": int, "v": weir.Nullable(int), "x": float}
MINUTE = weir.tumbling(60)


def flow_of(window=MINUTE, late=False, window_options=None, **aggregates):
    flow = weir.Dataflow("parts")
    events = weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at")
    rows = flow.source("rows", events, watermark=weir.bounded_out_of_orderness("5ms"))
    windowed = rows.key_by("k").window(window, **(window_options or {}))
    results = windowed.aggregate("w", parallelism=2, **aggregates)
    results.sink("out", weir.Collect())
    if late:
        results.side_output("late").sink("late", weir.Collect())
    return flow


def stages(flow):
    return [stage.name for stage in physical_graph(flow.build()).stages]


WITH, WITHOUT = ["rows -> w.part", "w", "out"], ["rows", "w", "out"]


@pytest.mark.parametrize(
    "flow",
    [
        flow_of(n=weir.count()),
        flow_of(n=weir.count(), odd=weir.count().where(pl.col("v") > 3)),
        flow_of(weir.sliding(60, 20), total=weir.sum("v"), low=weir.min("v"), high=weir.max("v")),
        flow_of(weir.cumulative(60, 20), n=weir.count()),
        flow_of(weir.tumbling(60, time="processing"), n=weir.count()),
    ],
)
def test_what_is_exact_is_added_up_before_the_exchange(flow):
    before = fingerprint_of(flow.build())
    assert [name.replace("w -> out", "w") for name in stages(flow)][:2] == WITH[:2]
    # The job is the same: it goes on from checkpoints of the time before there was such a step.
    assert [node.name for node in flow.build().nodes] == ["rows", "w", "out"]
    assert fingerprint_of(flow.build()) == before


@pytest.mark.parametrize(
    "flow",
    [
        flow_of(n=weir.count(), total=weir.sum("x")),
        flow_of(low=weir.min("x")),
        flow_of(mean=weir.mean("v")),
        flow_of(first=weir.first("v")),
        flow_of(largest=weir.largest("v", 2)),
        flow_of(values=weir.count_distinct("v")),
        flow_of(weir.session(60), n=weir.count()),
        flow_of(late=True, n=weir.count()),
        flow_of(window_options={"allowed_lateness": 5}, n=weir.count()),
        flow_of(window_options={"early": weir.every("1s")}, n=weir.count()),
        flow_of(pre_aggregate=False, n=weir.count()),
    ],
)
def test_what_is_not_exact_or_not_wanted_is_not(flow):
    assert not any("w.part" in name for name in stages(flow))


def test_a_stream_that_others_read_is_sent_once():
    flow = weir.Dataflow("two")
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=SCHEMA, event_time="at"))
    rows.key_by("k").window(MINUTE).aggregate("w", n=weir.count()).sink("out", weir.Collect())
    rows.sink("all", weir.Collect())
    assert not any("w.part" in name for name in stages(flow))


def test_results_and_late_rows_are_those_of_rows_that_go_one_by_one(monkeypatch):
    monkeypatch.setattr(pre_aggregation, "ROWS_MIN", 0)
    random = np.random.default_rng(7)
    rows = [
        {"k": "abc"[random.integers(3)], "at": int(at + random.integers(-40, 40)), "v": None, "x": 0.5}
        | ({"v": int(random.integers(-9, 9))} if random.random() < 0.8 else {})
        for at in range(0, 2_000, 3)
    ]
    told = []
    for pre_aggregate in (None, False):
        flow = flow_of(
            weir.sliding(60, 20),
            pre_aggregate=pre_aggregate,
            n=weir.count(),
            total=weir.sum("v"),
            low=weir.min("v"),
            odd=weir.count().where(pl.col("v") % 2 == 1),
        )
        with testing.start(flow, watermarks="follow_rows") as job:
            for start in range(0, len(rows), 50):
                job.push("rows", rows[start : start + 50])
                if start == 300:
                    job.checkpoint()
                    job.restart()
            told.append(sorted(job.finish()["out"], key=str))
    assert told[0] == told[1]
    assert len(told[0]) > 200


def test_of_many_keys_only_rows_of_hot_ones_are_added_up(monkeypatch):
    monkeypatch.setattr(pre_aggregation, "ROWS_MIN", 0)
    sent = []
    process = WindowPartOperator.process

    def noted(self, batch):
        found = tuple(process(self, batch))
        sent.append((batch.num_rows, sum(out.num_rows for out in found)))
        return found

    monkeypatch.setattr(WindowPartOperator, "process", noted)
    random = np.random.default_rng(11)
    rows = [
        {"k": "hot" if random.random() < 0.5 else f"key-{number}", "at": number, "v": number % 7, "x": 0.5}
        for number in range(3_000)
    ]
    told = []
    for pre_aggregate in (None, False):
        counted = {"n": weir.count(), "total": weir.sum("v"), "high": weir.max("v")}
        flow = flow_of(weir.tumbling("1s"), pre_aggregate=pre_aggregate, **counted)
        with testing.start(flow, watermarks="follow_rows") as job:
            for start in range(0, len(rows), 200):
                job.push("rows", rows[start : start + 200])
            told.append(sorted(job.finish()["out"], key=str))
    assert told[0] == told[1]
    assert len(told[0]) > 1_000
    assert all(after < 0.7 * before for before, after in sent)


def test_small_batches_and_sums_that_pass_64_bits_go_on_as_they_came():
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    aggregates = (WindowAggregate("s", "sum", "v"),)
    made = WindowPartOperator(WindowPartSpec(("k",), weir.tumbling(10), aggregates, schema, rows_min=4))
    made.open(OperatorContext("job", "w.part", 1, 0, 1))

    def added_up(values):
        columns = {"k": pa.array(["a"] * len(values)), "v": pa.array(values, pa.int64())}
        batch = with_times(pa.record_batch(columns, schema=schema), np.zeros(len(values), np.int64), 0)
        (out,) = made.process(batch)
        return out.num_rows < len(values) and not out.column(WINDOW_PART).null_count

    assert not added_up([1, 2, 3])
    assert added_up([1, 2, 3, 4])
    assert not added_up([2**62, 2**62, 2**62, -(2**62)])
    assert added_up([1, 2, 3, 4])
