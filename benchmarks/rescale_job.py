"""The job of the rescale benchmark: the stages of the throughput job, with state of a given size, every event recorded.

Source -> HASH -> running count, payload of new keys, record of each event, sink. A key gets its payload with its first
event, so an input that begins with one event of every key fills the state through the job itself.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from weir.operators.base import OperatorContext
from weir.records import INGEST_TIME_COLUMN

#: Columns of a record, each int64: number of the key, its count, arrival and due time in µs since the epoch.
RECORD_COLUMNS = 4


def build(
    input: str,
    output: str = "",
    rate: float | None = None,
    payload_bytes: int = 0,
    parallelism: int = 1,
    max_parallelism: int = 128,
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id``, the number of the key, and ``server_name``, the key.
        output: directory of the records; empty: events are only counted, without payload.
        rate: events per second; None: as fast as possible.
        payload_bytes: state of a key beside its count; random, so that nothing can compress it.
        parallelism: subtasks of the counts.
        max_parallelism: number of key groups.
    """
    flow = weir.Dataflow("rescale", max_parallelism=max_parallelism)
    source = weir.JsonLines(input, schema={"id": pl.Int64, "server_name": pl.String}, rate=rate)
    counts = (
        flow.source("events", source)
        .key_by("server_name")
        .count("count", output="n", parallelism=parallelism)
    )
    if output:
        counts = counts.process("record", functools.partial(Recorder, output, payload_bytes))
    counts.sink("out", weir.Blackhole())
    return flow


class Recorder(weir.KeyedProcess):
    """Gives new keys their payload, and appends a record of every row to a file of this subtask."""

    def __init__(self, directory: str, payload_bytes: int) -> None:
        self._directory = Path(directory)
        self._payload = np.random.default_rng(7).bytes(payload_bytes)
        self._file: BinaryIO | None = None

    def open(self, context: OperatorContext) -> None:
        """Take the store and create the file."""
        super().open(context)
        self._directory.mkdir(parents=True, exist_ok=True)
        # A record must not wait in a buffer of a subtask that is retired.
        self._file = open(self._directory / f"{context.subtask_index}.bin", "xb", buffering=0)  # noqa: SIM115

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The very input."""
        assert self._file is not None
        counts = batch.column("n").to_numpy()
        if self._payload and (counts == 1).any():
            groups, keys = self.keys(batch.filter(pa.array(counts == 1)))
            # The key in each value: one that reached another key would show.
            self.keyed_state.put_many(groups, keys, [self._payload[len(key) :] + key for key in keys])
        records = np.empty((batch.num_rows, RECORD_COLUMNS), dtype=np.int64)
        records[:, 0] = batch.column("id").to_numpy()
        records[:, 1] = counts
        records[:, 2] = time.time_ns() // 1000
        records[:, 3] = batch.column(INGEST_TIME_COLUMN).to_numpy()
        self._file.write(records.data)
        return (batch,)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()


def read_records(directory: Path) -> np.ndarray:
    """All records of a run, int64, shape (events, 4), in order of arrival."""
    parts = [np.fromfile(path, dtype=np.int64) for path in sorted(directory.glob("*.bin"))]
    records = np.concatenate(parts).reshape(-1, RECORD_COLUMNS)
    return records[np.argsort(records[:, 2], kind="stable")]
