"""One worker of the ``state`` benchmark: half (or all) of the key groups, one RocksDB, one counting operator.

Started by ``benchmarks.state_bench`` as ``python -m benchmarks.state_worker PARAMETERS`` (JSON). It fills the store
through the operator, prints ``{"ready": ...}``, waits for a line on standard input, counts, and prints its figures;
then it compares every count in the store with an independent computation and runs the reference.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from rocksdict import Options, Rdict

from benchmarks.results import BenchmarkError
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.keys import hashing as weir_keys
from weir.operators.keyed.running_aggregates import KeyedAggregateOperator
from weir.rows.records import KEY_HASH_COLUMN
from weir.specs import Aggregate, KeyedAggregateSpec
from weir.state import layout
from weir.state.stores.directory_lock import DATA_NAME
from weir.state.stores.rocksdb import RocksDbBackend, open_store
from weir.state.tables.cells.accumulators import decode_values, encode_values
from weir.state.tables.opened import UNNAMED, StateTables

MAX_PARALLELISM = 128
FLUSH_INTERVAL_S = 1.0
_PREFIX = "server-"
_STATE_ID = 1


@dataclass(frozen=True)
class WorkerParameters:
    """What one worker does; travels as JSON on its command line."""

    directory: str
    worker_index: int
    worker_count: int
    keys: int
    events: int
    batch_rows: int
    seed: int
    state_cache_bytes: int
    rocksdb: dict[str, object]
    reference_events: int

    def settings(self) -> RocksDbConfig:
        """The store's settings."""
        return RocksDbConfig.model_validate(self.rocksdb)


def own_numbers(parameters: WorkerParameters) -> np.ndarray:
    """Numbers N whose key ``server-N`` belongs to this worker, uint32: every ``worker_count``-th key group."""
    chunks = []
    for start in range(0, parameters.keys, 1 << 16):
        numbers = np.arange(start, min(start + (1 << 16), parameters.keys), dtype=np.uint32)
        hashes = weir_keys.hash_keys(weir_keys.key_bytes(key_batch(numbers), ("server_name",)))
        groups = weir_keys.key_groups(hashes, MAX_PARALLELISM)
        chunks.append(numbers[groups % parameters.worker_count == parameters.worker_index])
    return np.concatenate(chunks)


def key_batch(numbers: np.ndarray) -> pa.RecordBatch:
    """One row ``server-N`` for each number."""
    names = pc.binary_join_element_wise(_PREFIX, pc.cast(pa.array(numbers), pa.string()), "")
    return pa.record_batch({"server_name": names})


def event_batch(numbers: np.ndarray) -> pa.RecordBatch:
    """As it comes out of a hash exchange: with the hash of the key."""
    batch = key_batch(numbers)
    hashes = weir_keys.hash_keys(weir_keys.key_bytes(batch, ("server_name",)))
    return batch.append_column(KEY_HASH_COLUMN, pa.array(hashes))


def event_numbers(parameters: WorkerParameters, own: np.ndarray) -> Iterator[np.ndarray]:
    """Key numbers of each batch; the same at every call."""
    rng = np.random.default_rng([parameters.seed, parameters.worker_index])
    for start in range(0, parameters.events, parameters.batch_rows):
        yield own[rng.integers(0, len(own), min(parameters.batch_rows, parameters.events - start))]


def open_operator(parameters: WorkerParameters, tables: StateTables) -> KeyedAggregateOperator:
    """A running count per event, kept in one of ``tables``."""
    operator = KeyedAggregateOperator(KeyedAggregateSpec(("server_name",), (Aggregate("count", "count"),)))
    operator.open(
        OperatorContext(
            "state-benchmark",
            "count",
            stage_index=1,
            subtask_index=parameters.worker_index,
            parallelism=parameters.worker_count,
            max_parallelism=MAX_PARALLELISM,
            tables=tables.of("count", {UNNAMED: _STATE_ID}),
        )
    )
    return operator


def count_batches(
    operator: KeyedAggregateOperator, tables: StateTables, batches: Iterator[np.ndarray]
) -> int:
    """Process all batches, flushing every second and at the end; returns the rows that came out."""
    rows = 0
    flushed_s = time.monotonic()
    for numbers in batches:
        for out in operator.process(event_batch(numbers)):
            rows += out.num_rows
        if time.monotonic() - flushed_s >= FLUSH_INTERVAL_S:
            tables.flush()
            flushed_s = time.monotonic()
    tables.flush()
    return rows


def expected_counts(parameters: WorkerParameters, own: np.ndarray) -> np.ndarray:
    """Count of every key number: one from the fill, the rest from the events; int64, shape (keys,)."""
    counts = np.zeros(parameters.keys, dtype=np.int64)
    counts[own] = 1
    for numbers in event_numbers(parameters, own):
        np.add.at(counts, numbers, 1)
    return counts


def stored_counts(store: RocksDbBackend, keys: int) -> np.ndarray:
    """What the store holds, shaped as :func:`expected_counts`.

    Raises:
        BenchmarkError: it holds a key twice.
    """
    counts = np.zeros(keys, dtype=np.int64)
    names: list[bytes] = []
    values: list[bytes] = []

    def add() -> None:
        numbers = np.array([int(name) for name in names], dtype=np.int64)
        cells, _ = decode_values(values, 1)
        if np.count_nonzero(counts[numbers]) or len(np.unique(numbers)) != len(numbers):
            raise BenchmarkError("the store holds a key twice")
        counts[numbers] = cells[:, 0]
        names.clear()
        values.clear()

    for key, value in store.scan():
        names.append(layout.decode_key(key).user_key[len(_PREFIX) :])
        values.append(value)
        if len(names) == 1 << 16:
            add()
    if names:
        add()
    return counts


def reference_rate(parameters: WorkerParameters, own: np.ndarray) -> float:
    """Events/s of the plain way on the same store: for each event one get and one put of rocksdict."""
    rng = np.random.default_rng(parameters.seed)
    numbers = own[rng.integers(0, len(own), parameters.reference_events)]
    batch = key_batch(numbers)
    groups = weir_keys.key_groups(
        weir_keys.hash_keys(weir_keys.key_bytes(batch, ("server_name",))), MAX_PARALLELISM
    )
    names = [name.encode() for name in batch.column(0).to_pylist()]
    keys = layout.encode_keys(groups, _STATE_ID, names)
    presence = np.zeros((1, 1), dtype=np.uint8)
    header = encode_values(np.zeros((1, 1), dtype=np.int64), presence)[:2]
    store = Rdict(str(Path(parameters.directory) / DATA_NAME), Options(raw_mode=True))
    began_s = time.perf_counter()
    for key in keys:
        value: Any = store[key]
        count = int.from_bytes(value[2:], "little")
        store[key] = header + (count + 1).to_bytes(8, "little")
    rate = len(keys) / (time.perf_counter() - began_s)
    store.close()
    return rate


def main() -> None:
    """See the module."""
    parameters = WorkerParameters(**json.loads(sys.argv[1]))
    process = psutil.Process()
    store = open_store(Path(parameters.directory), parameters.settings(), fresh=True)
    own = own_numbers(parameters)
    tables = StateTables(store, parameters.state_cache_bytes, MAX_PARALLELISM)
    operator = open_operator(parameters, tables)
    fill = np.random.default_rng(parameters.seed).permutation(own)
    began_s = time.perf_counter()
    count_batches(
        operator,
        tables,
        (fill[start : start + parameters.batch_rows] for start in range(0, len(fill), parameters.batch_rows)),
    )
    del fill
    say({"ready": True, "fill_s": time.perf_counter() - began_s, "keys": len(own)})
    sys.stdin.readline()

    before = operator.state.stats()
    cpu_s = _cpu_s(process)
    began_s = time.perf_counter()
    rows = count_batches(operator, tables, event_numbers(parameters, own))
    elapsed_s = time.perf_counter() - began_s
    after, stored = operator.state.stats(), store.stats()
    say(
        {
            "events": rows,
            "elapsed_s": elapsed_s,
            "cpu_s": _cpu_s(process) - cpu_s,
            "peak_rss_bytes": peak_rss_bytes(),
            "rss_bytes": process.memory_info().rss,
            "shared_file_bytes": process.memory_info().shared,
            "cached_keys": operator.state.capacity,
            "cache_bytes": after.memory_bytes,
            "cache_hit_ratio": (after.cache_hits - before.cache_hits) / (after.gets - before.gets),
            "store_memory_bytes": stored.memory_bytes,
            "store_disk_bytes": stored.disk_bytes,
        }
    )
    operator.close()
    difference = stored_counts(store, parameters.keys) - expected_counts(parameters, own)
    store.close()
    say(
        {
            "lost": int(-difference[difference < 0].sum()),
            "duplicated": int(difference[difference > 0].sum()),
            "reference_events_per_second": reference_rate(parameters, own),
        }
    )


def peak_rss_bytes() -> int:
    """The largest resident size that this process has had."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def say(figures: dict[str, object]) -> None:
    """One JSON line to the parent."""
    print(json.dumps(figures), flush=True)


def command_line(parameters: WorkerParameters) -> list[str]:
    """How to start a worker."""
    return [sys.executable, "-m", "benchmarks.state_worker", json.dumps(asdict(parameters))]


if __name__ == "__main__":
    main()
