"""A job whose steps and source can be made to fail."""

import sys
from typing import Literal

import polars as pl

import weir
from experiments.held_source import held


def explode(row):
    if row["id"] == 500:
        raise ValueError("no such server")
    return row


def leave(row):
    if row["id"] == 500:
        sys.exit("no such server")
    return row


def build(
    input: str,
    explodes: bool = False,
    exits: bool = False,
    sinks: bool = True,
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
    if exits:
        events = events.rebalance().map("leaving_step", leave)
    counts = events.filter("keep", pl.col("id") >= 0).key_by("server").count("count")
    counts.sink("out", weir.Blackhole() if sinks else weir.UserSink(int))
    return flow
