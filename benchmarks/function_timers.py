"""Timers of a keyed operator over RocksDB, in one process: 1,000,000 pending ones, a tenth of which is due at a time.

The state of each timer's key is read and written. Every timer must fire once, at its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables

TIMERS = 1_000_000
#: Timers are due at the times 0 to this, so that a watermark makes so many of them due.
SHARE = 100_000
_KEYS = 1_000_000
_BATCH_ROWS = 32_768
_GROUPS = 128
_CACHE_BYTES = 256 << 20
_IDLE_REPEATS = 20


class Alarms(weir.KeyedProcess):
    """A timer for each row; counts for each key what has fired."""

    fired = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """Registers."""
        context.timers.register(batch.column("at"), context.keys(batch))
        return ()

    def on_timer(
        self, key: tuple[Any, ...], time_ms: int, context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        """Counts."""
        self.fired.value += 1
        yield {"user": key[0], "at": time_ms, "n": self.fired.value}


class AlarmsInBatches(Alarms):
    """The same with whole batches of timers."""

    def on_timers(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """Counts; no key has two timers here."""
        keys = context.keys(batch)
        counts = self.fired.get(keys) + 1
        self.fired.put(keys, counts)
        yield pa.record_batch({"user": batch["user"], "at": batch["_event_time_ms"], "n": counts.to_arrow()})


def measure(directory: Path, on_part: Callable[[float], None]) -> dict[str, Any]:
    """Milliseconds in which 100,000 of 1,000,000 timers fire, and in which nothing due is found after 900,000 have.

    Raises:
        BenchmarkError: a timer did not fire, or twice, or at another time.
    """
    one = _measure(Alarms, directory / "one", lambda done: on_part(done / 2))
    many = _measure(AlarmsInBatches, directory / "many", lambda done: on_part((1 + done) / 2))
    return {
        "timers_fire_ms": max(one["fire_ms"]),
        "timers_idle_ms": max(one["idle_ms"], many["idle_ms"]),
        "timers": {"one_by_one": one, "in_batches": many},
    }


def _measure(
    process: type[weir.KeyedProcess], directory: Path, on_part: Callable[[float], None]
) -> dict[str, Any]:
    times = np.random.default_rng(11).permutation(TIMERS)
    users = np.arange(TIMERS) % _KEYS
    store = open_store(directory, RocksDbConfig(), fresh=True)
    tables = StateTables(store, _CACHE_BYTES, _GROUPS)
    operator = _open(process, tables)
    began_s = time.perf_counter()
    for start in range(0, TIMERS, _BATCH_ROWS):
        part = slice(start, start + _BATCH_ROWS)
        list(operator.process(with_times(pa.record_batch({"user": users[part], "at": times[part]}), 0, 0)))
    tables.flush()
    register_s = time.perf_counter() - began_s
    fire_ms: list[float] = []
    for number in range(TIMERS // SHARE - 1):
        watermark = (number + 1) * SHARE - 1
        began_s = time.perf_counter()
        outputs = list(operator.on_watermark(watermark))
        fire_ms.append((time.perf_counter() - began_s) * 1e3)
        _check(outputs, number * SHARE, times)
        # As a checkpoint does: what has fired is gone from the store.
        tables.flush()
        on_part(number * SHARE / TIMERS)
    idle_ms = []
    for step in range(_IDLE_REPEATS):
        began_s = time.perf_counter()
        due_us = operator.due_us()
        outputs = list(operator.on_watermark(TIMERS - SHARE - 1))
        idle_ms.append((time.perf_counter() - began_s) * 1e3)
        if outputs or not due_us:
            raise BenchmarkError(f"look {step}: timers fired that are not due")
    tables.close()
    store.close()
    return {
        "register_per_second": round(TIMERS / register_s),
        "fire_ms": [round(value, 1) for value in fire_ms],
        "idle_ms": max(idle_ms),
    }


def _open(process: type[weir.KeyedProcess], tables: StateTables) -> KeyedProcessOperator:
    schema = pa.schema({"user": pa.int64(), "at": pa.int64(), "n": pa.int64()})
    states = process_states("alarms", process)
    key_schema = pa.schema({"user": pa.int64()})
    operator = KeyedProcessOperator(KeyedProcessSpec(("user",), process, schema, states, key_schema))
    ids = {state.name: number for number, state in enumerate(states)}
    context = OperatorContext("functions", "alarms", 1, 0, 1, _GROUPS, tables=tables.of("alarms", ids))
    operator.open(context)
    # As a subtask does before its first sleep: what the store holds is looked up, for each key group once.
    operator.due_us()
    return operator


def _check(outputs: list[pa.RecordBatch], first: int, times: np.ndarray) -> None:
    found = pa.Table.from_batches(outputs)
    at = np.sort(found.column("at").to_numpy())
    if not np.array_equal(at, np.arange(first, first + SHARE)):
        raise BenchmarkError(
            f"{found.num_rows:,} timers fired from {first:,} on, {SHARE:,} expected, each once"
        )
    if not np.array_equal(times[found.column("user").to_numpy()], found.column("at").to_numpy()):
        raise BenchmarkError("a timer fired for another key")
    if set(found.column("n").to_pylist()) != {1}:
        raise BenchmarkError("the state of a key was not its own")
