"""Latency at a fixed rate, open loop: from the scheduled time of an event to the sink, all queues included."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.jitter import JitterProcess
from benchmarks.polars_reference import run_reference
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

#: The first second is start-up: kernels run for the first time, caches fill. Reported apart, not left out of sight.
WARM_UP_MS = 1000
#: Up to this rate the bar follows the batch time-out.
_LOW_RATE = 1000
_IDLE_JITTER_S = 1.0


@dataclass(frozen=True)
class LatencyOptions:
    """Command-line options."""

    rate: float = 10_000
    duration_s: float = 30
    keys: int = 100_000
    repeat: int = 3
    parallelism: int = 2
    task_managers: int = 2
    batch_timeout_ms: int = 10
    data_root: Path = DATA_DIRECTORY

    @property
    def events(self) -> int:
        """Events of one run."""
        return int(self.rate * self.duration_s)


def bars(options: LatencyOptions) -> tuple[Bar, ...]:
    """What this rate must reach."""
    none_lost = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
    if options.rate <= _LOW_RATE:
        return (Bar("p99_ms", "at most", options.batch_timeout_ms + 5), *none_lost)
    return (Bar("p50_ms", "at most", 3), Bar("p99_ms", "at most", 10), *none_lost)


def run(options: LatencyOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job ``repeat`` times.

    Raises:
        BenchmarkError: events are missing or too many.
        ClusterError: the job did not finish.
    """
    report("generating the input", 0.0)
    source = events_directory(options.events, options.keys, root=options.data_root)
    runs = []
    for number in range(1, options.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="weir-latency-") as directory:
            label = (
                f"run {number} of {options.repeat}: {options.rate:g} events/s for {options.duration_s:g} s"
            )
            runs.append(_one_run(options, source, Path(directory), label, report))
    config = {
        "job": "jobs.throughput",
        "rate": options.rate,
        "duration_s": options.duration_s,
        "events": options.events,
        "keys": options.keys,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
        "batch_timeout_ms": options.batch_timeout_ms,
        "warm_up_cut_ms": WARM_UP_MS,
    }
    return BenchmarkResult(f"latency_{options.rate:g}", config, runs, bars(options))


def _one_run(
    options: LatencyOptions, source: Path, directory: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    report(f"{label}: timer jitter of the idle machine", 0.0)
    idle_jitter = JitterProcess(_IDLE_JITTER_S).result()
    report(label, 0.0)
    jitter = JitterProcess(options.duration_s)
    try:
        setup = EngineSetup(
            "jobs.throughput",
            {
                "input": source,
                "parallelism": options.parallelism,
                "rate": options.rate,
                "sink": "latency",
                "output": directory / "zout",
            },
            task_managers=options.task_managers,
            settings={"taskManager.batch_timeout_ms": options.batch_timeout_ms},
        )
        engine = run_engine(
            setup, directory / "cluster", lambda events: report(label, events / options.events)
        )
        busy_jitter = jitter.result()
    finally:
        jitter.close()
    latencies = read_latencies(directory / "zout")
    counts_path = directory / "counts.parquet"
    expected = run_reference(source, counts_path, threads=2)
    difference = compare_counts(pl.read_parquet(counts_path), stored_counts(directory / "cluster"))
    difference.check("final counts")
    if latencies.height != expected["kept"] or engine.events_in != expected["events"]:
        raise BenchmarkError(
            f"{engine.events_in} events read and {latencies.height} at the sink, "
            f"{expected['events']} and {expected['kept']} expected"
        )
    return _figures(engine.figures(), latencies, idle_jitter, busy_jitter)


def read_latencies(directory: Path) -> pl.DataFrame:
    """``arrival_ms`` (Int64) and ``latency_ms`` (Float64) of all latency files of one run."""
    files = [path for path in sorted(directory.glob("*.txt")) if not path.is_symlink()]
    schema = {"arrival_ms": pl.Int64, "latency_ms": pl.Float64}
    return pl.concat([pl.read_csv(path, has_header=False, schema=schema) for path in files])


def percentiles(latencies: pl.DataFrame) -> dict[str, float]:
    """``p50_ms``, ``p99_ms``, ``max_ms`` (nearest rank)."""
    column = latencies["latency_ms"].to_numpy()
    p50_ms, p99_ms, max_ms = np.percentile(column, [50, 99, 100], method="inverted_cdf").tolist()
    return {"p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": max_ms}


def without_warm_up(latencies: pl.DataFrame) -> pl.DataFrame:
    """Events scheduled after the first second; all of them if the run is not longer."""
    scheduled_ms = pl.col("arrival_ms") - pl.col("latency_ms")
    later = latencies.filter(scheduled_ms >= scheduled_ms.min() + WARM_UP_MS)
    return later if later.height else latencies


def _figures(
    engine: dict[str, Any], latencies: pl.DataFrame, idle_jitter: dict[str, Any], busy_jitter: dict[str, Any]
) -> dict[str, Any]:
    steady = percentiles(without_warm_up(latencies))
    return {
        **steady,
        "with_warm_up": percentiles(latencies),
        "events_at_sink": latencies.height,
        **engine,
        "lost": 0,
        "duplicated": 0,
        "reference": {
            "what": "sleeping 1 ms in a loop in a process of its own, during the run: how much too long it takes",
            **busy_jitter,
        },
        "idle_machine": {"what": "the same before the run", **idle_jitter},
        "ratio_to_reference": steady["p99_ms"] / max(busy_jitter["p99_ms"], 1e-3),
    }
