"""How many events a second the whole engine takes, durable state included, beside a batch query on the same input."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.polars_reference import run_reference
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

BARS = (
    Bar("events_per_second", "at least", 3_000_000),
    Bar("ratio_to_reference", "at least", 0.85),
    Bar("cpu_seconds_per_million_events", "at most", 0.75),
    Bar("peak_rss_bytes_max", "at most", 1 << 30),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
)
ONE_CORE_BARS = (Bar("events_per_second", "at least", 1_700_000), *BARS[3:])


@dataclass(frozen=True)
class ThroughputOptions:
    """Command-line options."""

    events: int = 10_000_000
    keys: int = 100_000
    repeat: int = 3
    parallelism: int = 2
    task_managers: int = 2
    #: One task manager on one processor, the control plane on another.
    one_core: bool = False
    data_root: Path = DATA_DIRECTORY


def run(
    options: ThroughputOptions, report: Callable[[str, float], None], *, compare_events: int | None = None
) -> BenchmarkResult:
    """Run the job and the reference ``repeat`` times, one after the other.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.
        compare_events: in every repeat, run with so many events too, and give the ratio of the speeds.

    Raises:
        BenchmarkError: the counts are wrong.
        ClusterError: the job did not finish.
    """
    runs = []
    for number in range(1, options.repeat + 1):
        label = f"run {number} of {options.repeat}"
        figures = _one_run(options, label, report)
        if compare_events is not None:
            other = _one_run(
                replace(options, events=compare_events), f"{label}, {compare_events:,} events", report
            )
            figures["compared_with"] = other
            figures["ratio_of_larger_to_smaller"] = _speed_ratio(figures, other)
        runs.append(figures)
    bars = ONE_CORE_BARS if options.one_core else BARS
    return BenchmarkResult(
        "throughput_one_core" if options.one_core else "throughput", _config(options), runs, bars
    )


def _config(options: ThroughputOptions) -> dict[str, object]:
    return {
        "job": "jobs.throughput",
        "events": options.events,
        "keys": options.keys,
        "parallelism": 1 if options.one_core else options.parallelism,
        "task_managers": 1 if options.one_core else options.task_managers,
        "one_core": options.one_core,
        "state": "rocksdb, dirty keys written every second",
    }


def engine_setup(options: ThroughputOptions, source: Path) -> EngineSetup:
    """How the job is run."""
    one = options.one_core
    return EngineSetup(
        "jobs.throughput",
        {"input": source, "parallelism": 1 if one else options.parallelism, "sink": "blackhole"},
        task_managers=1 if one else options.task_managers,
        settings={"taskManager.state_flush_interval_ms": 1000, "taskManager.operator_quota": 32},
        task_manager_cpus=[0] if one else None,
        control_plane_cpus=[1] if one else None,
    )


def _speed_ratio(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Events per second of the run with more events over those of the other."""
    small, large = sorted((one, other), key=lambda figures: int(figures["events"]))
    return float(large["events_per_second"] / small["events_per_second"])


def _one_run(options: ThroughputOptions, label: str, report: Callable[[str, float], None]) -> dict[str, Any]:
    source = events_directory(
        options.events,
        options.keys,
        root=options.data_root,
        on_part=lambda part, parts: report("generating the input", part / parts),
    )
    with tempfile.TemporaryDirectory(prefix="weir-throughput-") as directory:
        return _measure(options, source, Path(directory), label, report)


def _measure(
    options: ThroughputOptions,
    source: Path,
    directory: Path,
    label: str,
    report: Callable[[str, float], None],
) -> dict[str, Any]:
    report(f"{label}: engine", 0.0)
    engine = run_engine(
        engine_setup(options, source),
        directory / "cluster",
        lambda events: report(f"{label}: engine", events / options.events),
    )
    report(f"{label}: Polars", 0.0)
    counts_path = directory / "counts.parquet"
    cpus = [0] if options.one_core else None
    reference = run_reference(source, counts_path, threads=1 if options.one_core else 2, cpus=cpus)
    report(f"{label}: comparing counts", 0.0)
    difference = compare_counts(pl.read_parquet(counts_path), stored_counts(directory / "cluster"))
    difference.check("final counts")
    if (engine.events_in, engine.events_out) != (reference["events"], reference["kept"]):
        raise BenchmarkError(
            f"{engine.events_in} events read and {engine.events_out} at the sink, "
            f"{reference['events']} and {reference['kept']} expected"
        )
    figures = engine.figures()
    return {
        **figures,
        "lost": difference.lost,
        "duplicated": difference.duplicated,
        "reference": reference,
        "ratio_to_reference": figures["events_per_second"] / reference["events_per_second"],
    }
