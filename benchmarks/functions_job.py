"""The job of the benchmark of users' operators: source -> HASH -> a count in declared state, by record or batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa

import weir

COLUMNS = {"server_name": pl.String, "n": pl.Int64}


class PerRecord(weir.KeyedProcess):
    """Counts, a row at a time."""

    total = weir.ValueState(pl.Int64, default=0)

    def process(
        self, key: tuple[str], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        """Emits the count after each row."""
        self.total.value += 1
        yield {"server_name": key[0], "n": self.total.value}


class PerBatch(weir.KeyedProcess):
    """Counts, a batch at a time."""

    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[pa.RecordBatch]:
        """Emits for each row the count after its batch."""
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        totals = self.total.get(keys.distinct).to_numpy() + counts
        self.total.put(keys.distinct, totals)
        yield batch.select(["server_name"]).append_column("n", pa.array(totals[keys.inverse]))


def build(
    input: str,
    form: Literal["record", "batch"],
    parallelism: int = 2,
    max_parallelism: int = 128,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id`` and ``server_name``, as the throughput benchmark has them.
        form: of the counting process.
        parallelism: subtasks of both stages.
        max_parallelism: number of key groups.
    """
    flow = weir.Dataflow("functions", max_parallelism=max_parallelism)
    source = weir.JsonLines(input, schema={"id": pl.Int64, "server_name": pl.String})
    events = flow.source("events", source, parallelism=parallelism).key_by("server_name")
    process = PerRecord if form == "record" else PerBatch
    events.process("count", process, COLUMNS).sink("out", weir.Blackhole())
    return flow
