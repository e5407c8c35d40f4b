import inspect
import json
import subprocess
import sys

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.plan.graph import Exchange, Input
from weir.plan.stages import physical_graph
from weir.specs import SinkSpec

SCHEMA = {"id": pl.Int64, "server_name": pl.String, "size": weir.Nullable(pl.Float64)}


class Passes(weir.KeyedProcess):
    def process(self, key, row, context):
        yield row


def source(flow, name="events", parallelism=1, **settings):
    return flow.source(name, weir.JsonLines("in.jsonl", schema=SCHEMA, **settings), parallelism=parallelism)


@pytest.fixture
def flow():
    return weir.Dataflow("job")


@pytest.fixture
def events(flow):
    return source(flow)


@pytest.mark.parametrize(
    ("step", "output", "column"),
    [
        ("n", None, "n"),
        ("count", None, "count"),
        (None, None, "count"),
        ("count", "n", "n"),
        ("emit", None, "emit"),
        ("name", None, "name"),
    ],
)
def test_a_count_is_in_the_column_that_its_step_is_called(events, step, output, column):
    counts = events.key_by("server_name").count(step, output)
    assert counts.schema.names == ["id", "server_name", "size", column]


def test_server_count_of_the_docs(flow):
    events = source(flow, parallelism=2)
    kept = events.filter("keep", pl.col("id") % 4 != 0)
    kept.key_by("server_name").count("count", output="n", parallelism=4).sink("out", weir.Blackhole())
    graph = flow.build()
    assert [(node.name, node.spec.kind, node.parallelism) for node in graph.nodes] == [
        ("events", "json_lines_source", 2),
        ("keep", "filter", 2),
        ("count", "keyed_aggregate", 4),
        ("out", "blackhole_sink", 4),
    ]
    assert graph.node("count").inputs == (Input("keep", Exchange.HASH, ("server_name",)),)
    assert graph.node("count").schema.names == ["id", "server_name", "size", "n"]
    assert graph.node("count").schema.field("n").type == pa.int64()
    assert graph.max_parallelism == 128


def test_source_schema_is_arrow_with_small_strings_and_nullability(events):
    assert events.schema == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("server_name", pa.string(), nullable=False),
            pa.field("size", pa.float64()),
        ]
    )


def test_schema_accepts_python_types_and_arrow_schema(flow):
    python = weir.Parquet("in", schema={"a": int, "b": str, "c": float, "d": bool, "e": bytes})
    types = [pa.int64(), pa.string(), pa.float64(), pa.bool_(), pa.binary()]
    assert flow.source("python", python).schema.types == types
    arrow = weir.Parquet("in", schema=pa.schema([pa.field("a", pa.large_string()), pa.field("b", pa.int8())]))
    assert flow.source("arrow", arrow).schema.types == [pa.string(), pa.int8()]


def test_exchanges_and_stage_boundary(flow, events):
    events.rebalance().filter("a", pl.col("id") > 1, parallelism=3).forward().filter(
        "b", pl.col("id") > 2
    ).sink("x", weir.Print())
    events.broadcast().sink("y", weir.Print(), parallelism=2)
    graph = flow.build()
    assert graph.node("a").inputs == (Input("events", Exchange.ROUND_ROBIN),)
    assert graph.node("b").inputs == (Input("a", stage_boundary=True),)
    assert graph.node("b").parallelism == 3
    assert graph.node("y").inputs == (Input("events", Exchange.BROADCAST),)
    assert [stage.name for stage in physical_graph(graph).stages] == ["events", "a", "b -> x", "y"]


def test_sources_come_first_then_order_of_definition(flow):
    left = source(flow, "left").filter("f1", pl.col("id") > 0)
    right = source(flow, "right")
    left.union("both", right).sink("out", weir.Blackhole())
    assert [node.name for node in flow.build().nodes] == ["left", "right", "f1", "both", "out"]


def test_derived_names_are_kind_and_number(flow):
    stream = source(flow, None).filter(None, pl.col("id") > 0).filter("mine", pl.col("id") > 1)
    stream.filter(None, pl.col("id") > 2).sink(None, weir.Blackhole())
    names = [node.name for node in flow.build().nodes]
    assert names == ["source_1", "filter_1", "mine", "filter_3", "blackhole_sink_1"]


def test_with_columns_schema(events):
    stream = events.with_columns(
        "c",
        (pl.col("id") * 2).alias("double"),
        pl.col("server_name").str.to_uppercase(),
        age=pl.col("_event_time_ms"),
    )
    assert stream.schema.names == ["id", "server_name", "size", "double", "age"]
    assert stream.schema.types == [pa.int64(), pa.string(), pa.float64(), pa.int64(), pa.int64()]
    assert not stream.schema.field("id").nullable
    assert stream.schema.field("double").nullable


def test_keyed_stream_stays_partitioned_through_filter_busy_and_aggregates(flow, events):
    keyed = events.key_by("server_name").filter("f", pl.col("id") > 0).busy("b", 0.1)
    totals = keyed.aggregate("t", emit="per_batch", n=weir.count(), top=weir.max("id"), avg=weir.mean("size"))
    totals.count("again", output="m").sink("out", weir.Blackhole())
    graph = flow.build()
    assert graph.node("t").schema.names[-3:] == ["n", "top", "avg"]
    assert graph.node("t").schema.types[-3:] == [pa.int64(), pa.int64(), pa.float64()]
    assert [stage.name for stage in physical_graph(graph).stages] == ["events", "f -> b -> t -> again -> out"]


def test_map_and_flat_map_declare_their_schema(flow, events):
    mapped = events.map("m", lambda row: {"x": row["id"]}, {"x": int}).flat_map("fm", lambda row: [row, row])
    mapped.map_batches("mb", lambda batch: batch).sink("out", weir.Blackhole())
    assert flow.build().node("mb").schema == pa.schema([pa.field("x", pa.int64(), nullable=False)])


def keep(events, predicate):
    return events.filter("keep", predicate)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda e: keep(e, pl.col("idd") > 1), "step 'keep': there is no column 'idd'; did you mean 'id'?"),
        (lambda e: keep(e, pl.col("id") + 1), "step 'keep': the predicate gives Int64, not Boolean"),
        (
            lambda e: keep(e, pl.col("server_name") > 3),
            "step 'keep': .* cannot be computed: cannot compare string",
        ),
        (lambda e: keep(e, "id > 3"), "step 'keep': expected a Polars expression.*got str"),
        (lambda e: keep(e, pl.col("id", "size") > 1), "step 'keep': the predicate gives 2 columns"),
        (lambda e: keep(e, pl.col("id").sum() > 1), "step 'keep': .* depends on the other rows"),
        (lambda e: keep(e, pl.col("id").cum_sum() > 1), "step 'keep': .* depends on the other rows"),
        (lambda e: e.with_columns("c"), "step 'c': with_columns needs"),
        (lambda e: e.with_columns("c", _event_time_ms=pl.col("id")), "'_event_time_ms' is a system column"),
        (lambda e: e.with_columns("c", _key_hash=pl.col("id")), "'_key_hash' is a system column"),
        (
            lambda e: e.with_columns("c", pl.all().cast(pl.String), at=pl.col("_event_time_ms")),
            "step 'c': .* stands for the job's columns, and _event_time_ms is none of them",
        ),
        (lambda e: e.with_columns("c", pl.col("id") + 1, id=pl.col("id")), "step 'c': two expressions write"),
        (lambda e: e.with_columns("c", n=pl.lit(None)), "step 'c': column 'n' has no type"),
        (lambda e: e.with_columns("c", n=3), "step 'c': expected a Polars expression.*got int"),
        (
            lambda e: e.key_by("server"),
            "step 'events': there is no key column 'server'; did you mean 'server_name'",
        ),
        (lambda e: e.key_by("size"), "step 'events': key column 'size' is double, .*; cast it to an integer"),
        (lambda e: e.key_by(), "step 'events': key_by needs at least one column"),
        (lambda e: e.key_by("id", "id"), "step 'events': key column 'id' is there twice"),
        (lambda e: e.key_by("id").rebalance(), "step 'events': ROUND_ROBIN follows another exchange"),
        (lambda e: e.rebalance().forward(), r"step 'events': forward\(\) follows another exchange"),
        (
            lambda e: e.key_by("id").with_columns("c", id=pl.col("id") + 1),
            "step 'c': it replaces key column 'id'",
        ),
        (
            lambda e: e.key_by("id").with_columns("c", pl.all_horizontal(True).alias("id")),
            "step 'c': it replaces",
        ),
        (
            lambda e: e.key_by("id").with_columns("c", pl.col("size", "id") + 1),
            "step 'c': it replaces key column 'id'",
        ),
        (lambda e: keep(e, pl.col("id").shift() > 1), "step 'keep': .* depends on the other rows"),
        (
            lambda e: e.key_by("id").aggregate("a", s=weir.sum("server_name")),
            "step 'a': sum over 'server_name'.*string",
        ),
        (lambda e: e.key_by("id").aggregate("a", s=weir.sum("siez")), "no such column; did you mean 'size'"),
        (lambda e: e.key_by("id").aggregate("a"), "step 'a': give at least one aggregate"),
        (lambda e: e.key_by("id").aggregate("a", s=3), "step 'a': s needs an aggregate.*got int"),
        (lambda e: e.key_by("id").count("a", output="size"), "step 'a': output column 'size' exists already"),
        (
            lambda e: e.key_by("id").count("a", output="_key_hash"),
            "step 'a': output column '_key_hash' exists",
        ),
        (lambda e: e.key_by("id").count("a", emit="never"), "step 'a': emit is 'never'"),
        (
            lambda e: e.key_by("id").process("p", Passes, {"x": int}),
            "step 'p': its declared result lacks key column",
        ),
        (
            lambda e: e.union("u", e.with_columns("c", x=pl.col("id"))),
            "step 'u': input 2 has other columns.*'x'",
        ),
        (lambda e: e.union("u"), "step 'u': union needs at least one other"),
        (lambda e: e.union("u", source(weir.Dataflow("other"))), "step 'u': union takes streams of the same"),
        (lambda e: e.map("m", 3), "step 'm': expected a function or a class, got int"),
        (
            lambda e: e.map("m", dict, {"_ingest_time_us": int}),
            "step 'm': schema: '_ingest_time_us' is a system",
        ),
        (
            lambda e: e.map("m", dict, {"x": "int"}),
            "step 'm': schema: column 'x': 'int' is not a column type",
        ),
        (lambda e: e.map("m", dict, {}), "step 'm': schema: it has no column"),
        (lambda e: e.busy("b", -1), "step 'b': load_ms is -1"),
        (lambda e: e.busy("b", float("nan")), "step 'b': load_ms is nan"),
        (lambda e: e.sink("out", "print"), r"step 'out': expected a sink.*got str; .*weir\.UserSink"),
        (
            lambda e: e.sink("out", weir.UserSink(object())),
            "step 'out': expected a function or a class, got object",
        ),
        (
            lambda e: keep(keep(e, pl.col("id") > 1), pl.col("id") > 1),
            "step 'keep': two steps have this name",
        ),
        (lambda e: e.filter("a b", pl.col("id") > 1), "step name 'a b' is not allowed"),
        (lambda e: e.rename("r", ["id", "x"]), "step 'r': rename takes a mapping .*got list"),
        (lambda e: e.key_by(pl.col("id")), "step 'events': key_by takes names of columns.*got Expr; make"),
        (lambda e: e.key_by(["id"]), "step 'events': key_by takes names of columns.*got list"),
        (
            lambda e: e.key_by("id").window(weir.tumbling(pl.duration(seconds=1))),
            "weir.tumbling: size: .* is not a duration",
        ),
        (
            lambda e: e.sink("out", weir.JsonLinesSink("out", roll_ms="1m")),
            "step 'out': roll_ms is '1m'; it must be a number of milliseconds",
        ),
        (
            lambda e: e.sink("out", weir.ParquetSink("out", roll_bytes="1 GB")),
            "step 'out': roll_bytes is '1 GB'; it must be a number of bytes",
        ),
        (lambda e: e.filter("a", pl.col("id") > 1, parallelism=0), "step 'a': parallelism is 0"),
        (lambda e: e.filter("a", pl.col("id") > 1, parallelism=True), "step 'a': parallelism is True"),
    ],
)
def test_mistakes_are_found_at_the_step(events, mistake, message):
    with pytest.raises(weir.GraphError, match=message) as caught:
        mistake(events)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 0}, "step 'events': rate is 0"),
        ({"rate": float("nan")}, "step 'events': rate is nan"),
        ({"rate": "10"}, "step 'events': rate is '10'"),
        ({"events": -1}, "step 'events': events_max is -1"),
        ({"event_time": "idd"}, "step 'events': there is no event-time column 'idd'; did you mean 'id'"),
        ({"event_time": "server_name"}, "step 'events': event-time column 'server_name' is string"),
        ({"on_bad_record": "ignore"}, "step 'events': on_bad_record is 'ignore'"),
        ({"line_bytes_max": 0}, "step 'events': line_bytes_max is 0"),
        ({"interval_ms": "5ms"}, "step 'events': interval_ms is '5ms'; it must be a number of milliseconds"),
        ({"parallelism": 0}, "step 'events': parallelism is 0"),
    ],
)
def test_bad_source_settings(flow, settings, message):
    with pytest.raises(weir.GraphError, match=message):
        source(flow, **settings)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"_key_hash": int}, "step 'events': schema: '_key_hash' is a system column"),
        (
            {"x": int | None},
            r"column 'x': int \| None is .*; where values may be null, write weir.Nullable\(int\)",
        ),
        ({"x": object}, "step 'events': schema: column 'x': .*object.* is not a column type"),
        ({3: int}, "step 'events': schema: 3 is not a column name"),
        ([("x", int)], "step 'events': schema: expected a mapping"),
        (
            pa.schema([("x", pa.int64()), ("x", pa.int64())]),
            "step 'events': schema: column 'x' is there twice",
        ),
        ({"a\0b": int}, "step 'events': schema: column .* has a NUL in its name"),
    ],
)
def test_bad_schema(flow, schema, message):
    with pytest.raises(weir.GraphError, match=message):
        flow.source("events", weir.JsonLines("in", schema=schema))


def test_an_event_time_is_given_once(flow):
    timed = weir.JsonLines("in.jsonl", schema=SCHEMA, event_time="id")
    for other in (pl.col("id") * 1_000, "id"):
        with pytest.raises(
            weir.GraphError, match="step 'events': event_time is given to the source, 'id', and"
        ):
            flow.source("events", timed, event_time=other)


def test_a_method_that_is_misspelt_is_proposed(events):
    with pytest.raises(AttributeError) as raised:
        events.fliter("f", pl.col("id") > 1)
    # What Python says "Did you mean" by.
    assert (raised.value.name, raised.value.obj) == ("fliter", events)


def test_watermarks_of_a_class_that_makes_none():
    with pytest.raises(weir.GraphError, match="dict has no on_batch"):
        weir.custom_watermarks(dict)


def test_source_wants_a_source(flow):
    with pytest.raises(
        weir.GraphError, match=r"step 'events': expected a source such as weir.JsonLines.*got str"
    ):
        flow.source("events", "in.jsonl")


def test_no_source(flow):
    with pytest.raises(weir.GraphError, match="job 'job': it has no source"):
        flow.build()


def test_branch_without_sink(flow, events):
    events.sink("out", weir.Print())
    events.filter("lost", pl.col("id") > 1)
    line = inspect.currentframe().f_lineno - 1
    with pytest.raises(weir.GraphError) as raised:
        flow.build()
    told = "step 'lost': nothing reads its output; end the branch with .sink(...)"
    assert str(raised.value) == f"{told} ({__file__}, line {line})"


def test_forward_between_different_parallelism(flow, events):
    events.filter("a", pl.col("id") > 1, parallelism=2).sink("out", weir.Print())
    with pytest.raises(
        weir.GraphError, match=r"step 'a': parallelism 2 differs from 1 of its input 'events'"
    ):
        flow.build()


def test_keyed_parallelism_above_max_parallelism():
    flow = weir.Dataflow("job", max_parallelism=4)
    source(flow).key_by("id").count("c", parallelism=5).sink("out", weir.Print())
    with pytest.raises(weir.GraphError, match="step 'c': parallelism 5 is above the job's max_parallelism 4"):
        flow.build()


@pytest.mark.parametrize("value", [0, 4097, True, 1.5, "128"])
def test_bad_max_parallelism(value):
    with pytest.raises(weir.GraphError, match=r"max_parallelism is .*; it must be 1 to 4096"):
        weir.Dataflow("job", max_parallelism=value)


def test_sinks_end_branches():
    for sink in (weir.Blackhole(), weir.Print(3), weir.JsonLinesSink("out"), weir.LatencySink("zout", "x")):
        assert isinstance(sink, SinkSpec)


def test_key_types_agree_with_the_key_encoder():
    from weir.keys.hashing import check_key_type
    from weir.specs.expression_checks import check_key_columns

    def accepts(check, *arguments):
        try:
            check(*arguments)
        except weir.GraphError:
            return False
        return True

    types = [
        pa.int8(),
        pa.uint64(),
        pa.string(),
        pa.binary(),
        pa.binary(4),
        pa.bool_(),
        pa.date32(),
        pa.float32(),
    ]
    types += [pa.timestamp("us"), pa.duration("s"), pa.time64("us"), pa.list_(pa.int8()), pa.decimal128(9, 2)]
    types += [pa.struct([("a", pa.int8())]), pa.null(), pa.month_day_nano_interval()]
    ours = [accepts(check_key_columns, "s", ["k"], pa.schema([("k", dtype)])) for dtype in types]
    assert ours == [accepts(check_key_type, "k", dtype) for dtype in types]
    assert True in ours
    assert False in ours


def loaded_by(statement):
    """Names of all modules that a new interpreter has loaded after a statement."""
    code = (
        f"import json, sys\n{statement}\nprint(json.dumps(sorted(m.partition('.')[0] for m in sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(json.loads(run.stdout))


def test_import_of_weir_is_lean():
    """The console command starts processes first; a job's description needs no process, kernel or store."""
    assert not loaded_by("import weir") & {"numpy", "polars", "pyarrow", "rich"}
    loaded = loaded_by("import weir; weir.Dataflow, weir.JsonLines, weir.Print")
    assert "polars" in loaded
    assert not loaded & {"grpc", "numba", "rocksdict", "pydantic", "fastapi", "pyspark"}


def test_public_names_exist():
    for name in weir.__all__:
        assert getattr(weir, name) is not None
    with pytest.raises(AttributeError, match="weir has no 'Dataflwo'; did you mean 'Dataflow'"):
        _ = weir.Dataflwo


def test_a_source_is_paced_by_rate_or_by_interval_but_not_by_both():
    schema = {"id": int}
    assert weir.JsonLines("x", schema=schema, interval_ms=4).to_spec().rate == 250.0
    with pytest.raises(weir.GraphError, match="both given"):
        weir.JsonLines("x", schema=schema, interval_ms=4, rate=250).to_spec()
    with pytest.raises(weir.GraphError, match="above 0"):
        weir.JsonLines("x", schema=schema, interval_ms=0).to_spec()
