"""Sessions of many keys, most of which have one row: what a watermark costs, and whether memory and disk stay flat.

One subtask in this process with a RocksDB store. Each row has a key at random, event time goes on at ``rate`` rows a
second, a watermark comes twice a second of it, and the state is flushed every second of it, as for a checkpoint. The
input is not paced: ``s_per_s`` is the CPU time that a second of event time takes, and has to be below 1 to keep up.

Disk is a sawtooth: files pile up until the store merges them, and resident memory follows, since files are mapped. A
mean or a last value says where in a tooth the run ended. So both are looked at every second, and *growth* is the peak
of the last third of the run over the peak of the middle third: 1 is flat, whatever the teeth look like, as long as
each third has one. In the first third sessions begin and do not end yet for a gap and longer; it does not count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import weir
from benchmarks.results import Bar, BenchmarkResult
from weir.author.operator import OperatorContext
from weir.config.stores import RocksDbConfig
from weir.errors import ConfigError
from weir.keys import hashing as weir_keys
from weir.operators.windows.panes.making import make_window_operator
from weir.rows.records import KEY_HASH_COLUMN, with_times
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.stores.rocksdb import open_store
from weir.state.tables.opened import StateTables

_SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.int64())])
_SUMS = (WindowAggregate("n", "count"), WindowAggregate("total", "sum", "value"))
#: Memory and disk are flat below this.
_GROWTH_MAX = 1.1
#: A watermark comes so often in a second of event time.
_STEPS_PER_S = 2
#: A run is so many gaps long at least: sessions end as fast as they begin when two have passed, in its first third.
_GAPS_MIN = 6


@dataclass(frozen=True)
class SessionOptions:
    """What is measured."""

    keys: int = 1_000_000
    rate: int = 100_000
    seconds: int = 60
    gap_s: int = 10
    cache_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if self.seconds < _GAPS_MIN * self.gap_s:
            raise ConfigError(
                f"sessions of a gap of {self.gap_s} s need a run of {_GAPS_MIN * self.gap_s} s at least, "
                f"not of {self.seconds} s: they end as fast as they begin after a third of it only"
            )


@dataclass(frozen=True)
class SessionFigures:
    """Of a tenth of the run."""

    until_s: int
    results: int
    s_per_s: float
    #: The longest firing, wall clock.
    firing_ms_max: float
    cache_bytes: int
    #: The most and the least in this tenth.
    rss_bytes_max: int
    rss_bytes_min: int
    disk_bytes_max: int
    disk_bytes_min: int


@dataclass(frozen=True)
class SessionRun:
    """What was seen of a run."""

    tenths: list[SessionFigures]
    #: After each second of event time.
    rss_bytes: list[int]
    disk_bytes: list[int]


def measure(options: SessionOptions, report: Callable[[str, float], None]) -> SessionRun:
    """Run once."""
    window = weir.session(f"{options.gap_s}s")
    operator = make_window_operator(WindowAggregateSpec(("key",), window, _SUMS, _SCHEMA))
    found = SessionRun([], [], [])
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as directory:
        store = open_store(Path(directory) / "store", RocksDbConfig(), fresh=True)
        tables = StateTables(store, options.cache_bytes, 128)
        operator.open(OperatorContext("bench", "w", 1, 0, 1, tables=tables.of("w", {"": 1})))
        random = np.random.default_rng(5)
        tenth_s = max(1, options.seconds // 10)
        results, longest_s, began_s = 0, 0.0, time.process_time()
        for step in range(options.seconds * _STEPS_PER_S):
            list(operator.process(_batch(random, options, step)))
            now_s = (step + 1) // _STEPS_PER_S
            firing_s = time.perf_counter()
            results += sum(each.num_rows for each in operator.on_watermark((step + 1) * 1000 // _STEPS_PER_S))
            longest_s = max(longest_s, time.perf_counter() - firing_s)
            if (step + 1) % _STEPS_PER_S:
                continue
            tables.flush()
            found.disk_bytes.append(_bytes_of(Path(directory)))
            found.rss_bytes.append(process.memory_info().rss)
            if now_s % tenth_s == 0:
                spent_s = time.process_time() - began_s
                rss_bytes, disk_bytes = found.rss_bytes[-tenth_s:], found.disk_bytes[-tenth_s:]
                found.tenths.append(
                    SessionFigures(
                        now_s,
                        results,
                        spent_s / tenth_s,
                        longest_s * 1000,
                        tables.stats().memory_bytes,
                        max(rss_bytes),
                        min(rss_bytes),
                        max(disk_bytes),
                        min(disk_bytes),
                    )
                )
                report(f"sessions: {now_s} s", now_s / options.seconds)
                results, longest_s, began_s = 0, 0.0, time.process_time()
        operator.close()
        tables.close()
        store.close()
    return found


def _bytes_of(directory: Path) -> int:
    found = 0
    for path in directory.rglob("*"):
        # A background thread of the store may have deleted it.
        with suppress(FileNotFoundError):
            found += path.stat().st_size if path.is_file() else 0
    return found


def _batch(random: np.random.Generator, options: SessionOptions, step: int) -> pa.RecordBatch:
    rows = options.rate // _STEPS_PER_S
    arrays = [pa.array(random.integers(0, options.keys, rows)), pa.array(random.integers(0, 1000, rows))]
    times_ms = (step * rows + np.arange(rows)) * 1000 // options.rate
    batch = with_times(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), times_ms, 0)
    hashes = weir_keys.hash_keys(weir_keys.key_bytes(batch, ("key",)))
    field = pa.field(KEY_HASH_COLUMN, pa.uint64(), nullable=False)
    return batch.append_column(field, pa.array(hashes))


@dataclass(frozen=True)
class SessionSummary:
    """Of a whole run: was the rate held, and do memory and disk stay as they are?"""

    #: Rows that one core takes in a second, on the whole and in the slowest tenth.
    events_per_core_s: float
    events_per_core_s_min: float
    rss_bytes_max: int
    rss_growth: float
    disk_bytes_max: int
    disk_growth: float


def growth(samples: Sequence[int]) -> float:
    """The peak of the last third over that of the middle third, of samples at equal distances, three at least."""
    third = len(samples) // 3
    return max(samples[-third:]) / max(samples[-2 * third : -third])


def summary(options: SessionOptions, found: SessionRun) -> SessionSummary:
    """Figures of the whole run."""
    return SessionSummary(
        options.rate / fmean(each.s_per_s for each in found.tenths),
        options.rate / max(each.s_per_s for each in found.tenths),
        max(found.rss_bytes),
        growth(found.rss_bytes),
        max(found.disk_bytes),
        growth(found.disk_bytes),
    )


def run(options: SessionOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """The figures as the JSON file has them."""
    found = measure(options, report)
    measured = {f"until {each.until_s} s": asdict(each) for each in found.tenths}
    measured["whole run"] = asdict(summary(options, found))
    return BenchmarkResult("sessions", asdict(options), [{"sessions": measured}], _bars(options)).as_json()


def _bars(options: SessionOptions) -> tuple[Bar, ...]:
    """One core keeps up with the rate all the time, and nothing grows."""
    return (
        Bar("sessions: whole run: events_per_core_s_min", "at least", options.rate),
        Bar("sessions: whole run: rss_growth", "at most", _GROWTH_MAX),
        Bar("sessions: whole run: disk_growth", "at most", _GROWTH_MAX),
    )
