import io

import polars as pl
from rich.console import Console

import weir
from weir.console.plan_drawing import draw
from weir.graph import physical_graph


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
