"""Rows are counted by key, and again by the same key behind a second reader and ``forward()``; then in windows."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("keyed_again")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release)
    )
    counted = events.key_by("server").count("first", "n", parallelism=2)
    # A second reader: the next step begins a stage.
    again = counted.with_columns("second_step", twice=pl.col("n") * 2)
    again.key_by("server").count("second", "m").sink("out", weir.JsonLinesSink(output))
    ahead = counted.filter("third_step", pl.col("n") > 0).forward().with_columns("ahead", x=pl.col("n"))
    third = ahead.key_by("server").count("third", "m")
    third.sink("out_third", weir.JsonLinesSink(f"{output}-third"))
    windows = ahead.key_by("server").window(weir.tumbling("1s")).aggregate("windows", m=weir.count())
    windows.sink("out_windows", weir.JsonLinesSink(f"{output}-windows"))
    return flow
