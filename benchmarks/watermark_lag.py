"""Lag of the watermark at the sink, five stages after the source: how long a window that could fire does not yet."""

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
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.sustained import at_a_rate_that_lasts, check_quick

#: Kernels run for the first time, caches fill.
_WARM_UP_MS = 4_000
#: The last watermark before the end of the input is not followed by another one.
_END_MS = 500
_STAGES = 5
_BAR_RATE = 10_000
_BAR_MS = 100


@dataclass(frozen=True)
class LagOptions:
    """Command-line options."""

    rate: float = _BAR_RATE
    duration_s: float = 20
    out_of_orderness_ms: int = 0
    repeat: int = 3
    parallelism: int = 2
    task_managers: int = 2
    data_root: Path = DATA_DIRECTORY


def run(options: LagOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job ``repeat`` times.

    Raises:
        BenchmarkError: no watermark reached the sink.
        ClusterError: the job did not finish.
    """
    report("generating the input", 0.0)
    events = int(options.rate * options.duration_s)
    source = events_directory(events, 100_000, root=options.data_root)
    runs = []
    for number in range(1, options.repeat + 1):
        label = f"run {number} of {options.repeat}: {options.rate:g} events/s for {options.duration_s:g} s"
        with tempfile.TemporaryDirectory(prefix="weir-lag-") as directory:
            figures = at_a_rate_that_lasts(
                options.rate,
                lambda _, place=Path(directory), label=label: _one_run(  # type: ignore[misc]
                    options, source, events, place, label, report
                ),
                report,
                # The lag at another rate is another figure.
                rates_max=1,
            )
            runs.append(figures)
    config = {
        "job": "benchmarks.watermark_lag_job",
        "rate": options.rate,
        "duration_s": options.duration_s,
        "out_of_orderness_ms": options.out_of_orderness_ms,
        "stages": _STAGES,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
    }
    bars = (Bar("p99_ms", "at most", _BAR_MS),) if options.rate >= _BAR_RATE else ()
    return BenchmarkResult(f"watermark_lag_{options.rate:g}", config, runs, bars)


def _one_run(
    options: LagOptions,
    source: Path,
    events: int,
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    report(label, 0.0)
    parameters = {
        "input": source,
        "output": directory / "watermarks",
        "rate": options.rate,
        "events": events,
        "out_of_orderness": f"{options.out_of_orderness_ms}ms",
        "parallelism": options.parallelism,
    }
    setup = EngineSetup(
        "benchmarks.watermark_lag_job", parameters, task_managers=options.task_managers, look_s=0.5
    )
    engine = run_engine(setup, directory / "cluster", lambda seen: report(label, seen / events))
    if len(engine.status["stages"]) != _STAGES:
        raise BenchmarkError(f"the job has {len(engine.status['stages'])} stages, not {_STAGES}")
    lags_ms = np.concatenate(
        [
            lags_of(path, options.out_of_orderness_ms)
            for path in sorted((directory / "watermarks").glob("*.csv"))
        ]
    )
    p50_ms, p99_ms, max_ms = np.percentile(lags_ms, [50, 99, 100]).tolist()
    check_quick({"events": len(lags_ms), "p50_ms": p50_ms})
    return {"p50_ms": p50_ms, "p99_ms": p99_ms, "max_ms": max_ms, **engine.figures()}


def lags_of(path: Path, out_of_orderness_ms: int) -> np.ndarray:
    """How far the watermark of one subtask was behind the clock at each millisecond; float64, shape (milliseconds,).

    Raises:
        BenchmarkError: the run was too short.
    """
    schema = {"at_ms": pl.Float64, "watermark_ms": pl.Int64}
    noted = pl.read_csv(path, has_header=False, schema=schema).filter(pl.col("watermark_ms") < 2**62)
    at_ms, watermark_ms = noted["at_ms"].to_numpy(), noted["watermark_ms"].to_numpy()
    if not len(at_ms) or at_ms[-1] - at_ms[0] < _WARM_UP_MS + 2 * _END_MS:
        raise BenchmarkError(f"{path.name}: {len(at_ms)} watermarks came in too short a time")
    clock_ms = np.arange(at_ms[0] + _WARM_UP_MS, at_ms[-1] - _END_MS, 1.0)
    known = watermark_ms[np.searchsorted(at_ms, clock_ms, side="right") - 1]
    lags: np.ndarray = clock_ms - known - out_of_orderness_ms
    return lags
