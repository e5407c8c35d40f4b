"""Questions to a running job: how quick answers are, and what they cost the job."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine_run import EngineSetup, run_engine
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.query_scan import scan_figures
from benchmarks.question_callers import LATE_STATUSES, ask_all
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.sustained import OverloadedError, at_a_rate_that_lasts, check_keeps_up
from experiments.cluster import Cluster

BARS = (
    Bar("p50_ms", "at most", 2),
    Bar("p99_ms", "at most", 10),
    Bar("throughput_ratio", "at least", 0.9),
    Bar("scan_added_p99_ms", "at most", 20),
)
#: The job fills its state and its caches, and makes a checkpoint.
_WARM_UP_S = 4.0
#: Warm-up and start, for which there must be input.
_SPARE_S = 20.0
#: Callers who are late end so much later at most.
_LATE_S = 60.0
#: A job on schedule reads so much of its rate at least.
_ON_SCHEDULE_SHARE = 0.9
#: What ``at_a_rate_that_lasts`` says of the rate: of the questions for single keys.
_OF_RATE = frozenset({"judged", "not_judged", "rate", "rate_given", "rate_is"})
#: What the input has by itself; more is the same again.
_EVENTS = 10_000_000


@dataclass(frozen=True)
class QueryOptions:
    """Command-line options."""

    #: Events per second of the job; 0: half of its top throughput, which is measured first.
    rate: float = 0
    questions_per_s: float = 500
    #: Length of each of the two phases: without questions, and with them.
    duration_s: float = 10
    keys: int = 100_000
    #: Keys of the job over which scans go; 0: none.
    scan_keys: int = 1_000_000
    callers: int = 4
    parallelism: int = 2
    task_managers: int = 2
    repeat: int = 1
    data_root: Path = DATA_DIRECTORY


def run(options: QueryOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Measure ``repeat`` times, at a rate with which the machine keeps up.

    Raises:
        BenchmarkError: a question was refused, or the job ended.
        ClusterError: the job did not start.
    """
    source = events_directory(_EVENTS, options.keys, root=options.data_root)
    repeats = []
    for number in range(options.repeat):
        report(f"run {number + 1}", number / options.repeat)
        with tempfile.TemporaryDirectory(prefix="weir-queries-") as name:
            directory = Path(name)
            top = 0.0 if options.rate else _top_throughput(options, source, directory / "top")
            rate = options.rate or top / 2

            def measured(tried: float, directory: Path = directory) -> dict[str, Any]:
                return _measure(options, tried, source, directory / f"{tried:.0f}")

            figures = at_a_rate_that_lasts(rate, measured, report)
            if options.scan_keys and figures["judged"]:
                report("scans", number / options.repeat)
                scans = scan_figures(
                    directory / "scan", options.data_root, options.scan_keys, options.task_managers, report
                )
                figures |= {name: scans[name] for name in scans if name not in _OF_RATE}
                if not scans["judged"]:
                    figures |= {"judged": 0, "not_judged": f"scans: {scans['not_judged']}"}
            repeats.append({**figures, "top_events_per_second": top})
    config = {
        "job": "jobs.throughput",
        "rate": options.rate,
        "questions_per_s": options.questions_per_s,
        "duration_s": options.duration_s,
        "keys": options.keys,
        "scan_keys": options.scan_keys,
        "callers": options.callers,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
    }
    bars = BARS if options.scan_keys else BARS[:-1]
    return BenchmarkResult("queries", config, repeats, bars)


def _top_throughput(options: QueryOptions, source: Path, directory: Path) -> float:
    """Events per second of the same job without a rate and without questions."""
    parameters = {"input": source, "parallelism": options.parallelism}
    settings = {"controlPlane.checkpoint_interval_ms": 1000}
    setup = EngineSetup("jobs.throughput", parameters, options.task_managers, settings)
    run = run_engine(setup, directory, lambda events: None)
    return run.events_in / run.sustained_s


def _repeated(source: Path, directory: Path, events: float) -> Path:
    """A directory in which the files of ``source`` are so many times that there are at least so many events."""
    directory.mkdir(parents=True)
    for number in range(-int(-events // _EVENTS)):
        for path in source.iterdir():
            (directory / f"{number:03d}-{path.name}").symlink_to(path.resolve())
    return directory


def _measure(options: QueryOptions, rate: float, source: Path, directory: Path) -> dict[str, Any]:
    """Figures at a rate.

    Raises:
        OverloadedError: the machine does not keep up with it.
        BenchmarkError: a question was refused otherwise, or the job ended.
    """
    repeated = _repeated(source, directory / "events", rate * (2 * options.duration_s + _SPARE_S))
    parameters = {"input": repeated, "parallelism": options.parallelism, "rate": rate}
    settings = {"controlPlane.checkpoint_interval_ms": 1000}
    with Cluster(directory / "cluster", task_managers=options.task_managers, settings=settings) as cluster:
        cluster.start_control_plane("jobs.throughput", parameters)
        for _ in range(options.task_managers):
            cluster.start_task_manager()
        cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first rows")
        time.sleep(_WARM_UP_S)
        check_keeps_up(cluster, rate)
        alone = _events_per_second(cluster, options.duration_s)
        if alone < _ON_SCHEDULE_SHARE * rate:
            raise OverloadedError(f"the job reads {alone:,.0f} events/s")
        # A process of its own: neither the figures nor the answers wait for the GIL of this one.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            given = (cluster.http_port, options.questions_per_s, options.keys, options.callers)
            # Its start is not part of the figures.
            pool.apply(ask_all, (*given, 0.5))
            asking = pool.apply_async(ask_all, (*given, options.duration_s))
            asked = _events_per_second(cluster, options.duration_s)
            seen = asking.get(options.duration_s + _LATE_S)
        cluster.http("POST", "/cancel")
    check_refusal(seen.refused_with, seen.failure)
    p50_ms, p99_ms, max_ms = np.percentile(seen.latencies_ms, [50, 99, 100], method="inverted_cdf").tolist()
    late_p50_ms, late_p99_ms = np.percentile(seen.late_ms, [50, 99], method="inverted_cdf").tolist()
    return {
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "max_ms": max_ms,
        # Parts of the above: of callers that were free and waited for a processor before they asked.
        "callers_late_p50_ms": late_p50_ms,
        "callers_late_p99_ms": late_p99_ms,
        "questions_per_second": len(seen.latencies_ms) / options.duration_s,
        "callers_cores": seen.cpu_s / options.duration_s,
        "events_per_second": asked,
        "events_per_second_alone": alone,
        "throughput_ratio": asked / alone,
    }


def check_refusal(status: int, failure: str) -> None:
    """Look why questions were refused, if they were: one that came too late says that the machine was too busy.

    Raises:
        OverloadedError: there was no time for it.
        BenchmarkError: it was refused for another reason.
    """
    if status in LATE_STATUSES:
        raise OverloadedError(f"a question was not answered in time: {failure}")
    if failure:
        raise BenchmarkError(f"a question was refused: {failure}")


def _events_per_second(cluster: Cluster, duration_s: float) -> float:
    began_s, before = time.monotonic(), _events_in(cluster)
    time.sleep(duration_s)
    after, ended_s = _events_in(cluster), time.monotonic()
    return (after - before) / (ended_s - began_s)


def _events_in(cluster: Cluster) -> int:
    status = cluster.status()
    if status is None or status["state"] != "RUNNING":
        raise BenchmarkError("the job did not go on running")
    return int(status["totals"]["events_in"])
