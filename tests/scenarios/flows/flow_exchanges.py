"""Every exchange, a union and two kinds of sources; see test_exact_results.py."""

import polars as pl

import weir

SCHEMA = {"id": int, "server": str, "part": int}


def add_parity(row):
    return {**row, "odd": row["id"] % 2}


def build(lines: str, table: str, output: str, parallelism: int = 2) -> weir.Dataflow:
    flow = weir.Dataflow("exchanges")
    events = flow.source("lines", weir.JsonLines(lines, schema=SCHEMA), parallelism=parallelism)
    others = flow.source("table", weir.Parquet(table, schema=SCHEMA))
    kept = events.filter("keep", pl.col("id") % 4 != 0).forward().pass_through("boundary")
    running = kept.key_by("server").aggregate(
        "running", n=weir.count(), total=weir.sum("id"), highest=weir.max("id")
    )
    running.sink("running_out", weir.JsonLinesSink(f"{output}/running"))
    merged = events.rebalance().union("merged", others.rebalance(), parallelism=parallelism)
    parities = merged.map("parity", add_parity, {**SCHEMA, "odd": int})
    last = parities.key_by("server", "odd").count("last", "n", emit="per_batch")
    last.sink("last_out", weir.JsonLinesSink(f"{output}/last"))
    copies = others.broadcast().pass_through("copies", parallelism=parallelism)
    copies.sink("copies_out", weir.JsonLinesSink(f"{output}/copies"))
    return flow
