"""Questions to a running job: how quick answers are, and what they cost the job."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import weir
from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from experiments.cluster import Cluster

BARS = (
    Bar("p50_ms", "at most", 2),
    Bar("p99_ms", "at most", 10),
    Bar("throughput_ratio", "at least", 0.9),
)
#: The job fills its state and its caches, and makes a checkpoint.
_WARM_UP_S = 4.0
_SEED = 7


@dataclass(frozen=True)
class QueryOptions:
    """Command-line options."""

    #: Events per second of the job; half of its top throughput.
    rate: float = 300_000
    questions_per_s: float = 500
    #: Length of each of the two phases: without questions, and with them.
    duration_s: float = 10
    keys: int = 100_000
    callers: int = 4
    parallelism: int = 2
    task_managers: int = 2
    repeat: int = 1
    data_root: Path = DATA_DIRECTORY


def run(options: QueryOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Measure ``repeat`` times.

    Raises:
        BenchmarkError: a question was refused, or the job ended.
        ClusterError: the job did not start.
    """
    events = int(options.rate * (2 * options.duration_s + _WARM_UP_S + 10))
    source = events_directory(events, options.keys, root=options.data_root)
    repeats = []
    for number in range(options.repeat):
        report(f"run {number + 1}", number / options.repeat)
        with tempfile.TemporaryDirectory(prefix="weir-queries-") as name:
            repeats.append(_measure(options, source, Path(name)))
    config = {
        "job": "jobs.throughput",
        "rate": options.rate,
        "questions_per_s": options.questions_per_s,
        "duration_s": options.duration_s,
        "keys": options.keys,
        "callers": options.callers,
        "parallelism": options.parallelism,
        "task_managers": options.task_managers,
    }
    return BenchmarkResult("queries", config, repeats, BARS)


def _measure(options: QueryOptions, source: Path, directory: Path) -> dict[str, Any]:
    parameters = {"input": source, "parallelism": options.parallelism, "rate": options.rate}
    settings = {"controlPlane.checkpoint_interval_ms": 1000}
    with Cluster(directory / "cluster", task_managers=options.task_managers, settings=settings) as cluster:
        cluster.start_control_plane("jobs.throughput", parameters)
        for _ in range(options.task_managers):
            cluster.start_task_manager()
        cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first rows")
        time.sleep(_WARM_UP_S)
        alone = _events_per_second(cluster, options.duration_s)
        callers = [_Caller(cluster.http_port, options, number) for number in range(options.callers)]
        for caller in callers:
            caller.start()
        asked = _events_per_second(cluster, options.duration_s)
        for caller in callers:
            caller.ends.set()
        for caller in callers:
            caller.join()
        scan_ms = _scan_ms(cluster.http_port)
        cluster.http("POST", "/cancel")
    failures = [caller.failure for caller in callers if caller.failure]
    if failures:
        raise BenchmarkError(f"a question was refused: {failures[0]}")
    latencies = np.concatenate([np.array(caller.latencies_ms) for caller in callers])
    p50_ms, p99_ms, max_ms = np.percentile(latencies, [50, 99, 100], method="inverted_cdf").tolist()
    return {
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "max_ms": max_ms,
        "questions_per_second": len(latencies) / options.duration_s,
        "events_per_second": asked,
        "events_per_second_alone": alone,
        "throughput_ratio": asked / alone,
        "scan_ms": scan_ms,
    }


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


def _scan_ms(port: int) -> float:
    """How long a frame of all keys takes."""
    began_s = time.monotonic()
    with weir.connect(f"127.0.0.1:{port}") as job:
        job.state("count", "count").range()
    return (time.monotonic() - began_s) * 1e3


class _Caller(threading.Thread):
    """Asks for keys on a schedule of its own; a late answer makes the following ones late."""

    def __init__(self, port: int, options: QueryOptions, number: int) -> None:
        super().__init__(daemon=True)
        self._connection = weir.connect(f"127.0.0.1:{port}", patience_s=0)
        self._interval_s = options.callers / options.questions_per_s
        self._keys = options.keys
        self._chance = random.Random(_SEED + number)
        self.ends = threading.Event()
        self.latencies_ms: list[float] = []
        self.failure = ""

    def run(self) -> None:
        """Ask until told to end."""
        count = self._connection.state("count", "count")
        due_s = time.monotonic()
        while not self.ends.is_set():
            due_s += self._interval_s
            time.sleep(max(due_s - time.monotonic(), 0))
            try:
                count.get(f"server-{self._chance.randint(1, self._keys)}")
            except weir.WeirError as error:
                self.failure = str(error)
                return
            self.latencies_ms.append((time.monotonic() - due_s) * 1e3)
        self._connection.close()
