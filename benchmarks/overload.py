"""A sink that is slower than the source: memory of every process must stay flat, and nothing may be lost."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.polars_reference import run_reference
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.stored_counts import compare_counts, stored_counts

BARS = (
    Bar("rss_growth_bytes_max", "at most", 100 << 20),
    Bar("lost", "at most", 0),
    Bar("duplicated", "at most", 0),
)
#: Of a run's length: caches, memory tables and channel buffers fill in the beginning.
_WARM_UP_SHARE = 0.25
_WARM_UP_S_MAX = 10.0
#: Share of the events that pass the filter.
_KEPT_SHARE = 0.75


@dataclass(frozen=True)
class OverloadOptions:
    """Command-line options."""

    duration_s: float = 60
    #: Rows that all sinks together take in a second.
    sink_rate: float = 100_000
    keys: int = 100_000
    parallelism: int = 2
    task_managers: int = 2
    data_root: Path = DATA_DIRECTORY

    @property
    def events(self) -> int:
        """As many as keep the sink busy for the whole run."""
        return int(self.sink_rate * self.duration_s / _KEPT_SHARE)


def run(options: OverloadOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run it once.

    Raises:
        BenchmarkError: events are missing or too many.
        ClusterError: the job did not finish.
    """
    report("generating the input", 0.0)
    source = events_directory(options.events, options.keys, root=options.data_root)
    setup = EngineSetup(
        "benchmarks.slow_sink_job",
        {"input": source, "parallelism": options.parallelism, "sink_rate": options.sink_rate},
        task_managers=options.task_managers,
        timeout_s=options.duration_s * 3 + 60,
    )
    with tempfile.TemporaryDirectory(prefix="weir-overload-") as name:
        directory = Path(name)
        engine = run_engine(
            setup, directory / "cluster", lambda events: report("slow sink", events / options.events)
        )
        expected = run_reference(source, directory / "counts.parquet", threads=2)
        difference = compare_counts(
            pl.read_parquet(directory / "counts.parquet"), stored_counts(directory / "cluster")
        )
    difference.check("final counts")
    if engine.events_out != expected["kept"]:
        raise BenchmarkError(f"{engine.events_out} events at the sink, {expected['kept']} expected")
    warm_up_s = min(_WARM_UP_S_MAX, engine.sustained_s * _WARM_UP_SHARE)
    figures = {
        "rss_growth_bytes_max": max(rss_growth_bytes(engine.rss_samples, warm_up_s).values()),
        "rss_growth_bytes": rss_growth_bytes(engine.rss_samples, warm_up_s),
        **engine.figures(),
        "lost": difference.lost,
        "duplicated": difference.duplicated,
    }
    config = {
        "job": "benchmarks.slow_sink_job",
        "events": options.events,
        "sink_rate": options.sink_rate,
        "keys": options.keys,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
        "warm_up_s": warm_up_s,
    }
    return BenchmarkResult("overload", config, [figures], BARS)


def rss_growth_bytes(samples: Sequence[tuple[float, dict[str, int]]], warm_up_s: float) -> dict[str, int]:
    """By process: largest less smallest resident memory after the warm-up."""
    later = [sizes for elapsed_s, sizes in samples if elapsed_s >= warm_up_s] or [samples[-1][1]]
    return {
        name: max(sizes[name] for sizes in later) - min(sizes[name] for sizes in later) for name in later[0]
    }
