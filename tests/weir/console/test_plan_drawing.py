import io

import polars as pl
from rich.console import Console

import weir
from weir.console.plan_drawing import draw
from weir.graph import physical_graph
from weir.plan_document import plan_document


def test_the_plan_names_every_step_and_how_rows_get_there():
    flow = weir.Dataflow("counts")
    events = flow.source("events", weir.JsonLines("in", schema={"id": int, "server": str}))
    kept = events.filter("keep", pl.col("id") > 3)
    kept.key_by("server").count("count", parallelism=2).sink("out", weir.Print())
    events.rebalance().sink("all", weir.Blackhole(), parallelism=3)
    out = io.StringIO()
    Console(file=out, width=200).print(draw(physical_graph(flow.build())))
    text = out.getvalue()
    assert "counts  5 steps" in text
    for step in (
        "events (json_lines_source)",
        "keep (filter)",
        "count (",
        "keeps state",
        "out (",
        "all (blackhole",
    ):
        assert step in text
    assert "by server stage" in text
    assert "in turn stage" in text
    assert "x 3" in text
    assert "not read" not in text
    assert "only" not in text


def test_the_plan_tells_what_is_not_read_and_not_sent():
    flow = weir.Dataflow("narrow")
    events = flow.source("events", weir.JsonLines("in", schema={"id": int, "server": str, "note": str}))
    kept = events.filter("keep", pl.col("id") > 3).key_by("server").count("n")
    kept.select("chosen", "server", "n").sink("out", weir.Print())
    out = io.StringIO()
    graph = physical_graph(flow.build())
    Console(file=out, width=200).print(draw(graph))
    assert "events (json_lines_source)  id: int64, server: string  not read: note" in out.getvalue()
    assert "by server (only server) stage 1" in out.getvalue()
    document = plan_document(graph)
    assert document["operators"][0]["columns_not_read"] == ["note"]
    assert document["edges"][0]["columns"] == ["server"]


def test_the_plan_tells_which_row_groups_are_read():
    flow = weir.Dataflow("pruned")
    rows = flow.source("rows", weir.Parquet("in", schema={"id": int, "name": str}))
    rows.filter("keep", pl.col("id").is_between(3, 9) & (pl.col("name") != "x")).sink("out", weir.Print())
    out = io.StringIO()
    Console(file=out, width=200).print(draw(physical_graph(flow.build())))
    assert "name: string  row groups: (id >= 3 and id <= 9)" in out.getvalue()
