"""The job of the benchmark ``watermark_lag``: five stages by three exchanges of rows by key; the last one notes time.

0 source -> 1 count by server -> 2 count by id -> 3 parity -> 4 note each watermark
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pyarrow as pa

import weir

SCHEMA = {"id": pl.Int64, "server_name": pl.String}
#: Ids are taken modulo this: state stays small.
_IDS = 10_000


class NoteWatermarks(weir.Operator):
    """Writes a line for each watermark: wall clock and watermark, both in ms since 1970."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def open(self, context: weir.OperatorContext) -> None:
        """Begin this subtask's file."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = (self._directory / f"watermarks-{context.subtask_index}.csv").open("w")

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Rows go on as they are."""
        return (batch,)

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """Note it."""
        self._file.write(f"{time.time() * 1e3:.3f},{time_ms}\n")
        return ()

    def close(self) -> None:
        """Write what is buffered."""
        self._file.close()


def build(
    input: str, output: str, rate: float, events: int, out_of_orderness: str = "0s", parallelism: int = 2
) -> weir.Dataflow:
    """The dataflow; events have the time at which they are due."""
    flow = weir.Dataflow("watermark_lag")
    source = weir.JsonLines(input, schema=SCHEMA, rate=rate, events=events)
    watermark = weir.bounded_out_of_orderness(out_of_orderness)
    rows = flow.source("events", source, parallelism=parallelism, watermark=watermark)
    servers = rows.key_by("server_name").count("servers", parallelism=parallelism)
    ids = servers.with_columns("short", id=pl.col("id") % _IDS).key_by("id").count("ids", "of_id")
    parities = ids.rebalance().with_columns("parity", odd=pl.col("id") % 2)
    noted = parities.key_by("odd").apply("noted", functools.partial(NoteWatermarks, output))
    noted.sink("out", weir.Blackhole())
    return flow
