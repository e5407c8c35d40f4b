"""Columns that nobody reads: which they are, and that leaving them out changes no result."""

import json
import random

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from weir.graph import physical_graph
from weir.projection import wanted_columns

SCHEMA = {"a": int, "b": str, "c": weir.Nullable(str), "d": float, "t": int, "n.x": weir.Nullable(int)}


def lines(**more):
    return weir.JsonLines("in", schema=SCHEMA, **more)


def plan(flow):
    """Columns that each source reads, and what goes over each edge."""
    graph = physical_graph(flow.build())
    read = {n.name: n.spec.schema_read.names for stage in graph.stages for n in stage.nodes if n.is_source}
    return read, [edge.columns for stage in graph.stages for edge in stage.inputs]


def test_a_source_reads_what_steps_read_and_an_exchange_sends_what_comes_after_it():
    flow = weir.Dataflow("job")
    events = flow.source("events", lines(event_time="t"))
    kept = events.filter("keep", pl.col("d") > 0).select("pick", "b", "a").key_by("b")
    kept.count("n").select("shown", "n").sink("out", weir.Blackhole())
    read, [sent] = plan(flow)
    # The event time is read for itself, the filter's column is not sent, and neither is what the select drops later.
    assert read == {"events": ["a", "b", "d", "t"]}
    assert sent == ("b",)


def test_functions_and_sinks_read_all_that_they_are_given():
    flow = weir.Dataflow("job")
    events = flow.source("events", lines())
    events.map("double", lambda row: {"a": row["a"] * 2}, {"a": int}).sink("out", weir.Blackhole())
    assert plan(flow)[0] == {"events": list(SCHEMA)}

    flow = weir.Dataflow("job")
    flow.source("events", lines()).sink("out", weir.Blackhole())
    assert plan(flow)[0] == {"events": list(SCHEMA)}

    flow = weir.Dataflow("job")
    chosen = flow.source("events", lines()).select("pick", "a")
    chosen.map("double", lambda row: {"a": row["a"] * 2}, {"a": int}).sink("out", weir.Blackhole())
    assert plan(flow)[0] == {"events": ["a"]}


def test_each_branch_is_sent_its_own_columns():
    flow = weir.Dataflow("job")
    events = flow.source("events", lines())
    events.select("one", "a").sink("ones", weir.Blackhole())
    events.key_by("b").aggregate("sum", s=weir.sum("d")).select("two", "s").sink("twos", weir.Blackhole())
    read, sent = plan(flow)
    assert read == {"events": ["a", "b", "d"]}
    assert sent == [("a",), ("b", "d")]


def test_selectors_need_every_column_and_a_source_reads_one_at_least():
    flow = weir.Dataflow("job")
    events = flow.source("events", lines())
    events.filter("keep", pl.all_horizontal(pl.all().is_not_null())).select("pick", "a").sink(
        "out", weir.Blackhole()
    )
    assert plan(flow)[0] == {"events": list(SCHEMA)}
    flow = weir.Dataflow("job")
    events = flow.source("events", lines()).with_columns("one", one=pl.lit(1, dtype=pl.Int64))
    events.select("pick", "one").sink("out", weir.Blackhole())
    assert plan(flow)[0] == {"events": ["a"]}


def test_the_fingerprint_and_the_whole_graph_do_not_know_of_it():
    flow = weir.Dataflow("job")
    flow.source("events", lines()).select("pick", "a").sink("out", weir.Blackhole())
    logical = flow.build()
    before = logical.fingerprint
    whole = physical_graph(logical, whole=[node.name for node in logical.nodes])
    assert whole.stages[0].nodes[0] == logical.nodes[0]
    assert physical_graph(logical).logical.fingerprint == before
    assert wanted_columns(logical.nodes)["events"] == {"a"}


def test_select_names_what_is_wrong():
    events = weir.Dataflow("job").source("events", lines())
    with pytest.raises(weir.GraphError, match=r"step 'pick': there is no column 'bb'"):
        events.select("pick", "bb")
    with pytest.raises(weir.GraphError, match=r"step 'pick': select needs at least one column"):
        events.select("pick")
    with pytest.raises(weir.GraphError, match=r"step 'pick': column 'a' is there twice"):
        events.select("pick", "a", "a")


# --- random jobs over random rows ---


class Latest(weir.KeyedProcess):
    latest = weir.ValueState(int, default=0)

    def process(self, key, row, context):
        self.latest.value = max(self.latest.value, row["a"])
        yield {**row, "a": self.latest.value}


def rows_of(seed, count=400):
    chance = random.Random(seed)
    for number in range(count):
        row = {
            "a": chance.randrange(100),
            "b": chance.choice(["x", "y", "é\n", ""]),
            "d": chance.random(),
            "t": number,
        }
        if chance.random() < 0.7:
            row["c"] = chance.choice([None, "c", '"'])
        if chance.random() < 0.7:
            row["n"] = {"x": chance.choice([None, 7]), "other": [{"a": 1}]}
        row["unknown"] = {"a": [1, 2]}
        items = list(row.items())
        chance.shuffle(items)
        yield dict(items)


def random_flow(seed, path, parquet):
    chance = random.Random(seed)
    flow = weir.Dataflow("random", max_parallelism=8)
    source = weir.Parquet if parquet else weir.JsonLines
    streams = [
        flow.source(
            f"s{number}",
            source(path, schema=SCHEMA, event_time=chance.choice([None, "t"])),
            parallelism=chance.choice([1, 2]),
        )
        for number in range(2)
    ]
    for number in range(chance.randrange(3, 10)):
        stream = chance.choice(streams)
        name, columns = f"step{number}", stream.schema.names
        some = chance.sample(columns, chance.randrange(1, len(columns) + 1))
        numbers = [f.name for f in stream.schema if pa.types.is_integer(f.type)]
        kind = chance.choice(
            ["filter", "with", "select", "map", "batches", "count", "process", "union", "fan"]
        )
        if kind == "filter" and numbers:
            stream = stream.filter(name, pl.col(chance.choice(numbers)) % 3 != 0)
        elif kind == "with" and numbers:
            written = chance.choice([*numbers, f"new{number}"])
            stream = stream.with_columns(name, **{written: pl.col(chance.choice(numbers)) + 1})
        elif kind == "select":
            stream = stream.select(name, *some)
        elif kind == "map":
            schema = pa.schema([stream.schema.field(c) for c in some])
            stream = stream.map(name, lambda row, some=some: {c: row[c] for c in some}, schema)
        elif kind == "batches":
            schema = pa.schema([stream.schema.field(c) for c in some])
            stream = stream.map_batches(name, lambda batch, some=some: batch.select(some), schema)
        elif kind == "count" and "b" in columns:
            keyed = stream.key_by("b")
            more = {f"sum{number}": weir.sum(chance.choice(numbers))} if numbers else {}
            stream = keyed.aggregate(name, **{f"n{number}": weir.count()}, **more, parallelism=2)
        elif kind == "process" and {"a", "b"} <= set(columns):
            stream = stream.key_by("b").process(name, Latest, parallelism=2)
        elif kind == "union":
            others = [s for s in streams if s.schema.equals(stream.schema) and s is not stream]
            if others:
                stream = stream.rebalance().union(name, others[0].rebalance(), parallelism=2)
        else:
            stream = stream.rebalance().pass_through(name, parallelism=chance.choice([1, 2]))
        streams.append(stream)
    for number, stream in enumerate(streams[-3:]):
        stream.sink(f"out{number}", weir.Collect())
    return flow


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_jobs_give_the_same_with_all_columns_and_with_those_that_are_read(tmp_path, seed, parquet):
    path = tmp_path / ("in.parquet" if parquet else "in.jsonl")
    rows = list(rows_of(seed))
    if parquet:
        flat = [{"n.x": (row.get("n") or {}).get("x"), "c": None, **row} for row in rows]
        kept = [{k: row[k] for k in (*SCHEMA, "unknown")} for row in flat]
        pq.write_table(pa.Table.from_pylist(kept), path, row_group_size=100)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flow = random_flow(seed, str(path), parquet)
    narrow = weir.run(flow)
    # A step that is collected is read as a whole.
    steps = [node.name for node in flow.build_local().nodes if not node.is_sink]
    whole = weir.run(flow, collect=steps)
    for end in narrow.steps:
        found, expected = narrow[end].to_polars(), whole[end].to_polars()
        assert found.columns == expected.columns
        assert found.rows() == expected.rows()
