"""The job of the join benchmark: orders with payloads, and what happens to them within an hour, as one stream of pairs.

Source -> orders (the first event of a key) and steps (its others) -> HASH -> interval join -> record of each pair.
An order is kept for an hour of event time, a step until its order must have come.
"""

from __future__ import annotations

import functools

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.record_sink import RecordSink

#: Bytes with which payloads are filled; each begins elsewhere in them, so that nothing can compress a store.
_NOISE_BYTES = 1 << 20


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
        input: JSON lines with ``id``, the number of the key, ``server_name``, the key, ``n``, how often it has come,
            and ``at``, ms.
        output: directory of the records; empty: pairs are only counted.
        rate: events per second; None: as fast as possible.
        payload_bytes: of an order, random.
        parallelism: subtasks of the join.
        max_parallelism: number of key groups.
    """
    flow = weir.Dataflow("joins", max_parallelism=max_parallelism)
    columns = {"id": pl.Int64, "server_name": pl.String, "n": pl.Int64, "at": pl.Int64}
    events = flow.source("events", weir.JsonLines(input, schema=columns, event_time="at", rate=rate))
    orders = (
        events.filter("orders", pl.col("n") == 1)
        .map_batches(
            "payload",
            functools.partial(with_payload, payload_bytes=payload_bytes),
            {"server_name": pl.String, "payload": pl.Binary},
        )
        .key_by("server_name")
    )
    steps = (
        events.filter("steps", pl.col("n") > 1)
        .select("needed", "server_name", "id", "n")
        .key_by("server_name")
    )
    pairs = orders.join("pairs", steps, within=("0s", "1h"), parallelism=parallelism)
    if not output:
        pairs.sink("out", weir.Blackhole())
        return flow
    checked = pairs.map_batches("checked", check_payload, {"id": pl.Int64, "n": pl.Int64})
    checked.sink("record", weir.UserSink(functools.partial(RecordSink, output)))
    return flow


@functools.cache
def _noise() -> bytes:
    return np.random.default_rng(7).bytes(_NOISE_BYTES)


def payloads(numbers: np.ndarray, names: list[str], payload_bytes: int) -> list[bytes]:
    """A payload for each key: noise, then its name; one that reached another key would show."""
    noise = _noise()
    places = (numbers * 7919) % (_NOISE_BYTES - payload_bytes)
    return [
        noise[place : place + payload_bytes - len(name)] + name.encode()
        for place, name in zip(places.tolist(), names, strict=True)
    ]


def with_payload(batch: pa.RecordBatch, payload_bytes: int) -> pa.RecordBatch:
    """The keys of orders, with payloads."""
    names = batch.column("server_name")
    made = payloads(batch.column("id").to_numpy(), names.to_pylist(), payload_bytes)
    return pa.RecordBatch.from_arrays([names, pa.array(made, pa.binary())], names=["server_name", "payload"])


def check_payload(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The numbers of the pairs; 0 for one with another key's payload, so that it counts as lost."""
    own = _ends_with(batch.column("payload"), batch.column("server_name"))
    ids = np.where(own, batch.column("id").to_numpy(), 0)
    return pa.RecordBatch.from_arrays([pa.array(ids), batch.column("n")], names=["id", "n"])


def _ends_with(values: pa.BinaryArray, ends: pa.StringArray) -> np.ndarray:
    """Whether each value ends with a text, or is empty; bool. As arrays: it runs in what is measured."""
    value_bounds, value_bytes = _content(values)
    end_bounds, end_bytes = _content(ends)
    sizes = np.diff(end_bounds)
    is_long = np.diff(value_bounds) >= sizes
    # The byte of a value that is compared with each byte of the ends.
    places = np.repeat(value_bounds[1:] - end_bounds[1:], sizes) + np.arange(end_bounds[0], end_bounds[-1])
    differs = np.zeros(len(values), dtype=bool)
    rows = np.repeat(np.arange(len(values)), sizes)
    compared = is_long[rows]
    wrong = value_bytes[places[compared]] != end_bytes[end_bounds[0] : end_bounds[-1]][compared]
    differs[rows[compared][wrong]] = True
    found: np.ndarray = (is_long & ~differs) | (np.diff(value_bounds) == 0)
    return found


def _content(values: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where texts or binaries begin and end, int64 of shape (values + 1,), and their bytes."""
    wide = values.cast(pa.large_binary())
    _, offsets, data = wide.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    return bounds, np.frombuffer(data if data is not None else b"", dtype=np.uint8)
