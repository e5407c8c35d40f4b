"""Many subtasks and few events: processors used, how far the sink's watermark is behind, how long checkpoints take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.checkpoint_figures import steady_checkpoints
from benchmarks.record_sink import read_records
from benchmarks.results import Bar, BenchmarkError, BenchmarkResult
from benchmarks.wide_job_flow import SINK_STAGE, SUBTASKS
from experiments.cluster import FINAL_STATES, Cluster
from experiments.processes import ClusterError

JOB = "benchmarks.wide_job_flow"
#: Not measured at the beginning: kernels run for the first time, caches fill.
WARM_UP_S = 4.0
#: A look at ``/status`` costs the control plane a few ms.
_LOOK_S = 0.5
#: Events per second with which a run counts as idle: only the first event of each source subtask comes.
_IDLE_RATE = 1e-3
_SEED = 42


@dataclass(frozen=True)
class WideOptions:
    """Command-line options."""

    #: Events per second of both sources together; 0: nothing comes but one event of each source subtask.
    rate: float = 200
    #: Measured, behind the warm-up.
    duration_s: float = 20
    keys: int = 1_000
    repeat: int = 1
    watermark_interval_s: float | None = None

    @property
    def events(self) -> int:
        """Events of each source."""
        return max(2, int(self.rate / 2 * (self.duration_s + WARM_UP_S)))


def bars(rate: float) -> tuple[Bar, ...]:
    """What a run at this rate must reach."""
    if rate == 0:
        return (Bar("cores", "at most", 0.03),)
    timely = (Bar("watermark_lag_s_max", "at most", 1.0), Bar("checkpoint_ms_max", "at most", 1000))
    none_lost = (Bar("lost", "at most", 0), Bar("duplicated", "at most", 0))
    return (*((Bar("cores", "at most", 0.25),) if rate <= 200 else ()), *timely, *none_lost)


def run(options: WideOptions, report: Callable[[str, float], None]) -> BenchmarkResult:
    """Run the job ``repeat`` times.

    Raises:
        BenchmarkError: events are missing or too many, or counted wrong.
        ClusterError: the job did not run.
    """
    runs = []
    for number in range(1, options.repeat + 1):
        with tempfile.TemporaryDirectory(prefix="weir-wide-") as name:
            report(f"run {number} of {options.repeat}: {options.rate:g} events/s", 0.0)
            runs.append(_one_run(options, Path(name), report))
    config = {
        "job": JOB,
        "subtasks": SUBTASKS,
        "rate": options.rate,
        "duration_s": options.duration_s,
        "warm_up_s": WARM_UP_S,
        "keys": options.keys,
        "task_managers": 2,
    }
    return BenchmarkResult(f"wide_job_{options.rate:g}", config, runs, bars(options.rate))


def _one_run(options: WideOptions, directory: Path, report: Callable[[str, float], None]) -> dict[str, Any]:
    servers = write_inputs(options, directory)
    settings: dict[str, object] = {"taskManager.operator_quota": -(-SUBTASKS // 2)}
    if options.watermark_interval_s is not None:
        settings["controlPlane.watermark_interval"] = options.watermark_interval_s
    parameters = {
        "left": directory / "left",
        "right": directory / "right",
        "output": directory / "records",
        "rate": options.rate / 2 or _IDLE_RATE,
    }
    with Cluster(directory / "cluster", task_managers=2, settings=settings) as cluster:
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        for _ in range(2):
            cluster.start_task_manager()
        cluster.wait_for(lambda status: status["state"] == "RUNNING", "the start of the job")
        time.sleep(WARM_UP_S)
        figures = _measure(cluster, options, report)
        if options.rate == 0:
            cluster.http("POST", "/cancel")
        status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
        if status["state"] != ("FINISHED" if options.rate else "CANCELLED"):
            raise ClusterError(f"job {status['job']} {status['state'].lower()}: {status['cause']}")
    return figures | (_check(read_records(directory / "records"), servers) if options.rate else {})


def write_inputs(options: WideOptions, directory: Path) -> np.ndarray:
    """Write both inputs, for the benchmarks that run this job.

    Args:
        options: how many events and keys.
        directory: exists; gets the directories ``left`` and ``right``.

    Returns:
        The number of the server of each event, int64, shape (events of both,), by its id.
    """
    servers = np.random.default_rng(_SEED).integers(1, options.keys + 1, 2 * options.events)
    for side, name in enumerate(("left", "right")):
        (directory / name).mkdir()
        ids = np.arange(side, 2 * options.events, 2)
        frame = pl.DataFrame({"id": ids, "key": servers[ids]}).select(
            id="id", server_name=pl.format("server-{}", "key")
        )
        for part, half in enumerate((frame[: options.events // 2], frame[options.events // 2 :])):
            half.write_ndjson(directory / name / f"part-{part}.jsonl")
    return servers


def _measure(cluster: Cluster, options: WideOptions, report: Callable[[str, float], None]) -> dict[str, Any]:
    """Look at the running job for ``duration_s``, less a second in which it may end."""
    began_s, began_ms = time.monotonic(), time.time() * 1e3
    cpu_s = _cpu_s(cluster)
    stop_s = began_s + options.duration_s - 1
    grace_ms = 2000.0
    lags_s: list[float] = []
    queued_rows, queued_age_ms = 0, 0.0
    backpressured = 0.0
    while time.monotonic() < stop_s:
        time.sleep(_LOOK_S)
        status = cluster.status()
        if status is None or status["state"] != "RUNNING":
            break
        now_ms = time.time() * 1e3
        subtasks = [subtask for stage in status["stages"] for subtask in stage["subtasks"]]
        for subtask in status["stages"][SINK_STAGE]["subtasks"]:
            if subtask["watermark_ms"] is not None:
                lags_s.append((now_ms - subtask["watermark_ms"] - grace_ms) / 1e3)
        queued_rows = max(queued_rows, sum(subtask.get("queued_rows", 0) for subtask in subtasks))
        queued_age_ms = max(queued_age_ms, *(subtask.get("queued_age_ms", 0) for subtask in subtasks))
        backpressured = max(backpressured, *(subtask["backpressured_ratio"] for subtask in subtasks))
        report(f"{options.rate:g} events/s", (time.monotonic() - began_s) / options.duration_s)
    used_s = {name: cpu - cpu_s[name] for name, cpu in _cpu_s(cluster).items()}
    elapsed_s = time.monotonic() - began_s
    checkpoints = steady_checkpoints(cluster.http("GET", "/checkpoints")[1], began_ms, time.time() * 1e3)
    # One that is not over yet counts with its age: it may be the only one.
    checkpoint_ms = [
        float(item["duration_ms"])
        if item["state"] == "COMPLETE"
        else (item["ended_ms"] or time.time() * 1e3) - item["started_ms"]
        for item in checkpoints
    ]
    return {
        "cores": sum(used_s.values()) / elapsed_s,
        "cores_of": {name: used / elapsed_s for name, used in used_s.items()},
        # Now less the sink's watermark less the configured out-of-orderness, as /status shows it: the age of what it
        # shows (heartbeats come every 200 ms) is in it.
        "watermark_lag_s_max": max(lags_s, default=None),
        "watermark_lag_s_median": float(np.median(lags_s)) if lags_s else None,
        "checkpoint_ms_max": max(checkpoint_ms, default=None),
        "checkpoint_ms_median": float(np.median(checkpoint_ms)) if checkpoint_ms else None,
        "checkpoints": sum(item["state"] == "COMPLETE" for item in checkpoints),
        "queued_rows_max": queued_rows,
        "queued_age_ms_max": queued_age_ms,
        "backpressured_ratio_max": backpressured,
    }


def _cpu_s(cluster: Cluster) -> dict[str, float]:
    """CPU seconds, user and system, by process."""
    for process in cluster.processes.values():
        process.sample()
    return {name: process.cpu_s for name, process in cluster.processes.items()}


def _check(records: np.ndarray, servers: np.ndarray) -> dict[str, Any]:
    """Every event once, and the events of each server counted 1, 2, 3 and so on.

    Args:
        records: int64, shape (events, 4), as ``read_records`` returns them.
        servers: int64, number of each event's server, by its id.
    """
    seen = np.bincount(records[:, 0], minlength=len(servers))
    lost, duplicated = int((seen == 0).sum()), int((seen - 1).clip(0).sum())
    if lost or duplicated:
        raise BenchmarkError(f"{lost} events lost, {duplicated} duplicated")
    found = pl.DataFrame({"server": servers[records[:, 0]], "n": records[:, 1]}).sort("server", "n")
    expected = found.with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    if not found.equals(expected):
        raise BenchmarkError("the counts of a server are not 1, 2, 3 and so on")
    latencies_ms = (records[:, 2] - records[:, 3]) / 1e3
    steady_ms = latencies_ms[records[:, 3] >= records[:, 3].min() + WARM_UP_S * 1e6]
    p50_ms, p99_ms = np.percentile(steady_ms, [50, 99]).tolist() if len(steady_ms) else (None, None)
    return {
        "events": len(records),
        "p50_ms": p50_ms,
        "p99_ms": p99_ms,
        "lost": lost,
        "duplicated": duplicated,
    }
