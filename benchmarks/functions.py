"""Declared state in one process: the operator, its table and RocksDB, without exchange and checkpoints.

Counts events by key, per record and per batch; each count is checked.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from benchmarks.command_line import Report
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from weir.operators.base import OperatorContext
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.records import with_times
from weir.specs import KeyedProcessSpec
from weir.state.stores.rocksdb import open_store
from weir.state.stores.rocksdb_settings import RocksDbSettings
from weir.state.tables.opened import StateTables
from weir.streams import process_states

SCHEMA = pa.schema({"user": pa.int64(), "n": pa.int64()})
_BATCH_ROWS = 32_768
_CACHE_BYTES = 512 << 20
_GROUPS = 128
#: A part of what is dirty is written after so many batches.
_FLUSH_BATCHES = 8
#: Of two task managers: one process alone has to reach half.
_BARS = (
    Bar("per_record_events_per_second", "at least", 75_000),
    Bar("per_batch_events_per_second", "at least", 750_000),
)


class PerRecord(weir.KeyedProcess):
    """Counts, a row at a time."""

    total = weir.ValueState(pl.Int64, default=0)

    def process(
        self, key: tuple[Any, ...], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterator[dict[str, Any]]:
        """Emits the count after each row."""
        self.total.value += 1
        yield {"user": key[0], "n": self.total.value}


class PerBatch(weir.KeyedProcess):
    """Counts, a batch at a time."""

    total = weir.ValueState(pl.Int64, default=0)

    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterable[pa.RecordBatch]:
        """Emits for each row the count after its batch."""
        keys = context.keys(batch)
        counts = np.bincount(keys.inverse, minlength=len(keys.distinct))
        totals = self.total.get(keys.distinct).to_numpy() + counts
        self.total.put(keys.distinct, totals)
        yield batch.select(["user"]).append_column("n", pa.array(totals[keys.inverse]))


@dataclass(frozen=True)
class FunctionsOptions:
    """What is measured."""

    events: int = 4_000_000
    keys: int = 1_000_000
    repeat: int = 3


def run(options: FunctionsOptions, report: Report) -> BenchmarkResult:
    """Events per second of both forms.

    Raises:
        BenchmarkError: a count is wrong.
    """
    users = np.random.default_rng(7).integers(0, options.keys, options.events)
    expected = np.bincount(users, minlength=options.keys)
    # The slow form gets fewer events; its keys are as many.
    part = users[: len(users) // 4]
    part_expected = np.bincount(part, minlength=options.keys)
    result = BenchmarkResult(
        "functions", {"events": options.events, "keys": options.keys, "processes": 1}, [], _BARS
    )
    for number in range(options.repeat):
        report(f"run {number + 1} of {options.repeat}", number / options.repeat)
        result.repeats.append(
            {
                "per_record_events_per_second": _run(PerRecord, part, part_expected),
                "per_batch_events_per_second": _run(PerBatch, users, expected),
            }
        )
    return result


def _run(process: type[weir.KeyedProcess], users: np.ndarray, expected: np.ndarray) -> float:
    spec = KeyedProcessSpec(("user",), process, SCHEMA, process_states("count", process))
    batches = [
        with_times(pa.record_batch({"user": users[start : start + _BATCH_ROWS]}), 0, 0)
        for start in range(0, len(users), _BATCH_ROWS)
    ]
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(Path(directory, "store"), RocksDbSettings(), fresh=True)
        tables = StateTables(store, _CACHE_BYTES, _GROUPS)
        operator = KeyedProcessOperator(spec)
        context = OperatorContext(
            "functions", "count", 1, 0, 1, _GROUPS, tables=tables.of("count", {"total": 0})
        )
        operator.open(context)
        highest = np.zeros(len(expected), dtype=np.int64)
        began_s = time.perf_counter()
        checking_s = 0.0
        for number, batch in enumerate(batches):
            outputs = list(operator.process(batch))
            checking_began_s = time.perf_counter()
            for out in outputs:
                np.maximum.at(highest, out.column("user").to_numpy(), out.column("n").to_numpy())
            checking_s += time.perf_counter() - checking_began_s
            if number % _FLUSH_BATCHES == _FLUSH_BATCHES - 1:
                tables.flush_part(0.25)
        tables.flush()
        took_s = time.perf_counter() - began_s - checking_s
        tables.close()
        store.close()
    if not np.array_equal(highest, expected):
        raise BenchmarkError(
            f"{process.__name__} counted wrong for {int((highest != expected).sum()):,} keys"
        )
    return len(users) / took_s
