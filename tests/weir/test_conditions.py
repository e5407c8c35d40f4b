"""What filters demand of columns: never more than Polars finds in the rows."""

import random

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.operators.sources.parquet.parquet_source import ParquetReader
from weir.plan.stages import physical_graph
from weir.specs.conditions import AllOf, AnyOf, Comparison, columns_of, condition_of, may_hold

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int8()), ("s", pa.string()), ("f", pa.float64())])


@pytest.mark.parametrize(
    ("predicate", "condition"),
    [
        (pl.col("a") > 5, Comparison("a", "Gt", 5)),
        (pl.lit(5) > pl.col("a"), Comparison("a", "Lt", 5)),
        (pl.col("s") == "x", Comparison("s", "Eq", "x")),
        (
            pl.col("a").is_between(1, 5),
            AllOf((Comparison("a", "GtEq", 1), Comparison("a", "LtEq", 5))),
        ),
        ((pl.col("a") > 5) & (pl.col("f") > 1.5), Comparison("a", "Gt", 5)),
        ((pl.col("a") > 5) | (pl.col("f") > 1.5), None),
        (
            (pl.col("a") > 5) | (pl.col("b") == 1),
            AnyOf((Comparison("a", "Gt", 5), Comparison("b", "Eq", 1))),
        ),
        (pl.col("a") % 4 != 0, None),
        (~(pl.col("a") > 5), None),
        (pl.col("f") > 5, None),
        (pl.col("a") > pl.col("b"), None),
    ],
)
def test_what_a_predicate_demands(predicate, condition):
    assert condition_of(predicate, SCHEMA) == condition


def random_predicate(chance, depth=2):
    if depth and chance.random() < 0.6:
        parts = [random_predicate(chance, depth - 1) for _ in range(2)]
        return parts[0] & parts[1] if chance.random() < 0.5 else parts[0] | parts[1]
    name = chance.choice("abst")
    value = chance.choice(["", "k", "é", "z"]) if name == "s" else chance.randrange(-130, 400)
    operator = chance.choice(["__gt__", "__ge__", "__lt__", "__le__", "__eq__"])
    if chance.random() < 0.2 and name != "s":
        return pl.col(name).is_between(value, value + 40)
    if chance.random() < 0.2:
        return pl.lit(value).__getattribute__(operator)(pl.col(name))
    return getattr(pl.col(name), operator)(value)


def random_rows(chance, count):
    rows = [
        {"a": number + chance.randrange(20), "b": chance.choice([None, -128, 1, 127]), "t": number}
        | {"s": chance.choice("klé") if number % 50 else None, "f": chance.choice([1.0, float("nan")])}
        for number in range(count)
    ]
    return pl.DataFrame(
        rows, schema={"a": pl.Int64, "b": pl.Int8, "t": pl.Int64, "s": pl.String, "f": pl.Float64}
    )


@pytest.mark.parametrize("seed", range(cases(20)))
def test_where_a_condition_cannot_hold_no_row_passes(seed):
    chance = random.Random(seed)
    frame = random_rows(chance, 60).slice(chance.randrange(30), 20)
    ranges = {
        name: (frame[name].min(), frame[name].max()) for name in "abst" if frame[name].min() is not None
    }
    for _ in range(20):
        predicate = random_predicate(chance)
        condition = condition_of(predicate, pa.schema([*SCHEMA, pa.field("t", pa.int64())]))
        if condition is not None and not may_hold(condition, ranges):
            assert frame.filter(predicate).is_empty()
            assert columns_of(condition) <= set("abst")


COLUMNS = {"a": int, "b": weir.Nullable(pl.Int8), "t": int, "s": weir.Nullable(str), "f": float}


@pytest.mark.parametrize("seed", range(cases(8)))
def test_groups_that_are_passed_over_change_no_result(tmp_path, seed):
    chance = random.Random(seed)
    frame = random_rows(chance, 400)
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=30)
    predicate = random_predicate(chance)
    flow = weir.Dataflow("pruned")
    source = weir.Parquet(str(tmp_path), schema=COLUMNS, event_time="t")
    rows = flow.source("rows", source, parallelism=chance.choice([1, 2]))
    rows.filter("keep", predicate).select("pick", "s", "t").sink("out", weir.Collect())
    found = weir.run(flow)["out"].to_polars().sort("t")
    assert found.rows() == frame.filter(predicate).select("s", "t").sort("t").rows()


@pytest.mark.parametrize("time_ms", [-(2**62), 2**62])
def test_groups_with_a_time_that_is_none_are_not_passed_over(tmp_path, time_ms):
    frame = pl.DataFrame({"id": range(20), "t": [time_ms if number == 7 else number for number in range(20)]})
    frame.write_parquet(tmp_path / "in.parquet", row_group_size=5)
    flow = weir.Dataflow("pruned")
    rows = flow.source("rows", weir.Parquet(str(tmp_path), schema={"id": int, "t": int}, event_time="t"))
    rows.filter("keep", pl.col("id") >= 15).sink("out", weir.Collect())
    result = weir.run(flow)
    assert result["out"].to_polars()["id"].to_list() == [15, 16, 17, 18, 19]
    assert [letter.position for letter in result.dead_letters] == [7]


def spec_of(flow):
    return physical_graph(flow.build()).stages[0].nodes[0].spec


def read(spec):
    reader = ParquetReader(spec)
    context = OperatorContext(
        job_name="job", operator_name="rows", stage_index=0, subtask_index=0, parallelism=1
    )
    reader.open(context)
    polls = []
    while not (poll := reader.poll(1 << 20)).finished:
        polls.append(poll)
    reader.close()
    return polls


def filtered(path, predicate, **more):
    flow = weir.Dataflow("pruned")
    rows = flow.source("rows", weir.Parquet(str(path), schema={"a": int, "t": int}, **more))
    rows.filter("keep", predicate).sink("out", weir.Blackhole())
    return spec_of(flow)


def test_only_row_groups_that_can_match_are_read_and_the_watermark_goes_on(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": range(100), "t": range(100, 0, -1)}), path, row_group_size=10)
    polls = read(filtered(path, pl.col("a").is_between(42, 47), event_time="t"))
    assert [poll.batch.column("a").to_pylist() for poll in polls] == [list(range(40, 50))]
    # The largest time is in a row group that was passed over.
    assert polls[0].event_time_ms_max == 100


def test_sources_that_count_or_pace_and_groups_with_bad_rows_are_read_as_ever(tmp_path):
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"a": [1, None, 3, 4], "t": range(4)}), path, row_group_size=2)
    assert filtered(path, pl.col("a") > 9, events=10).condition is None
    assert filtered(path, pl.col("a") > 9, rate=10).condition is None
    # The group with a null is read, so that the null is told.
    assert [poll.batch.column("a").to_pylist() for poll in read(filtered(path, pl.col("a") > 9))] == [[1]]


def test_a_filter_that_others_do_not_share_or_that_is_further_down_is_not_taken(tmp_path):
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.Parquet("in", schema={"a": int}))
    rows.filter("keep", pl.col("a") > 9).sink("out", weir.Blackhole())
    rows.sink("all", weir.Blackhole())
    assert spec_of(flow).condition is None
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.Parquet("in", schema={"a": int}))
    rows.with_columns("other", a=pl.col("a") * 2).filter("keep", pl.col("a") > 9).sink(
        "out", weir.Blackhole()
    )
    assert spec_of(flow).condition is None
    flow = weir.Dataflow("job")
    rows = flow.source("rows", weir.Parquet("in", schema={"a": int, "b": int}))
    rows.select("pick", "a").filter("keep", pl.col("a") > 9).sink("out", weir.Blackhole())
    assert spec_of(flow).condition == Comparison("a", "Gt", 9)
