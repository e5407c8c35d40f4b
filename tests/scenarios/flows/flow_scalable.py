"""Every kind of neighbour that matters to a rescale: ended and idle sources, inputs that differ, FORWARD, BROADCAST."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}


def build(busy: str, short: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("scalable")
    events = flow.source("busy", held(weir.JsonLines(busy, schema=SCHEMA, rate=rate), release))
    ended = flow.source("ended", weir.JsonLines(short, schema=SCHEMA))
    idle = flow.source("idle", weir.JsonLines(short, schema=SCHEMA, rate=0.001))
    kept = events.filter("keep", pl.col("id") % 2 == 0).rebalance().pass_through("tied").key_by("server")
    # Inputs with keys and without, which differ in what may be null.
    odd = events.filter("odd", pl.col("id") % 2 == 1).with_columns("same", server=pl.col("server"))
    both = kept.union("both", odd.key_by("server"), ended.rebalance(), idle.rebalance())
    counts = both.key_by("server").count("count", "n")
    counts.rebalance().sink("out", weir.JsonLinesSink(f"{output}/counts"))
    forwarded = events.rebalance().pass_through("first").forward().pass_through("second")
    forwarded.sink("nowhere", weir.Blackhole())
    ended.broadcast().pass_through("copies").sink("copies_out", weir.Blackhole())
    return flow
