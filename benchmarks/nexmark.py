"""Nexmark queries on task managers: events per second, CPU, and whether the result is that of Spark SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.nexmark_reference import equal_rows, expected, write_bids
from benchmarks.results import BenchmarkError, BenchmarkResult
from weir.errors import ConfigError
from weir.examples.nexmark import QUERIES

JOB = "weir.examples.nexmark"
#: Events of the run whose result is compared.
COMPARED_EVENTS = 200_000
_PARALLELISM = 2


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
    return BenchmarkResult("nexmark", config, runs)


def _setup(query: str, events: int, output: str = "") -> EngineSetup:
    parameters = {"query": query, "events": events, "parallelism": _PARALLELISM, "output": output}
    return EngineSetup(JOB, parameters, settings={"taskManager.operator_quota": 32})


def _measure(
    query: str, events: int, directory: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    report(label, 0.0)
    engine = run_engine(_setup(query, events), directory, lambda done: report(label, done / events))
    figures = engine.figures()
    kept = ("events", "events_per_second", "cores", "cpu_seconds_per_million_events", "peak_rss_bytes_max")
    return {
        **{name: figures[name] for name in kept},
        "events_per_second_per_core": figures["events_per_second"] / figures["cores"],
        "rows": engine.events_out,
    }


def _compare(
    names: tuple[str, ...], directory: Path, stack: ExitStack, report: Callable[[str, float], None]
) -> dict[str, dict[str, Any]]:
    from workload.session import open_session

    report("Spark SQL", 0.0)
    spark = stack.enter_context(open_session("nexmark", "local[2]", short_run=True))
    bids = directory / "bids.parquet"
    write_bids(bids, COMPARED_EVENTS, seed=0)
    found: dict[str, dict[str, Any]] = {}
    for number, query in enumerate(names):
        report(f"comparing {query} with Spark SQL", number / len(names))
        output = directory / f"{query}-result"
        run_engine(_setup(query, COMPARED_EVENTS, str(output)), directory / f"{query}-compared")
        wanted = expected(spark, query, bids, directory / f"{query}-spark")
        if not equal_rows(pl.read_parquet(output / "*.parquet"), wanted):
            raise BenchmarkError(f"{query}: the result is not that of Spark SQL over the same events")
        found[query] = {"equal_to_reference": True, "rows_compared": wanted.height}
    return found
