"""What steps become on Spark, and what is refused, from the graph alone."""

import polars as pl
import pytest

import weir
from weir.errors import GraphError
from weir.spark.modes import mode_of
from weir.spark.refusals import REASONS
from weir.spark.translation import Way, job_on_spark

SCHEMA = {"k": int, "at": int, "v": int}


def flow_with(source=None, **settings):
    flow = weir.Dataflow("job")
    lines = source or weir.JsonLines("in", schema=SCHEMA, **settings)
    return flow, flow.source("rows", lines, event_time="at")


def refused(flow, mode="batch"):
    """Reasons by step."""
    return {step.node.name: step.reason for step in job_on_spark(flow.build_local(), mode).refused}


class Counter(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        yield {"k": key[0], "n": self.n.value}


class Passing(weir.Operator):
    def process(self, batch):
        yield batch


class Transactions(weir.TwoPhaseSink):
    def write(self, batch):
        pass


class Generator(weir.WatermarkGenerator):
    def on_batch(self, batch):
        return None


def test_what_spark_has_is_its_own_and_the_rest_runs_in_tasks():
    flow, rows = flow_with()
    kept = rows.filter("kept", pl.col("v") > 1)
    kept.with_columns("hashed", h=pl.col("v").hash().cast(pl.Int64, strict=False)).sink(
        "out", weir.Blackhole()
    )
    counts = kept.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    counts.sink("files", weir.ParquetSink("out"))
    kept.key_by("k").process("each", Counter, {"k": int, "n": int}).sink("each_out", weir.UserSink(weir.Sink))
    ways = {step.node.name: step.way for step in job_on_spark(flow.build_local()).steps}
    in_tasks = {name for name, way in ways.items() if way is Way.TASKS}
    assert in_tasks == {"hashed", "each", "each_out"}
    assert {*ways.values()} == {Way.SPARK, Way.TASKS}


def _paced():
    return flow_with(rate=5)[0], "rows", "pace"


def _limited():
    return flow_with(events=5)[0], "rows", "limit"


def _followed():
    return flow_with(follow=True)[0], "rows", "never_ends"


def kafka(**settings):
    return weir.Kafka(bootstrap="localhost:9092", topics="t", **{"schema": SCHEMA, **settings})


def _kafka():
    return flow_with(kafka())[0], "rows", "kafka_unbounded"


def _log():
    source = weir.LogSource(bootstrap="localhost:9092", topic="t", schema=SCHEMA)
    return flow_with(source)[0], "rows", "log"


def _generator():
    flow = weir.Dataflow("job")
    lines = weir.JsonLines("in", schema=SCHEMA)
    flow.source("rows", lines, event_time="at", watermark=weir.custom_watermarks(Generator))
    return flow, "rows", "watermarks"


def _reading_time():
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.JsonLines("in", schema=SCHEMA))
    rows.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    return flow, "counts", "reading_time"


def _clock():
    flow, rows = flow_with()
    rows.key_by("k").window(weir.tumbling("5s", time="processing")).aggregate("counts", n=weir.count())
    return flow, "counts", "clock"


def _early_by_clock():
    flow, rows = flow_with()
    windows = rows.key_by("k").window(weir.tumbling("5s"), early=weir.every("1s"))
    windows.aggregate("counts", n=weir.count())
    return flow, "counts", "clock"


def _all_rows():
    flow, rows = flow_with()
    rows.rebalance().apply("passing", Passing, SCHEMA, parallelism=2)
    return flow, "passing", "all_rows"


def _two_phase():
    flow, rows = flow_with()
    rows.sink("out", weir.UserSink(Transactions))
    return flow, "out", "two_phase"


def _latency():
    flow, rows = flow_with()
    rows.sink("out", weir.LatencySink("out", "job"))
    return flow, "out", "latency"


@pytest.mark.parametrize(
    "make",
    [
        *(_paced, _limited, _followed, _kafka, _log, _generator, _reading_time, _clock),
        *(_early_by_clock, _all_rows, _two_phase, _latency),
    ],
)
def test_what_cannot_be_equal_is_refused_with_the_step_and_the_reason(make):
    flow, step, reason = make()
    assert refused(flow) == {step: REASONS[reason]}
    with pytest.raises(GraphError, match=f"step '{step}' does not run on Spark"):
        job_on_spark(flow.build_local()).check()


def test_sources_that_a_stream_of_spark_cannot_read_are_refused_by_their_kind():
    timed = {"k": int, "at": int, "seen": weir.Nullable(pl.Datetime("us"))}
    for lines in (weir.JsonLines("in/**/*", schema=timed), weir.Csv("in", schema=SCHEMA)):
        assert refused(flow_with(lines)[0], "streaming") == {"rows": REASONS["source_stream"]}
    assert refused(flow_with(weir.JsonLines("in", schema=timed))[0], "streaming") == {}


@pytest.mark.parametrize("mode", ["batch", "streaming"])
def test_topics_of_kafka_are_read_by_weir_in_the_tasks(mode):
    timed = {"k": int, "at": int, "seen": weir.Nullable(pl.Datetime("us"))}
    for settings in ({}, {"schema": timed}, {"start": {"t": {0: 5}}}, {"properties": {"client.id": "weir"}}):
        flow, _ = flow_with(kafka(bounded=True, **settings))
        assert [step.way for step in job_on_spark(flow.build_local(), mode).steps] == [Way.TASKS]


def test_a_table_of_delta_lake_is_written_by_weir():
    flow, rows = flow_with()
    rows.sink("out", weir.DeltaSink("out"))
    assert [step.way for step in job_on_spark(flow.build_local()).steps] == [Way.SPARK, Way.TASKS]


def test_a_job_is_a_stream_if_a_source_never_ends_and_its_user_does_not_say():
    ends, follows = flow_with()[0].build_local(), flow_with(follow=True)[0].build_local()
    assert [mode_of(graph, None) for graph in (ends, follows)] == ["batch", "streaming"]
    assert [mode_of(ends, True), mode_of(follows, False)] == ["streaming", "batch"]


def in_tasks(flow, mode):
    """Steps with state that run by Weir's operators."""
    return {
        step.node.name
        for step in job_on_spark(flow.build_local(), mode).steps
        if step.way is Way.TASKS and step.node.is_keyed
    }


def test_windows_of_a_stream_are_sparks_own_where_they_are_all_that_has_state():
    flow, rows = flow_with()
    counts = rows.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    counts.sink("out", weir.Blackhole())
    assert in_tasks(flow, "streaming") == set()


@pytest.mark.parametrize(
    "add",
    [
        lambda keyed: keyed.count("step"),
        lambda keyed: keyed.process("step", Counter, {"k": int, "n": int}),
        lambda keyed: keyed.deduplicate("step"),
        lambda keyed: keyed.window(weir.tumbling("5s")).aggregate("step", n=weir.count_distinct("v")),
    ],
)
def test_what_spark_has_no_state_for_in_a_stream_runs_by_weir(add):
    flow, rows = flow_with()
    add(rows.key_by("k"))
    assert refused(flow, "streaming") == {}
    assert in_tasks(flow, "streaming") == {"step"}


def test_in_a_stream_steps_with_state_behind_others_run_by_weir_and_so_do_those():
    flow, rows = flow_with()
    counted = rows.key_by("k").window(weir.tumbling("5s")).aggregate("first", n=weir.count())
    counted.key_by("n").window(weir.tumbling("10s")).aggregate("second", m=weir.count())
    assert in_tasks(flow, "batch") == set()
    assert in_tasks(flow, "streaming") == {"first", "second"}


def test_times_for_which_spark_has_no_timestamp_are_weirs():
    flow = weir.Dataflow("job")
    bound = weir.bounded_out_of_orderness("2s", future_max=None)
    rows = flow.source("rows", weir.JsonLines("in", schema=SCHEMA), event_time="at", watermark=bound)
    rows.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    assert in_tasks(flow, "streaming") == {"counts"}


def test_late_rows_of_a_stream_that_are_read_are_weirs_to_tell():
    flow, rows = flow_with()
    counts = rows.key_by("k").window(weir.tumbling("5s")).aggregate("counts", n=weir.count())
    counts.side_output("late").sink("out", weir.Blackhole())
    assert refused(flow, "streaming") == {}
    assert in_tasks(flow, "streaming") == {"counts"}


def test_a_type_that_spark_lacks_is_refused_by_its_column():
    flow, rows = flow_with()
    rows.with_columns("wide", w=pl.col("v").cast(pl.UInt64)).sink("out", weir.Blackhole())
    [(step, reason)] = refused(flow).items()
    assert step == "wide"
    assert "'w'" in reason
    assert "uint64" in reason
