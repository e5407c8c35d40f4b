"""Nexmark queries on task managers: events per second, CPU, and whether the result is that of Spark SQL."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.nexmark_bars import FLINK_PER_CORE, bars
from benchmarks.nexmark_reference import (
    comparable,
    equal_choice,
    equal_rows,
    expected,
    open_streams,
    write_streams,
)
from benchmarks.results import BenchmarkError, BenchmarkResult
from weir.errors import ConfigError
from weir.examples.nexmark import PARTITIONS, QUERIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "weir.examples.nexmark"
PARALLELISM = 2
SETTINGS = {"taskManager.operator_quota": 32}
#: Events of the run whose result is compared.
COMPARED_EVENTS = 300_000
#: Of the event time of that run: each event has a millisecond of its own, so that no two bids are the latest.
COMPARED_EVENTS_PER_SECOND = 1_000
#: Of the event time of measured runs.
EVENTS_PER_SECOND = 10_000
#: Events of a measured run, where no number is given: enough for several seconds of work.
_EVENTS = {
    **dict.fromkeys(("q0", "q1", "q2", "q3", "q8", "q13"), 50_000_000),
    **dict.fromkeys(("q5", "q7", "q10", "q11", "q12", "q14", "q17", "q21", "q22"), 20_000_000),
    "q6": 1_000_000,
}
_EVENTS_OTHERS = 5_000_000
_KEPT = (
    "events",
    "sustained_s",
    "events_per_second",
    "cores",
    "cpu_seconds_per_million_events",
    "peak_rss_bytes_max",
)


@dataclass(frozen=True)
class NexmarkOptions:
    """Command-line options."""

    #: Names; empty: all.
    queries: tuple[str, ...] = ()
    #: People, auctions and bids together; a query that reads only bids has 46 of 50. 0: a number for each query.
    events: int = 0
    repeat: int = 1
    #: Compare with Spark SQL, which needs Java.
    compare: bool = True


class Reference:
    """An auction as files and as views of Spark SQL, and what Spark makes of it."""

    def __init__(self, spark: SparkSession, directory: Path, events: int) -> None:
        self._spark = spark
        self._directory = directory
        self._events = events

    def parameters(self, query: str, output: Path) -> dict[str, object]:
        """With which the job computes a query over the same events."""
        return _parameters(query, self._events, COMPARED_EVENTS_PER_SECOND) | {"output": str(output)}

    def equals(
        self, query: str, output: Path, told: Callable[[str, pl.DataFrame], pl.DataFrame] = comparable
    ) -> bool:
        """Whether the files that the job wrote, as ``told`` puts them, have Spark's rows, each as often."""
        wanted = expected(self._spark, query, self._directory / f"{query}-spark")
        folders = dict.fromkeys(PARTITIONS.get(query, ()), pl.String)
        files = pl.read_parquet(
            output / "**/*.parquet", hive_partitioning=bool(folders), hive_schema=folders or None
        )
        found = told(query, files)
        if query == "q19":
            return equal_choice(found, wanted, pl.read_parquet(self._directory / "streams" / "bid.parquet"))
        return equal_rows(found, wanted)


def open_reference(
    directory: Path, events: int, stack: ExitStack, report: Callable[[str, float], None]
) -> Reference:
    """Start Spark and write the auction; ``stack`` ends Spark."""
    from weir.spark.session import open_session

    report("Spark SQL", 0.0)
    spark = stack.enter_context(open_session("nexmark", "local[2]", short_run=True))
    write_streams(directory / "streams", events, 0, COMPARED_EVENTS_PER_SECOND)
    open_streams(spark, directory / "streams")
    return Reference(spark, directory, events)


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """Queries of these names; all if there are none.

    Raises:
        ConfigError: there is no such query.
    """
    for name in names:
        if name not in QUERIES:
            raise ConfigError(f"--query {name}: there are {', '.join(QUERIES)}")
    return tuple(names) or tuple(QUERIES)


def run(options: NexmarkOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run every query once to compare its result, then ``repeat`` times as fast as it goes.

    Args:
        options: what to run.
        report: called with what is being done and the part of it that is done, 0 to 1.

    Raises:
        BenchmarkError: a result is not that of Spark SQL; the message names all such queries.
        ClusterError: a job did not finish.
        ConfigError: there is no such query.
    """
    names = chosen(options.queries)
    with tempfile.TemporaryDirectory(prefix="weir-nexmark-") as name:
        directory = Path(name)
        equal = _compare(names, directory, report) if options.compare else set()
        runs: list[dict[str, Any]] = []
        for number in range(1, options.repeat + 1):
            queries: dict[str, Any] = {}
            for query in names:
                label = f"run {number} of {options.repeat}: {query}"
                events = options.events or _EVENTS.get(query, _EVENTS_OTHERS)
                figures = _measure(query, events, directory / f"{query}-{number}", label, report)
                queries[query] = figures | ({"equal_to_reference": True} if query in equal else {})
            runs.append({"queries": queries})
    config = {
        "job": JOB,
        "events": options.events or _EVENTS | {"others": _EVENTS_OTHERS},
        "parallelism": PARALLELISM,
        "task_managers": 2,
        "compared_events": COMPARED_EVENTS if options.compare else 0,
    }
    return BenchmarkResult("nexmark", config, runs, list(bars(names)))


def _parameters(query: str, events: int, events_per_second: int) -> dict[str, object]:
    return {
        "query": query,
        "events": events,
        "parallelism": PARALLELISM,
        "events_per_second": events_per_second,
    }


def _measure(
    query: str, events: int, directory: Path, label: str, report: Callable[[str, float], None]
) -> dict[str, Any]:
    report(label, 0.0)
    parameters = _parameters(query, events, EVENTS_PER_SECOND)
    setup = EngineSetup(JOB, parameters, settings=SETTINGS, measures_state=True)
    engine = run_engine(setup, directory, lambda done: report(label, done / events))
    figures = engine.figures()
    per_core = figures["events_per_second"] / figures["cores"]
    return {
        "auction_events": events,
        **{name: figures[name] for name in _KEPT},
        "events_per_second_per_core": per_core,
        # Of the whole auction, of which a query may read only people and auctions: as Flink's figures count.
        "auction_events_per_second_per_core": per_core * events / figures["events"],
        "flink_events_per_second_per_core": FLINK_PER_CORE.get(query),
        "ratio_to_flink_per_core": per_core / FLINK_PER_CORE[query] if query in FLINK_PER_CORE else None,
        "peak_state_bytes": engine.peak_state_bytes,
        "peak_state_disk_bytes": engine.peak_disk_bytes,
        "rows": engine.events_out,
    }


def _compare(names: Sequence[str], directory: Path, report: Callable[[str, float], None]) -> set[str]:
    """The queries, all of which have Spark's result.

    Raises:
        BenchmarkError: some have not.
    """
    equal = set()
    with ExitStack() as stack:
        reference = open_reference(directory, COMPARED_EVENTS, stack, report)
        for number, query in enumerate(names):
            report(f"comparing {query} with Spark SQL", number / len(names))
            output = directory / f"{query}-result"
            setup = EngineSetup(JOB, reference.parameters(query, output), settings=SETTINGS)
            run_engine(setup, directory / f"{query}-compared")
            if reference.equals(query, output):
                equal.add(query)
            else:
                report(f"{query} DIFFERS", number / len(names))
    if different := [query for query in names if query not in equal]:
        raise BenchmarkError(
            f"{', '.join(different)}: the result is not that of Spark SQL over the same events"
        )
    return equal
