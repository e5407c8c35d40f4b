"""A job whose steps and source can be made to fail."""

from typing import Literal

import polars as pl

import weir
from experiments.held_source import held


def explode(row):
    if row["id"] == 500:
        raise ValueError("no such server")
    return row


def build(
    input: str,
    explodes: bool = False,
    on_bad_record: Literal["dead_letter", "fail"] = "dead_letter",
    rate: float | None = None,
    parallelism: int = 2,
    release: str = "",
) -> weir.Dataflow:
    flow = weir.Dataflow("faulty")
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate, on_bad_record=on_bad_record)
    events = flow.source("events", held(source, release), parallelism=parallelism)
    if explodes:
        events = events.rebalance().map("exploding_step", explode)
    counts = events.filter("keep", pl.col("id") >= 0).key_by("server").count("count")
    counts.sink("out", weir.Blackhole())
    return flow
