"""A union of inputs that differ in what may be null, and after it a step that is slow until it is released."""

import time
from pathlib import Path

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}


def build(input: str, other: str, rate: float, output: str, release: str, row_ms: float) -> weir.Dataflow:
    flow = weir.Dataflow("unions")
    plain = weir.JsonLines(input, schema=SCHEMA | {"note": str}, rate=rate)
    noted = weir.JsonLines(other, schema=SCHEMA | {"note": weir.Nullable(str)}, rate=rate)
    first = flow.source("plain", held(plain, release))
    second = flow.source("noted", held(noted, release))
    both = first.rebalance().union("both", second.rebalance(), parallelism=2)

    def wait(batch):
        if not Path(release).exists():
            time.sleep(batch.num_rows * row_ms / 1e3)
        return batch

    told = both.map_batches("slow", wait).with_columns("told", note=pl.col("note").fill_null("none"))
    told.key_by("server").count("counted", "n").rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
