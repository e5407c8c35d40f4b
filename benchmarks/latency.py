"""Latency at a fixed rate, open loop: from the scheduled time of an event to the sink, all queues included."""

from __future__ import annotations

import tempfile
import time
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
from benchmarks.sustained import at_a_rate_that_lasts, check_quick
from experiments.cluster import Cluster

#: The first second is start-up: kernels run for the first time, caches fill. Reported apart, not left out of sight.
WARM_UP_MS = 1000
#: Up to this rate each event goes at once, and up to this one the bar follows ``taskManager.gather_ms``.
_LOWEST_RATE, _LOW_RATE = 100, 1000
_LOWEST_P99_MS = 15
#: And up to this one rows are to be quick; above, quick enough.
_MIDDLE_RATE = 10_000
_IDLE_JITTER_S = 1.0
#: A look at the job costs the control plane a few ms, which is a part of what is measured.
_LOOK_S = 0.5
#: With this rate only the first event of each source subtask comes.
_NO_RATE = 1e-3
#: Nothing is measured before: caches fill, the first checkpoint is made.
_IDLE_WARM_UP_S = 4.0
#: Most cores at these rates.
_CORES_MAX = {0.0: 0.03, 1e3: 0.15, 1e4: 0.5}


@dataclass(frozen=True)
class LatencyOptions:
    """Command-line options."""

    #: 0: nothing comes but one event of each source subtask; only processors are measured.
    rate: float = 10_000
    duration_s: float = 30
    keys: int = 100_000
    repeat: int = 3
    parallelism: int = 2
    task_managers: int = 2
    gather_ms: int = 25
    data_root: Path = DATA_DIRECTORY

    @property
    def events(self) -> int:
        """Events of one run."""
        return int(self.rate * self.duration_s) or 2 * self.parallelism


def bars(options: LatencyOptions) -> tuple[Bar, ...]:
    """What this rate must reach."""
    cores = (Bar("cores", "at most", _CORES_MAX[options.rate]),) if options.rate in _CORES_MAX else ()
    if options.rate == 0:
        return cores
    none_lost = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
    if options.rate <= _LOW_RATE:
        p99_ms = _LOWEST_P99_MS if options.rate <= _LOWEST_RATE else options.gather_ms + 5
        return (*cores, Bar("p99_ms", "at most", p99_ms), *none_lost)
    if options.rate <= _MIDDLE_RATE:
        return (*cores, Bar("p50_ms", "at most", 2), Bar("p99_ms", "at most", 6), *none_lost)
    return (*cores, Bar("p99_ms", "at most", 10), *none_lost)


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
            if not options.rate:
                runs.append(_idle_run(options, source, Path(directory), label, report))
                continue
            figures = at_a_rate_that_lasts(
                options.rate,
                lambda _, place=Path(directory), label=label: _one_run(  # type: ignore[misc]
                    options, source, place, label, report
                ),
                report,
                # The latency at another rate is another figure.
                rates_max=1,
            )
            runs.append(figures)
    config = {
        "job": "jobs.throughput",
        "rate": options.rate,
        "duration_s": options.duration_s,
        "events": options.events,
        "keys": options.keys,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
        "gather_ms": options.gather_ms,
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
            _parameters(options, source, directory),
            task_managers=options.task_managers,
            settings={"taskManager.gather_ms": options.gather_ms},
            look_s=_LOOK_S,
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
    figures = _figures(engine.figures(), latencies, idle_jitter, busy_jitter)
    check_quick({"events": latencies.height, **figures})
    return figures


def _parameters(options: LatencyOptions, source: Path, directory: Path) -> dict[str, object]:
    return {
        "input": source,
        "parallelism": options.parallelism,
        "rate": options.rate or _NO_RATE,
        "sink": "latency",
        "output": directory / "zout",
    }


def _idle_run(
    options: LatencyOptions, source: Path, directory: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    """Processors that a job takes to which nothing comes; nobody looks at it meanwhile."""
    report(label, 0.0)
    settings = {"taskManager.gather_ms": options.gather_ms}
    with Cluster(directory / "cluster", task_managers=options.task_managers, settings=settings) as cluster:
        cluster.start_control_plane("jobs.throughput", _parameters(options, source, directory))
        for _ in range(options.task_managers):
            cluster.start_task_manager()
        cluster.wait_for(lambda status: status["state"] == "RUNNING", "the start of the job")
        time.sleep(_IDLE_WARM_UP_S)
        began_s, before_s = time.monotonic(), _cpu_s(cluster)
        time.sleep(options.duration_s)
        elapsed_s, after_s = time.monotonic() - began_s, _cpu_s(cluster)
        status = cluster.status()
        if status is None or status["state"] != "RUNNING":
            raise BenchmarkError("the job did not go on running")
        cluster.http("POST", "/cancel")
    used = {name: (after_s[name] - before_s[name]) / elapsed_s for name in after_s}
    return {"cores": sum(used.values()), "cores_of": used, "p50_ms": None, "p99_ms": None}


def _cpu_s(cluster: Cluster) -> dict[str, float]:
    """CPU seconds, user and system, by process."""
    for process in cluster.processes.values():
        process.sample()
    return {name: process.cpu_s for name, process in cluster.processes.items()}


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
