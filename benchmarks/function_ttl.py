"""State with a TTL over RocksDB, in one process: how much disk is kept after 10,000,000 keys have expired.

Rows go on while the sweep works as in a subtask that is not busy: steps of 2 ms, and then rows for as long. What the
sweep leaves on disk is compared with a store that has never had anything but the keys that are alive. Throughput is
that of counting in batches with and without a TTL, a part of what is dirty written after each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.results import BenchmarkError
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.dataflow.keyed_steps import process_states
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows.records import with_times
from weir.specs import KeyedProcessSpec
from weir.state.stores.rocksdb import RocksDbBackend, open_store
from weir.state.tables.opened import StateTables

EXPIRED_KEYS = 10_000_000
LIVE_KEYS = 1_000_000
_BATCH_ROWS = 32_768
_GROUPS = 128
_CACHE_BYTES = 128 << 20
_TTL_MS = 1_000
#: Keys of the rows that go on while there is a sweep: few, so that what their own updates leave on disk does not count.
_HOT_KEYS = 32_768
_HOT_ROWS = 2_048
_THROUGHPUT_EVENTS = 4_000_000
_REST = 1
_MERGES_S_MAX = 120.0


class Counts(weir.KeyedProcess):
    """Counts, a batch at a time."""

    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """Emits for each row the count after its batch."""
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        totals = self.total.get(keys.distinct).to_numpy() + counts
        self.total.put(keys.distinct, totals)
        yield batch.select(["user"]).append_column("n", pa.array(totals[keys.inverse]))


class CountsWithTtl(Counts):
    """The same, and a count that is not written for a second of event time begins anew."""

    total = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl("1s"))


class _Run:
    """One operator over one store."""

    def __init__(self, process: type[weir.KeyedProcess], directory: Path) -> None:
        self.directory = directory
        self.store: RocksDbBackend = open_store(directory, RocksDbConfig(), fresh=True)
        schema = pa.schema({"user": pa.int64(), "n": pa.int64()})
        spec = KeyedProcessSpec(("user",), process, schema, process_states("count", process))
        self.tables = StateTables(self.store, _CACHE_BYTES, _GROUPS)
        self.operator = KeyedProcessOperator(spec)
        tables = self.tables.of("count", {state.name: number for number, state in enumerate(spec.states)})
        self.operator.open(OperatorContext("ttl", "count", 1, 0, 1, _GROUPS, tables=tables))

    def count(self, users: np.ndarray, expected: int | None) -> None:
        """Process a batch; each of its counts is to be this one."""
        for out in self.operator.process(with_times(pa.record_batch({"user": users}), 0, 0)):
            assert isinstance(out, pa.RecordBatch)
            if expected is not None and (out.column("n").to_numpy() != expected).any():
                raise BenchmarkError(
                    f"a count is not {expected}: a value outlived its TTL, or died before it"
                )
        self.tables.flush_part(0.25)

    def disk_bytes(self) -> int:
        """Of table files."""
        return sum(path.stat().st_size for path in self.directory.rglob("*.sst"))

    def close(self) -> None:
        """Close the store."""
        self.tables.close()
        self.store.close()


def measure(directory: Path, on_part: Callable[[float], None]) -> dict[str, Any]:
    """Returns ``ttl_disk_ratio``, how long the sweep took, its steps, and both throughputs.

    Raises:
        BenchmarkError: a count is wrong, or space was not given back.
    """
    live = np.arange(EXPIRED_KEYS, EXPIRED_KEYS + LIVE_KEYS)
    kept_bytes = _kept_bytes(live, directory / "live")
    on_part(0.1)
    run = _Run(CountsWithTtl, directory / "swept")
    list(run.operator.on_watermark(1_000_000))
    for start in range(0, EXPIRED_KEYS, _BATCH_ROWS):
        run.count(np.arange(start, min(EXPIRED_KEYS, start + _BATCH_ROWS)), 1)
        on_part(0.1 + 0.5 * start / EXPIRED_KEYS)
    list(run.operator.on_watermark(1_000_000 + _TTL_MS))
    for batch in np.array_split(live, LIVE_KEYS // _BATCH_ROWS + 1):
        run.count(batch, 1)
    run.tables.flush()
    before_bytes = run.disk_bytes()
    swept = _sweep(run, live)
    on_part(0.8)
    after_bytes = run.disk_bytes()
    # What has expired is not there, and what has not is.
    run.count(np.arange(0, EXPIRED_KEYS, 1_001)[:_BATCH_ROWS], 1)
    run.close()
    rates = {
        name: _throughput(process, directory / name)
        for name, process in (("without", Counts), ("with", CountsWithTtl))
    }
    return {
        "ttl_disk_ratio": after_bytes / kept_bytes,
        "ttl": {
            "expired_keys": EXPIRED_KEYS,
            "live_keys": LIVE_KEYS,
            "disk_bytes_before": before_bytes,
            "disk_bytes_after": after_bytes,
            "disk_bytes_of_live_data": kept_bytes,
            **swept,
            "per_batch_events_per_second": rates["with"],
            "per_batch_events_per_second_without_ttl": rates["without"],
        },
    }


def _kept_bytes(live: np.ndarray, directory: Path) -> int:
    run = _Run(CountsWithTtl, directory)
    list(run.operator.on_watermark(1_000_000))
    for batch in np.array_split(live, LIVE_KEYS // _BATCH_ROWS + 1):
        run.count(batch, 1)
    run.tables.flush()
    run.store.compact()
    found = run.disk_bytes()
    run.close()
    return found


def _sweep(run: _Run, live: np.ndarray) -> dict[str, float]:
    """Sweep to the end, with rows in between, and wait for the merges of files."""
    began_s = time.perf_counter()
    steps_s: list[float] = []
    rows = rows_s = 0.0
    random = np.random.default_rng(7)
    while True:
        step_began_s = time.perf_counter()
        has_more = run.tables.sweeps.step()
        steps_s.append(time.perf_counter() - step_began_s)
        if not has_more:
            break
        rest_s = 0.0
        while rest_s < steps_s[-1] * _REST:
            first = int(random.integers(0, _HOT_KEYS - _HOT_ROWS))
            batch = live[first : first + _HOT_ROWS]
            row_began_s = time.perf_counter()
            run.count(batch, None)
            rest_s += time.perf_counter() - row_began_s
            rows += len(batch)
        rows_s += rest_s
    took_s = time.perf_counter() - began_s
    run.tables.flush()
    if not run.store.wait_given_back(_MERGES_S_MAX):
        raise BenchmarkError("the files are still being merged")
    deleted = sum(sweep.deleted for sweep in run.tables.sweeps)
    if deleted < EXPIRED_KEYS:
        raise BenchmarkError(f"{deleted:,} of {EXPIRED_KEYS:,} expired keys were swept")
    return {
        "sweep_s": took_s,
        "given_back_s": time.perf_counter() - began_s,
        "step_ms_p50": float(np.percentile(steps_s, 50)) * 1e3,
        "step_ms_p99": float(np.percentile(steps_s, 99)) * 1e3,
        "step_ms_max": max(steps_s) * 1e3,
        "events_per_second_meanwhile": rows / max(rows_s, 1e-9),
    }


def _throughput(process: type[weir.KeyedProcess], directory: Path) -> float:
    users = np.random.default_rng(7).integers(0, LIVE_KEYS, _THROUGHPUT_EVENTS)
    run = _Run(process, directory)
    list(run.operator.on_watermark(1_000_000))
    began_s = time.perf_counter()
    for start in range(0, len(users), _BATCH_ROWS):
        run.count(users[start : start + _BATCH_ROWS], None)
        run.tables.sweeps.step()
    run.tables.flush()
    took_s = time.perf_counter() - began_s
    run.close()
    return len(users) / took_s
