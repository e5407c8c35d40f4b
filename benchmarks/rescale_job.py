"""The job of the rescale, checkpoint and recovery benchmarks: state of a given size, every event recorded.

Source -> HASH -> running count, payload of keys, record of each event: the stages of the throughput job. The count may
be a user's operator that keeps count and payload itself. A key gets its payload with its first event, so an input that
begins with one event of every key fills the state through the job.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.record_sink import RecordSink


def build(
    input: str,
    output: str = "",
    rate: float | None = None,
    payload_bytes: int = 0,
    rewrite_every: int = 0,
    parallelism: int = 1,
    max_parallelism: int = 128,
    state: str = "count",
) -> weir.Dataflow:
    """The dataflow.

    Args:
        input: JSON lines with ``id``, the number of the key, and ``server_name``, the key.
        output: directory of the records; empty: events are only counted, without payload.
        rate: events per second; None: as fast as possible.
        payload_bytes: state of a key beside its count; random, so that nothing can compress it.
        rewrite_every: about one of so many events writes its key's payload anew; 0: only the first event of a key does.
        parallelism: subtasks of the counts.
        max_parallelism: number of key groups.
        state: who counts: ``count``, the built-in step; ``user``, a process of batches that declares its states; or
            ``user-records``, the same for each record.
    """
    flow = weir.Dataflow("rescale", max_parallelism=max_parallelism)
    source = weir.JsonLines(input, schema={"id": pl.Int64, "server_name": pl.String}, rate=rate)
    keyed = flow.source("events", source).key_by("server_name")
    if state != "count":
        kind = UserCounts if state == "user" else UserRecordCounts
        process = functools.partial(kind, payload_bytes, rewrite_every)
        columns = {"id": pl.Int64, "server_name": pl.String, "n": pl.Int64}
        mine = keyed.process("count", process, columns, parallelism=parallelism)
        mine.sink("record", weir.UserSink(functools.partial(RecordSink, output)))
        return flow
    counts = keyed.count("count", output="n", parallelism=parallelism)
    if not output:
        counts.sink("out", weir.Blackhole())
        return flow
    filled = counts.process("payload", functools.partial(Payloads, payload_bytes, rewrite_every))
    filled.sink("record", weir.UserSink(functools.partial(RecordSink, output)))
    return flow


def writes_payload(numbers: np.ndarray, counts: np.ndarray, rewrite_every: int) -> np.ndarray:
    """Which events write their key's payload: bool, of the shape of the key numbers and counts (int64)."""
    writes: np.ndarray = np.equal(counts, 1)
    if rewrite_every:
        writes |= np.equal((numbers + counts) % rewrite_every, 0)
    return writes


class Payloads(weir.KeyedProcess):
    """Gives new keys their payload, and writes some anew."""

    payload = weir.ValueState(pl.Binary)

    def __init__(self, payload_bytes: int, rewrite_every: int) -> None:
        self._payload = np.random.default_rng(7).bytes(payload_bytes)
        self._rewrite_every = rewrite_every

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """The very input."""
        numbers, counts = batch.column("id").to_numpy(), batch.column("n").to_numpy()
        writes = writes_payload(numbers, counts, self._rewrite_every)
        if self._payload and writes.any():
            written = batch.filter(pa.array(writes))
            # The key in each value: one that reached another key would show.
            names = written.column("server_name").cast(pa.binary()).to_pylist()
            values = [self._payload[len(name) :] + name for name in names]
            self.payload.put(context.keys(written), values, last=True)
        return (batch,)


class UserCounts(weir.KeyedProcess):
    """Counts and keeps payloads in one operator, as a job author would."""

    total = weir.ValueState(pl.Int64, default=0)
    payload = weir.ValueState(pl.Binary)

    def __init__(self, payload_bytes: int, rewrite_every: int) -> None:
        self._payload = np.random.default_rng(7).bytes(payload_bytes)
        self._rewrite_every = rewrite_every

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """The input with the counts of its keys."""
        keys = context.keys(batch)
        rows = pl.DataFrame({"key": batch.column("server_name"), "before": self.total.get(keys)})
        # A key that comes several times in a batch: 1, 2 and so on.
        rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("key")
        counts = rows.select(pl.col("before") + rank).to_series().alias("n")
        self.total.put(keys, counts, last=True)
        numbers = batch.column("id").to_numpy()
        writes = writes_payload(numbers, counts.to_numpy(), self._rewrite_every)
        if self._payload and writes.any():
            written = batch.filter(pa.array(writes))
            names = written.column("server_name").cast(pa.binary()).to_pylist()
            values = [self._payload[len(name) :] + name for name in names]
            self.payload.put(context.keys(written), values, last=True)
        yield batch.add_column(2, "n", counts.to_arrow())


class UserRecordCounts(weir.KeyedProcess):
    """The same for each record. Reading or writing one payload reads those of all keys of the batch."""

    total = weir.ValueState(pl.Int64, default=0)
    payload = weir.ValueState(pl.Binary)

    def __init__(self, payload_bytes: int, rewrite_every: int) -> None:
        self._payload = np.random.default_rng(7).bytes(payload_bytes)
        self._rewrite_every = rewrite_every

    def process(
        self, key: tuple[str], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterable[dict[str, Any]]:
        """The row with the count of its key."""
        count = self.total.value = self.total.value + 1
        number, name = row["id"], key[0].encode()
        if count == 1 or (self._rewrite_every and (number + count) % self._rewrite_every == 0):
            self.payload.value = self._payload[len(name) :] + name
        yield {"id": number, "server_name": key[0], "n": count}
