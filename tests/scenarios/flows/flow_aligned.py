"""Two sources whose event times pass at different speed, and one without rows; what was read when."""

import time

import polars as pl
import pyarrow as pa

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str, "at": int}
#: Of event time: how far one may be ahead, and what rows are counted by.
DRIFT_MS, WINDOW_MS = 5_000, 1_000


def stamped(batch):
    """Says when rows were read."""
    read_us = pa.array([time.time_ns() // 1_000] * batch.num_rows, pa.int64())
    return batch.append_column("read_us", read_us)


def build(far: str, near: str, none: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("aligned")
    alignment = weir.watermark_alignment(f"{DRIFT_MS}ms", group="both")
    streams = []
    for name, path in (("far", far), ("near", near), ("none", none)):
        lines = weir.JsonLines(path, schema=SCHEMA, event_time="at", rate=rate)
        # Rows that are kept back make no source idle: the other one's watermark would make them late.
        idle_timeout = "500ms" if name == "none" else "10m"
        watermark = weir.bounded_out_of_orderness("0s", alignment=alignment, idle_timeout=idle_timeout)
        source = flow.source(name, held(lines, release), watermark=watermark)
        read = source.map_batches(f"{name}_read", stamped, SCHEMA | {"read_us": int})
        streams.append(read.with_columns(f"{name}_named", is_far=pl.lit(name == "far")))
    both = streams[0].union("all", *streams[1:])
    counted = both.key_by("server").window(weir.tumbling(WINDOW_MS))
    is_far = pl.col("is_far")
    counted.aggregate(
        "counted",
        far=weir.count().where(is_far),
        near=weir.count().where(~is_far),
        far_us=weir.min("read_us").where(is_far),
        near_us=weir.min("read_us").where(~is_far),
    ).rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
