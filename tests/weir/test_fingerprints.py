"""Fingerprints of whole jobs: golden ones, those of version 1, and what is another job."""

import dataclasses

import polars as pl
import pyarrow as pa
import pytest

import weir
from weir.plan.fingerprints import difference_of_fingerprint, fingerprint_of, graph_form
from weir.plan.stored_aggregates import layouts_of, with_layouts
from weir.protocol.checkpoints.aggregate_layout import StoredAggregate

WHY = "its code has changed"
GOLDEN = "2:dac1ebfc9f357ca9287c33af6351097a"
#: Made at b9d1eb78.
FORMER = "a0ecf8f16c6ecab8f78325905b123290"
ABOVE_1, ABOVE_3 = pl.col("x") > 1, pl.col("x") > 3


def double(row):
    return {"k": row["k"], "x": row["x"] * 2}


def job(
    name="shop",
    *,
    condition=ABOVE_3,
    function=double,
    column=float,
    where=ABOVE_1,
    parallelism=2,
    max_parallelism=128,
):
    flow = weir.Dataflow(name, max_parallelism=max_parallelism)
    schema = {"k": str, "x": column, "at": int}
    lines = flow.source("lines", weir.JsonLines("in", schema=schema, event_time="at"))
    topic = flow.source(
        "topic", weir.Kafka(schema=schema, bootstrap="broker:9092", topics="rows", event_time="at")
    )
    rows = lines.union("both", topic)
    kept = rows.filter("kept", condition).map("double", function, {"k": str, "x": float})
    counted = kept.key_by("k").aggregate(
        "totals", parallelism=parallelism, n=weir.count(), large=weir.sum("x").where(where)
    )
    counted.sink("out", weir.Blackhole())
    rows.window_all(weir.tumbling("1m")).aggregate("minutes", n=weir.count()).sink("more", weir.Blackhole())
    return flow.build()


def test_golden_fingerprint():
    assert fingerprint_of(job()) == GOLDEN


def former():
    """A job of before, without what another Polars might show otherwise."""
    flow = weir.Dataflow("before")
    schema = {"k": str, "x": int, "f": float, "at": int}
    rows = flow.source("rows", weir.JsonLines("rows.jsonl", schema=schema, event_time="at"))
    bounded = weir.bounded_out_of_orderness("2s")
    others = flow.source("others", weir.Csv("others.csv", schema=schema, event_time="at"), watermark=bounded)
    joined = rows.key_by("k").join("pairs", others.key_by("k"), within=("-5s", "5s"), how="left")
    joined.key_by("k").top("best", by="x", rows=3).sink("out", weir.Blackhole())
    rows.key_by("k").aggregate("totals", n=weir.count(), total=weir.sum("x")).sink("more", weir.Blackhole())
    rows.window_all(weir.tumbling(20)).aggregate("w", n=weir.count()).sink("all", weir.Collect())
    return flow.build()


def test_fingerprints_of_version_1_are_compared_with_what_the_job_had_then():
    assert difference_of_fingerprint(FORMER, former(), WHY) == ""
    other = dataclasses.replace(former(), max_parallelism=64)
    assert difference_of_fingerprint(FORMER, other, WHY).startswith(
        f"its graph differs (fingerprint {FORMER}, now "
    )
    assert difference_of_fingerprint(FORMER, other, WHY).endswith(f": {WHY}")


def test_a_later_version_says_so():
    assert difference_of_fingerprint("3:abc", former(), WHY) == (
        "its fingerprint 3:abc is of version 3, and this Weir knows those up to 2: it ran under a later one"
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "shop2"},
        {"condition": pl.col("x") > 4},
        {"condition": pl.col("x").cast(pl.Float32) > 3},
        {"function": lambda row: {"k": row["k"], "x": row["x"] * 3}},
        {"column": int},
        {"column": weir.Nullable(float)},
        {"where": pl.col("x") > 2},
        {"parallelism": 3},
        {"max_parallelism": 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_job_has_another_fingerprint(changes):
    now, before = job(**changes), job()
    assert fingerprint_of(now) != fingerprint_of(before)
    assert difference_of_fingerprint(fingerprint_of(before), before, WHY) == ""
    assert difference_of_fingerprint(fingerprint_of(before), now, WHY).startswith(
        "its graph differs (fingerprint 2:"
    )


@pytest.mark.parametrize("stored", [FORMER, None])
def test_a_job_whose_aggregates_lie_in_another_order_is_the_one_that_was_written(stored):
    """After a start from a savepoint, of whatever version the record is."""
    graph = former()
    layouts = layouts_of(graph)
    dropped = StoredAggregate("", "dropped", None, None, "", 1)
    laid_out = with_layouts(graph, {"totals": (*reversed(layouts["totals"]), dropped)})
    again = with_layouts(laid_out, {"w": (dropped, *layouts["w"])})
    assert graph_form(laid_out) != graph_form(graph)
    for one in (laid_out, again):
        assert fingerprint_of(one) == fingerprint_of(graph)
        assert difference_of_fingerprint(stored or fingerprint_of(graph), one, WHY) == ""


def test_a_type_without_a_form_is_refused_with_step_and_column():
    schema = pa.schema([("k", pa.string()), ("u", pa.dense_union([pa.field("a", pa.int8())]))])
    flow = weir.Dataflow("unions")
    flow.source("rows", weir.Parquet("in", schema=schema)).sink("out", weir.Blackhole())
    with pytest.raises(
        weir.GraphError, match=r"step 'rows': column 'u': dense_union<.*; cast it to another one"
    ):
        _ = fingerprint_of(flow.build())
