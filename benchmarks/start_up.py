"""From starting the processes to the first event processed, with what happened when on the way."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.events_file import DATA_DIRECTORY, events_directory
from benchmarks.results import Bar, BenchmarkResult
from experiments.cluster import FINAL_STATES, Cluster

BARS = (Bar("first_event_s", "at most", 2),)
_POLL_S = 0.01
_TIMEOUT_S = 60.0
#: Of the control plane and of a task manager.
_LIBRARIES = (
    "fastapi, grpc, polars, pyarrow, typer, uvicorn",
    "grpc, numba, polars, pyarrow, rocksdict, typer",
)


def run(
    repeat: int,
    report: Callable[[str, float], None],
    *,
    data_root: Path = DATA_DIRECTORY,
    events: int = 100_000,
) -> BenchmarkResult:
    """Start a control plane and a task manager at the same time, ``repeat`` times; compiled kernels are cached.

    Raises:
        ClusterError: the job did not finish.
    """
    source = events_directory(events, 1000, root=data_root)
    runs = []
    for number in range(1, repeat + 1):
        report(f"run {number} of {repeat}", (number - 1) / repeat)
        with tempfile.TemporaryDirectory(prefix="weir-start-up-") as directory:
            runs.append(_one_run(source, Path(directory)))
    config = {"job": "jobs.throughput", "task_managers": 1, "events": events}
    return BenchmarkResult("start_up", config, runs, BARS)


def _import_s() -> float:
    """Seconds that two bare processes take to import, at the same time, what both of ours import."""
    began_s = time.monotonic()
    processes = [subprocess.Popen([sys.executable, "-c", f"import {libraries}"]) for libraries in _LIBRARIES]
    for process in processes:
        process.wait(_TIMEOUT_S)
    return time.monotonic() - began_s


def _one_run(source: Path, directory: Path) -> dict[str, Any]:
    reference_s = _import_s()
    with Cluster(directory, task_managers=1, poll_s=0.02) as cluster:
        began_s = time.time()
        cluster.start_control_plane("jobs.throughput", {"input": source}, exit_when_finished=False)
        task_manager = cluster.start_task_manager()
        ports = {
            "control_plane_listens_s": cluster.grpc_port,
            "task_manager_listens_s": task_manager.port,
        }
        marks = _wait_for_ports(ports, began_s)
        status = cluster.wait_for(
            lambda status: status["state"] in FINAL_STATES, "the end of the job", _TIMEOUT_S
        )
    first_event_s = status["totals"]["first_event_ms"] / 1e3 - began_s
    return {
        **marks,
        "sources_start_s": min(status["started_ms"], status["totals"]["first_event_ms"]) / 1e3 - began_s,
        "first_event_s": first_event_s,
        "job_finished_s": status["ended_ms"] / 1e3 - began_s,
        "cpu_seconds_total": sum(process.cpu_s for process in cluster.processes.values()),
        "reference": {
            "what": "two bare Python processes that import the same libraries, and nothing else",
            "libraries_imported_s": reference_s,
        },
        "ratio_to_reference": first_event_s / reference_s,
    }


def _wait_for_ports(ports: dict[str, int], began_s: float) -> dict[str, float]:
    """Seconds until each port takes connections; connecting costs the processes next to nothing."""
    marks: dict[str, float] = {}
    deadline_s = time.monotonic() + _TIMEOUT_S
    while len(marks) < len(ports) and time.monotonic() < deadline_s:
        for name, port in ports.items():
            if name not in marks:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        marks[name] = time.time() - began_s
        time.sleep(_POLL_S)
    return marks
