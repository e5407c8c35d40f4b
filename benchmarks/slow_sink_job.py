"""The job of the overload benchmark: a running count per key, and a sink that takes only so many rows a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import polars as pl
import pyarrow as pa

import weir


def build(input: str, parallelism: int, sink_rate: float) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id`` and ``server_name``.
        parallelism: subtasks of both stages.
        sink_rate: rows per second that all sinks together take; far below what the source could give.
    """
    flow = weir.Dataflow("slow_sink")
    source = weir.JsonLines(input, schema={"id": pl.Int64, "server_name": pl.String})
    kept = flow.source("events", source, parallelism=parallelism).filter("keep", pl.col("id") % 4 != 0)
    counts = kept.key_by("server_name").count("count")
    counts.map_batches("slow", _slow(parallelism / sink_rate)).sink("out", weir.Blackhole())
    return flow


def _slow(row_s: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Sleeps, so that a slow sink leaves the processors to the rest, as a slow disk or network would."""

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(row_s * batch.num_rows)
        return batch

    return slow
