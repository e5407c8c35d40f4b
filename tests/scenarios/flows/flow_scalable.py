"""Every kind of neighbour that matters to a rescale: an ended and an idle source, FORWARD, BROADCAST."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}


def build(busy: str, short: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("scalable")
    events = flow.source("busy", held(weir.JsonLines(busy, schema=SCHEMA, rate=rate), release))
    ended = flow.source("ended", weir.JsonLines(short, schema=SCHEMA))
    idle = flow.source("idle", weir.JsonLines(short, schema=SCHEMA, rate=0.001))
    kept = events.filter("keep", pl.col("id") >= 0).rebalance().pass_through("tied").rebalance()
    both = kept.union("both", ended.rebalance(), idle.rebalance())
    counts = both.key_by("server").count("count", "n")
    counts.rebalance().sink("out", weir.JsonLinesSink(f"{output}/counts"))
    forwarded = events.rebalance().pass_through("first").forward().pass_through("second")
    forwarded.sink("nowhere", weir.Blackhole())
    ended.broadcast().pass_through("copies").sink("copies_out", weir.Blackhole())
    return flow
