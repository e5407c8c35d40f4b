"""``python -m benchmarks sql``: SQL beside the builder, results beside Spark SQL and DuckDB, plan time, mistakes."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.nexmark import COMPARED_EVENTS, SETTINGS, Reference, chosen, open_reference
from benchmarks.nexmark import JOB as BUILDER_JOB
from benchmarks.nexmark_reference import comparable, table_of
from benchmarks.results import Bar, BenchmarkResult
from benchmarks.sql.judge import records_of
from benchmarks.sql.judging import differing, made_up_queries
from benchmarks.sql.mangled import mangled, wide
from benchmarks.sql.mutations import mutated, outcome, sample

SQL_JOB = "benchmarks.sql.job"
_FILES = Path("tests/weir/sql")
#: Least share of the builder's events a second.
_RATIO_MIN = 0.95
_PLAN_S_MAX = 2.0
#: What a measured run lasts at least, as far as so many times the events make it last: shorter ones are mostly chance.
_RUN_S, _GROWTH_MAX = 3.0, 64


@dataclass(frozen=True)
class SqlOptions:
    """Command-line options."""

    #: Of Nexmark; empty: all, and with them the queries that DuckDB judges, texts with mistakes and the plan.
    queries: tuple[str, ...] = ()
    #: People, auctions and bids of a measured run, and more where a query is done with them in less than three seconds;
    #: 0: nothing is measured.
    events: int = 5_000_000
    repeat: int = 3
    #: Compare with Spark SQL, which needs Java.
    compare: bool = True
    #: Made-up queries that DuckDB judges.
    made_up: int = 200
    #: The number of the first of them, where an earlier run ended.
    first: int = 0
    seed: int = 1
    #: Texts with mistakes.
    mutations: int = 200


def run(options: SqlOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Measure, compare and try; what differs is in the result, and named on the way."""
    names = chosen(options.queries)
    figures: dict[str, Any] = {}
    if not options.queries:
        # Who names queries of Nexmark wants these alone.
        figures |= {"plan_s": _plan_s(report)} | _mistakes(options, report) | _judged(options, report)
    with tempfile.TemporaryDirectory(prefix="weir-sql-") as name:
        directory = Path(name)
        if options.compare:
            figures["nexmark_equal"] = _compared(names, directory, report)
        if options.events:
            figures["queries"] = {query: _measured(query, options, directory, report) for query in names}
    bars = [
        Bar("plan_s", "at most", _PLAN_S_MAX),
        Bar("mutations_without_a_line", "at most", 0),
        Bar("judged_different", "at most", 0),
        Bar("nexmark_equal", "at least", len(names)),
        *(Bar(f"queries: {query}: ratio_to_builder", "at least", _RATIO_MIN) for query in names),
    ]
    config = {
        "events": options.events,
        "compared_events": COMPARED_EVENTS if options.compare else 0,
        "seed": options.seed,
        "first": options.first,
    }
    return BenchmarkResult("sql", config, [figures], bars)


def _plan_s(report: Callable[[str, float], None]) -> float:
    """Seconds of ``weir plan`` of a text of 200 lines, as a command; the median of three."""
    report("plan of a long text", 0.0)
    with tempfile.TemporaryDirectory(prefix="weir-sql-") as name:
        path = Path(name) / "long.sql"
        path.write_text(sample())
        found = []
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "weir", "plan", str(path)], check=True, capture_output=True)
            found.append(time.perf_counter() - start)
    return statistics.median(found)


def _mistakes(options: SqlOptions, report: Callable[[str, float], None]) -> dict[str, int]:
    texts = ("\n\n".join(sample().split("\n\n")[:11]), wide())
    wrong = 0
    for number in range(options.mutations):
        report("texts with mistakes", number / options.mutations)
        seed, text = options.seed * 1_000_000 + number, texts[number // 2 % 2]
        told = outcome(mangled(text, seed) if number % 2 else mutated(text, seed))
        if told not in ("plan", "error"):
            wrong += 1
            report(f"mutation {number}: {told}", number / options.mutations)
    return {"mutations": options.mutations, "mutations_without_a_line": wrong}


def _judged(options: SqlOptions, report: Callable[[str, float], None]) -> dict[str, int]:
    """Queries of the files and made-up ones, in random cuts, at parallelism 1 and 2, with restarts."""
    queries = list(made_up_queries(options.seed, options.first, options.made_up))
    if not options.first:
        # A run that goes on after another one has no need of them.
        files = [each for path in sorted(_FILES.glob("*.slt")) for each in records_of(path)]
        queries = [*enumerate(files), *queries]
    return {"judged": len(queries), "judged_different": differing(queries, options.seed, report)}


def _compared(names: Sequence[str], directory: Path, report: Callable[[str, float], None]) -> int:
    """How many queries of Nexmark have Spark's result."""
    equal = 0
    with ExitStack() as stack:
        reference: Reference = open_reference(directory, COMPARED_EVENTS, stack, report)
        for number, query in enumerate(names):
            report(f"comparing {query} with Spark SQL", number / len(names))
            output = directory / f"{query}-result"
            run_engine(
                EngineSetup(SQL_JOB, reference.parameters(query, output), settings=SETTINGS),
                directory / f"{query}-run",
            )
            if reference.equals(query, output, _table):
                equal += 1
            else:
                report(f"{query} DIFFERS", number / len(names))
    return equal


def _table(query: str, found: pl.DataFrame) -> pl.DataFrame:
    """A result in the form of the reference."""
    return table_of(found) if "_change" in found.columns else comparable(query, found)


def _measured(
    query: str, options: SqlOptions, directory: Path, report: Callable[[str, float], None]
) -> dict[str, Any]:
    """Events a second of both, in turn; medians. Uncounted runs by the builder say how many events."""

    def measured(job: str, events: int, label: str, done: float) -> dict[str, Any]:
        report(f"{query} {job} {label}", done)
        parameters = {"query": query, "events": events, "parallelism": 2}
        return run_engine(
            EngineSetup(job, parameters, settings=SETTINGS), directory / f"{query}-{job}-{label}"
        ).figures()

    events, most = options.events, options.events * _GROWTH_MAX
    while (took_s := measured(BUILDER_JOB, events, f"with {events:,}", 0.0)["sustained_s"]) < _RUN_S:
        if events == most:
            break
        events = min(math.ceil(events * max(1.3 * _RUN_S / took_s, 1.5)), most)
    rates: dict[str, list[float]] = {BUILDER_JOB: [], SQL_JOB: []}
    cpu: dict[str, list[float]] = {BUILDER_JOB: [], SQL_JOB: []}
    for number in range(options.repeat):
        for job in (BUILDER_JOB, SQL_JOB) if number % 2 == 0 else (SQL_JOB, BUILDER_JOB):
            made = measured(job, events, f"{number + 1}", number / options.repeat)
            rates[job].append(made["events_per_second"])
            cpu[job].append(made["cpu_seconds_per_million_events"])
    builder, sql = (statistics.median(rates[job]) for job in (BUILDER_JOB, SQL_JOB))
    builder_cpu, sql_cpu = (statistics.median(cpu[job]) for job in (BUILDER_JOB, SQL_JOB))
    return {
        "events": events,
        "builder_events_per_second": builder,
        "sql_events_per_second": sql,
        "ratio_to_builder": sql / builder,
        "ratio_of_cpu_to_builder": sql_cpu / builder_cpu if builder_cpu else None,
    }
