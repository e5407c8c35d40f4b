"""A fast source of large rows in front of a step that sleeps."""

import functools
import time

import polars as pl
import pyarrow as pa

import weir


def doze(us_per_row, batch):
    time.sleep(batch.num_rows * us_per_row / 1e6)
    return batch.select([name for name in batch.schema.names if name != "payload"])


def build(
    input: str, output: str, us_per_row: float, events: int | None = None, load_ms: float = 0.0
) -> weir.Dataflow:
    flow = weir.Dataflow("slow")
    source = flow.source("events", weir.JsonLines(input, schema={"id": int}, events=events))
    large = source.with_columns("enlarge", payload=pl.col("id").cast(pl.String).str.pad_start(1000, "x"))
    ids = large.rebalance().map_batches(
        "doze",
        functools.partial(doze, us_per_row),
        pa.schema([pa.field("id", pa.int64(), False)]),
        parallelism=2,
    )
    ids.busy("busy", load_ms).sink("out", weir.JsonLinesSink(output))
    return flow
