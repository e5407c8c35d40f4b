"""Nexmark queries on task managers: events per second, CPU, and whether the result is that of Spark SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.nexmark_reference import comparable, equal_rows, expected, open_streams, write_streams
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from weir.errors import ConfigError
from weir.examples.nexmark import PARTITIONS, QUERIES

JOB = "weir.examples.nexmark"
#: Events of the run whose result is compared.
COMPARED_EVENTS = 200_000
#: Of the event time of that run: each event has a millisecond of its own, so that no two bids are the latest.
COMPARED_EVENTS_PER_SECOND = 1_000
#: Of the event time of measured runs.
EVENTS_PER_SECOND = 10_000
_PARALLELISM = 2
#: What each query must reach.
_EVENTS_PER_SECOND_MIN = {
    **dict.fromkeys(("q0", "q1", "q2", "q14", "q21", "q22"), 1_000_000),
    **dict.fromkeys(("q3", "q8"), 500_000),
    **dict.fromkeys(("q5", "q7", "q11", "q12", "q15", "q16", "q17"), 300_000),
    **dict.fromkeys(("q4", "q9", "q18", "q19"), 150_000),
    "q20": 100_000,
}


@dataclass(frozen=True)
class NexmarkOptions:
    """Command-line options."""

    #: Names; empty: all.
    queries: tuple[str, ...] = ()
    #: People, auctions and bids together; a query that reads only bids has 46 of 50.
    events: int = 10_000_000
    repeat: int = 3
    #: Compare with Spark SQL, which needs Java.
    compare: bool = True


def run(options: NexmarkOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run every query ``repeat`` times as fast as it goes, and once more to compare its result.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: a result is not that of Spark SQL.
        ClusterError: a job did not finish.
        ConfigError: there is no such query.
    """
    names = options.queries or tuple(QUERIES)
    unknown = [query for query in names if query not in QUERIES]
    if unknown:
        raise ConfigError(f"--query {unknown[0]}: there are {', '.join(QUERIES)}")
    with tempfile.TemporaryDirectory(prefix="weir-nexmark-") as name, ExitStack() as stack:
        directory = Path(name)
        compared = _compare(names, directory, stack, report) if options.compare else {}
        runs: list[dict[str, Any]] = []
        for number in range(1, options.repeat + 1):
            queries: dict[str, Any] = {}
            for query in names:
                label = f"run {number} of {options.repeat}: {query}"
                figures = _measure(query, options.events, directory / f"{query}-{number}", label, report)
                queries[query] = figures | compared.get(query, {})
            runs.append({"queries": queries})
    config = {"job": JOB, "events": options.events, "parallelism": _PARALLELISM, "task_managers": 2}
    bars = [
        Bar(f"queries: {query}: events_per_second", "at least", _EVENTS_PER_SECOND_MIN[query])
        for query in names
        if query in _EVENTS_PER_SECOND_MIN
    ]
    return BenchmarkResult("nexmark", config, runs, bars)


def _setup(query: str, events: int, events_per_second: int, output: str = "") -> EngineSetup:
    parameters = {
        "query": query,
        "events": events,
        "parallelism": _PARALLELISM,
        "output": output,
        "events_per_second": events_per_second,
    }
    return EngineSetup(JOB, parameters, settings={"taskManager.operator_quota": 32})


def _measure(
    query: str, events: int, directory: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    report(label, 0.0)
    setup = replace(_setup(query, events, EVENTS_PER_SECOND), measures_state=True)
    engine = run_engine(setup, directory, lambda done: report(label, done / events))
    figures = engine.figures()
    kept = ("events", "events_per_second", "cores", "cpu_seconds_per_million_events", "peak_rss_bytes_max")
    return {
        **{name: figures[name] for name in kept},
        "events_per_second_per_core": figures["events_per_second"] / figures["cores"],
        "peak_state_bytes": engine.peak_state_bytes,
        "peak_state_disk_bytes": engine.peak_disk_bytes,
        "rows": engine.events_out,
    }


def _compare(
    names: tuple[str, ...], directory: Path, stack: ExitStack, report: Callable[[str, float], None]
) -> dict[str, dict[str, Any]]:
    from workload.session import open_session

    report("Spark SQL", 0.0)
    spark = stack.enter_context(open_session("nexmark", "local[2]", short_run=True))
    write_streams(directory / "streams", COMPARED_EVENTS, 0, COMPARED_EVENTS_PER_SECOND)
    open_streams(spark, directory / "streams")
    found: dict[str, dict[str, Any]] = {}
    for number, query in enumerate(names):
        report(f"comparing {query} with Spark SQL", number / len(names))
        output = directory / f"{query}-result"
        setup = _setup(query, COMPARED_EVENTS, COMPARED_EVENTS_PER_SECOND, str(output))
        run_engine(setup, directory / f"{query}-compared")
        wanted = expected(spark, query, directory / f"{query}-spark")
        folders = dict.fromkeys(PARTITIONS.get(query, ()), pl.String)
        files = pl.read_parquet(
            output / "**/*.parquet", hive_partitioning=bool(folders), hive_schema=folders or None
        )
        if not equal_rows(comparable(query, files), wanted):
            raise BenchmarkError(f"{query}: the result is not that of Spark SQL over the same events")
        found[query] = {"equal_to_reference": True, "rows_compared": wanted.height}
    return found
