"""Single events to a latency sink; the union of a source that is idle most of the time and a busy one; and two sources
that wait for each other: one is read as fast as it goes, the other slowly."""

import polars as pl

import weir

SCHEMA = {"id": int, "server": str}


def build(input: str, output: str, trickle_events: int) -> weir.Dataflow:
    flow = weir.Dataflow("trickle")
    trickle = flow.source("trickle", weir.JsonLines(input, schema=SCHEMA, rate=25, events=trickle_events))
    trickle.key_by("server").count("count", parallelism=2).sink("out", weir.LatencySink(output, "trickle"))
    idle = flow.source("idle", weir.JsonLines(input, schema=SCHEMA, rate=0.001))
    busy = flow.source("busy", weir.JsonLines(input, schema=SCHEMA, rate=100))
    idle.rebalance().union("both", busy.rebalance()).key_by("server").count("both_count").sink(
        "both_out", weir.Blackhole()
    )
    aligned = weir.bounded_out_of_orderness(
        "0s", alignment=weir.watermark_alignment("10s"), idle_timeout="1h"
    )
    for name, rate in (("far", None), ("near", 20)):
        source = weir.JsonLines(input, schema=SCHEMA, rate=rate)
        rows = flow.source(name, source, event_time=pl.col("id") * 1_000, watermark=aligned)
        rows.sink(f"{name}_end", weir.Blackhole())
    return flow
