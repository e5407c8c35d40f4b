"""Columns that nobody reads: which they are, and that leaving them out changes no result."""

import json
import random

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from tests.effort import cases
from weir.plan.fingerprints import fingerprint_of
from weir.plan.rules.projection import wanted_columns
from weir.plan.stages import physical_graph
from weir.specs.conditions import condition_text

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
    # The event time is read for itself, the filter's column is not sent; what is chosen and dropped later is not read.
    assert read == {"events": ["b", "d", "t"]}
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


def _with_double(batch):
    return batch.append_column("twice", pa.array([2 * a for a in batch["a"].to_pylist()], pa.int64()))


def test_a_function_that_says_what_it_reads_is_given_what_is_read_after_it(tmp_path):
    schema = {name: int for name in "abcd"}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(dict.fromkeys("abcd", n)) + "\n" for n in range(5)))
    flow = weir.Dataflow("job")
    events = flow.source("events", weir.JsonLines(str(tmp_path / "in.jsonl"), schema=schema))
    doubled = events.map_batches("double", _with_double, {**schema, "twice": int}, reads=["a"])
    doubled.select("chosen", "twice", "c").sink("out", weir.Collect())
    assert plan(flow)[0] == {"events": ["a", "c"]}
    assert weir.run(flow)["out"].to_polars().sort("c").rows() == [(2 * n, n) for n in range(5)]
    with pytest.raises(weir.GraphError, match=r"double: reads has no column 'aa'; did you mean 'a'\?"):
        events.map_batches("double", _with_double, {**schema, "twice": int}, reads=["aa"])
    with pytest.raises(weir.GraphError, match="hands all columns on as they are, but schema has no 'b'"):
        events.map_batches("double", _with_double, {"a": int, "twice": int}, reads=["a"])


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
    before = fingerprint_of(logical)
    whole = physical_graph(logical, whole=[node.name for node in logical.nodes])
    assert whole.stages[0].nodes[0] == logical.nodes[0]
    assert fingerprint_of(physical_graph(logical).logical) == before
    assert wanted_columns(logical.nodes)["events"] == {"a"}


def test_select_names_what_is_wrong():
    events = weir.Dataflow("job").source("events", lines())
    with pytest.raises(weir.GraphError, match=r"step 'pick': there is no column 'bb'"):
        events.select("pick", "bb")
    with pytest.raises(weir.GraphError, match=r"step 'pick': select needs at least one column"):
        events.select("pick")
    with pytest.raises(weir.GraphError, match=r"step 'pick': column 'a' is there twice"):
        events.select("pick", "a", "a")


# --- filters ---


def pushed(make):
    """What the source ``rows`` is told to demand of its rows, as text."""
    flow = weir.Dataflow("pushed")
    schema = {"id": int, "at": int, "name": str, "size": int}
    rows, others = (
        flow.source(name, weir.Parquet("in", schema=schema, event_time="at")) for name in ("rows", "others")
    )
    make(rows, others).sink("out", weir.Blackhole())
    [spec] = [n.spec for s in physical_graph(flow.build_local()).stages for n in s.nodes if n.name == "rows"]
    return None if spec.condition is None else condition_text(spec.condition)


BIG = pl.col("size") > 7


def summed(stream):
    return stream.key_by("id").window(weir.tumbling("1m")).aggregate("w", size=weir.sum("size"))


@pytest.mark.parametrize(
    ("make", "condition"),
    [
        (lambda r, o: r.rename("n", {"size": "s"}).filter("f", pl.col("s") > 7), "size > 7"),
        (lambda r, o: r.with_columns("w", s=pl.col("size")).filter("f", pl.col("s") > 7), "size > 7"),
        (lambda r, o: r.with_columns("w", size=pl.col("size") + 1).filter("f", BIG), None),
        (lambda r, o: r.rebalance().union("u", r2(o)).filter("f", BIG), "size > 7"),
        (lambda r, o: summed(r).filter("f", pl.col("id") == 3), "id = 3"),
        (lambda r, o: summed(r).filter("f", BIG), None),
        (lambda r, o: r.key_by("id").count("n").filter("f", BIG & (pl.col("id") < 3)), "id < 3"),
        (lambda r, o: r.key_by("id").top("t", by="size", rows=2).filter("f", BIG | (pl.col("id") < 3)), None),
        (lambda r, o: r.map("m", lambda row: row).filter("f", BIG), None),
        (lambda r, o: r.assign_event_time("a", "at").filter("f", BIG), None),
    ],
)
def test_filters_after_other_steps_are_pushed_into_the_source(make, condition):
    assert pushed(make) == condition


def r2(stream):
    return stream.rebalance()


@pytest.mark.parametrize(
    ("how", "side", "condition"),
    [
        ("inner", "left", "size > 7"),
        ("left", "left", "size > 7"),
        ("anti", "left", "size > 7"),
        ("right", "left", None),
        ("full", "left", None),
        ("inner", "right", "size > 7"),
        ("right", "right", "size > 7"),
        ("left", "right", None),
    ],
)
def test_filters_after_joins_are_pushed_into_the_side_that_has_the_column(how, side, condition):
    def make(rows, others):
        lefts, rights = (rows, others) if side == "left" else (others, rows)
        joined = lefts.key_by("id").join("j", rights.key_by("id"), within=("-1s", "1s"), how=how)
        of_side = "size" if side == "left" else "size_right"
        return joined.filter("f", (pl.col(of_side) > 7) & (pl.col("id") < 3))

    # Keys go to both sides, however they are joined.
    assert pushed(make) == ("id < 3" if condition is None else f"({condition} and id < 3)")


def test_versions_of_a_table_are_not_left_out_by_their_columns():
    def make(rows, others):
        joined = others.key_by("id").join_as_of("j", rows.key_by("id"), how="inner")
        return joined.filter("f", (pl.col("size_right") > 7) & (pl.col("id") < 3))

    assert pushed(make) == "id < 3"


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_row_groups_that_are_passed_over_change_no_result(tmp_path, how):
    rows = [{"id": n // 4, "at": n * 100, "name": str(n), "size": n % 50} for n in range(2_000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=100)

    def run(**options):
        flow = weir.Dataflow("passed_over")
        schema = {"id": int, "at": int, "name": str, "size": int}
        lefts, rights = (
            flow.source(name, weir.Parquet(str(tmp_path / "in.parquet"), schema=schema, event_time="at"))
            for name in ("lefts", "rights")
        )
        odd = rights.filter("odd", pl.col("size") % 8 == 1).key_by("id")
        joined = lefts.key_by("id").join("joined", odd, within=("-1s", "1s"), how=how)
        some = joined.filter("some", pl.col("id").is_between(100, 120) & (pl.col("size") > 9))
        counts = some.window(weir.tumbling("1m")).aggregate("counts", n=weir.count(), size=weir.sum("size"))
        counts.filter("last", pl.col("id") > 110).sink("out", weir.Collect())
        return weir.run(flow, **options)["out"].to_polars()

    found, expected = run(), run(collect=["lefts", "rights", "joined", "some", "counts"])
    assert found.sort(found.columns).equals(expected.sort(found.columns))
    assert found.height


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
@pytest.mark.parametrize("seed", range(cases(8)))
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


def test_a_union_of_which_only_the_number_of_rows_is_read_gets_the_same_column_from_all():
    flow = weir.Dataflow("job")
    events = flow.source("events", lines(event_time="t"))
    one = events.select("one", "a", "b")
    two = events.select("plain", "b").with_columns("all_a", a=pl.lit(1, pl.Int64)).select("two", "a", "b")
    one.union("u", two).select("number", x=pl.lit(1, pl.Int64)).sink("out", weir.Blackhole())
    sent = plan(flow)[1]
    assert sent[-2] == sent[-1] == ("a",)
