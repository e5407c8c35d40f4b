"""Operators that users write, on real task managers: RocksDB, a checkpoint every second, the generator included.

A measurement is a function of :data:`MEASUREMENTS`; it returns its figure and whatever else it has found.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks import function_timers, function_ttl
from benchmarks.command_line import Report
from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

JOB = "benchmarks.functions_job"
#: The slower form gets fewer events; its keys are as many.
_RECORD_SHARE = 0.2


@dataclass(frozen=True)
class FunctionsOptions:
    """What is measured, and on which input."""

    events: int = 10_000_000
    keys: int = 1_000_000
    repeat: int = 3
    parallelism: int = 2
    task_managers: int = 2
    #: Names of measurements; empty: all of them.
    only: tuple[str, ...] = ()
    data_root: Path = DATA_DIRECTORY


#: Called with the options, a directory that is removed afterwards, and what to call with the progress (0 to 1).
Measure = Callable[[FunctionsOptions, Path, Callable[[float], None]], Mapping[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One thing that is measured."""

    #: For ``--only``.
    name: str
    bars: tuple[Bar, ...]
    #: Returns the figures that the bars judge, by their names, and others.
    measure: Measure


def _count(
    form: str, options: FunctionsOptions, directory: Path, on_part: Callable[[float], None]
) -> dict[str, Any]:
    """Events per second of the counting job in one of the two forms.

    Raises:
        BenchmarkError: a count is wrong.
        ClusterError: the job did not finish.
    """
    events = max(1, round(options.events * (_RECORD_SHARE if form == "record" else 1)))
    source = events_directory(events, options.keys, root=options.data_root)
    setup = EngineSetup(
        JOB,
        {"input": source, "form": form, "parallelism": options.parallelism},
        task_managers=options.task_managers,
        settings={
            "taskManager.state_flush_interval_ms": 1000,
            "taskManager.operator_quota": 32,
            "controlPlane.checkpoint_interval_ms": 1000,
        },
    )
    engine = run_engine(setup, directory / "cluster", lambda done: on_part(done / events))
    if (engine.events_in, engine.events_out) != (events, events):
        raise BenchmarkError(
            f"{engine.events_in:,} events read, {engine.events_out:,} written, {events:,} expected"
        )
    difference = compare_counts(_expected(source), stored_counts(directory / "cluster"))
    difference.check(f"counts per {form}")
    figures = engine.figures()
    return {
        f"per_{form}_events_per_second": figures.pop("events_per_second"),
        f"per_{form}": {**figures, "lost": difference.lost, "duplicated": difference.duplicated},
    }


def _expected(source: Path) -> pl.DataFrame:
    lines = pl.scan_ndjson(source / "*.jsonl", schema={"server_name": pl.String})
    return lines.group_by("server_name").agg(count=pl.len().cast(pl.Int64)).collect()


MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement(
        "per_record",
        (Bar("per_record_events_per_second", "at least", 150_000),),
        functools.partial(_count, "record"),
    ),
    Measurement(
        "per_batch",
        (Bar("per_batch_events_per_second", "at least", 1_500_000),),
        functools.partial(_count, "batch"),
    ),
    Measurement(
        "timers",
        (Bar("timers_fire_ms", "at most", 1_000), Bar("timers_idle_ms", "at most", 1)),
        lambda options, directory, on_part: function_timers.measure(directory, on_part),
    ),
    Measurement(
        "ttl",
        (Bar("ttl_disk_ratio", "at most", 1.5),),
        lambda options, directory, on_part: function_ttl.measure(directory, on_part),
    ),
)


def run(options: FunctionsOptions, report: Report) -> BenchmarkResult:
    """Measure everything ``repeat`` times.

    Raises:
        BenchmarkError: a result is wrong, or ``only`` names no measurement.
        ClusterError: a job did not finish.
    """
    chosen = [item for item in MEASUREMENTS if not options.only or item.name in options.only]
    unknown = set(options.only) - {item.name for item in MEASUREMENTS}
    if unknown:
        names = ", ".join(item.name for item in MEASUREMENTS)
        raise BenchmarkError(f"there is no measurement {', '.join(sorted(unknown))}; there are {names}")
    config = {
        "events": options.events,
        "keys": options.keys,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
        "state": "rocksdb, a checkpoint every second",
    }
    bars = [bar for item in chosen for bar in item.bars]
    result = BenchmarkResult("functions", config, [], bars)
    for number in range(1, options.repeat + 1):
        figures: dict[str, Any] = {}
        for item in chosen:
            label = f"run {number} of {options.repeat}: {item.name}"
            report(label, 0.0)
            with tempfile.TemporaryDirectory(prefix="weir-functions-") as directory:
                figures |= item.measure(options, Path(directory), functools.partial(report, label))
        result.repeats.append(figures)
    return result
