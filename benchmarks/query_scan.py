"""What a scan over all keys of a running job adds to the latency of its events: part of the benchmark of questions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import weir
from benchmarks.events_file import SEED, format_lines, made_if_absent
from benchmarks.latency import percentiles, read_latencies
from benchmarks.question_callers import LATE_STATUSES
from benchmarks.results import BenchmarkError
from benchmarks.sustained import OverloadedError, at_a_rate_that_lasts, check_keeps_up
from experiments.cluster import Cluster
from experiments.processes import WAIT_TIMEOUT_S
from weir.questions.client import AskError

#: Rates at which every event's latency is written down, and the job keeps up on a busy machine, too.
_RATE = 100_000
#: Until a checkpoint has all keys; subtasks may read the file with all of them one after the other.
_KEYS_S_MAX, _LOOK_S = 60.0, 0.5
#: Each of the two windows: without a scan, and with scans one after the other.
_WINDOW_S = 6.0
#: For a start that takes long, and scans that end late.
_SPARE_S = 15.0
#: Ids that the job's filter keeps.
_KEPT_ID = 1


def scan_figures(
    directory: Path, data_root: Path, keys: int, task_managers: int, report: Callable[[str, float], None]
) -> dict[str, Any]:
    """Run the job of the benchmark at a fixed rate until it has all keys; then for a while without and with scans.

    Where the machine does not keep up, the rate is halved.

    Returns:
        ``scan_added_p99_ms``, the p99 of the events that arrived in each window, rows of a scan, and the median scan;
        and what ``at_a_rate_that_lasts`` adds.

    Raises:
        BenchmarkError: a scan had not all keys, or the job ended.
        ClusterError: the job did not start.
    """
    source = _input(data_root, keys)
    return at_a_rate_that_lasts(
        _RATE,
        lambda rate: _figures_at(rate, directory / f"{rate:.0f}", source, keys, task_managers),
        report,
    )


def _figures_at(rate: float, directory: Path, source: Path, keys: int, task_managers: int) -> dict[str, Any]:
    parameters = {
        "input": source,
        "parallelism": 2,
        "rate": rate,
        "sink": "latency",
        "output": directory / "zout",
    }
    settings = {"controlPlane.checkpoint_interval_ms": 1000}
    with Cluster(directory / "cluster", task_managers=task_managers, settings=settings) as cluster:
        cluster.start_control_plane("jobs.throughput", parameters)
        for _ in range(task_managers):
            cluster.start_task_manager()
        due_s = keys / rate
        cluster.wait_for(
            lambda status: status["totals"]["events_out"] >= keys, "all keys", due_s + WAIT_TIMEOUT_S
        )
        try:
            _await_keys(cluster.http_port, keys)
            check_keeps_up(cluster, rate)
            without = (time.time(), time.time() + _WINDOW_S)
            time.sleep(_WINDOW_S)
            began_s = time.time()
            took_s = _scans(cluster.http_port, keys, began_s + _WINDOW_S)
        except AskError as error:
            if error.status in LATE_STATUSES:
                raise OverloadedError(f"a scan was not answered in time: {error}") from error
            raise
        scanned = (began_s, time.time())
        cluster.http("POST", "/cancel")
    latencies = read_latencies(directory / "zout")
    p99_without_ms, p99_with_ms = (_p99_ms(latencies, *window) for window in (without, scanned))
    return {
        "scan_added_p99_ms": p99_with_ms - p99_without_ms,
        "p99_without_scan_ms": p99_without_ms,
        "p99_with_scan_ms": p99_with_ms,
        "scan_keys": keys,
        "scan_rate": rate,
        "scan_ms": float(np.median(took_s)) * 1e3,
    }


def _scans(port: int, keys: int, end_s: float) -> list[float]:
    """How long scans took, one after the other up to a wall-clock second."""
    took_s = []
    with weir.connect(f"127.0.0.1:{port}") as job:
        while time.time() < end_s:
            scan_s = time.monotonic()
            rows = job.state("count", "count").range().height
            took_s.append(time.monotonic() - scan_s)
            if rows != keys:
                raise BenchmarkError(f"a scan has {rows} of {keys} keys")
    return took_s


def _await_keys(port: int, keys: int) -> None:
    end_s = time.monotonic() + _KEYS_S_MAX
    with weir.connect(f"127.0.0.1:{port}") as job:
        while (count := job.state("count", "count").count()) < keys:
            if time.monotonic() > end_s:
                raise OverloadedError(f"a checkpoint has {count} of {keys} keys after {_KEYS_S_MAX:.0f} s")
            time.sleep(_LOOK_S)


def _p99_ms(latencies: pl.DataFrame, begin_s: float, end_s: float) -> float:
    """Of the events that arrived between two wall-clock seconds."""
    arrived = latencies.filter(pl.col("arrival_ms").is_between(begin_s * 1e3, end_s * 1e3))
    if not arrived.height:
        raise BenchmarkError("no event arrived while its latency was wanted: the job ended too early")
    return percentiles(arrived)["p99_ms"]


def _input(root: Path, keys: int) -> Path:
    """A file with every key once, in any order, and one with keys at random until the end of the run."""
    more = int(_RATE * (_KEYS_S_MAX + 2 * _WINDOW_S + _SPARE_S))

    def write(fresh: Path) -> None:
        rng = np.random.default_rng(SEED)
        for part, numbers in enumerate((rng.permutation(keys) + 1, rng.integers(1, keys + 1, more))):
            lines = format_lines(np.full(len(numbers), _KEPT_ID), numbers).to_frame()
            lines.write_csv(fresh / f"part-{part}.jsonl", include_header=False, quote_style="never")

    return made_if_absent(root / f"keys-{keys}-then-{more}-seed-{SEED}", write)
