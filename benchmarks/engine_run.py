"""One run of a job on real processes, with what it took: time, CPU and memory, start-up apart."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.cluster import FINAL_STATES, Cluster
from experiments.ports import free_port
from experiments.processes import ClusterError

#: How often a run is looked at: a look costs the control plane a few ms of CPU.
_POLL_S = 0.1
#: How often the metrics of stores are looked at, where they are.
_STORES_S = 1.0
_NOT_STARTED = frozenset({"WAITING_FOR_TASK_MANAGERS", "DEPLOYING"})


@dataclass(frozen=True)
class EngineSetup:
    """How a job is run."""

    job: str
    parameters: Mapping[str, object]
    task_managers: int = 2
    settings: Mapping[str, object] = field(default_factory=dict)
    #: Processors of each task manager and of the control plane; None: any.
    task_manager_cpus: Sequence[int] | None = None
    control_plane_cpus: Sequence[int] | None = None
    timeout_s: float = 600.0
    #: How often the running job is looked at.
    look_s: float = _POLL_S
    #: Also look at the metrics of the stores, every second: how much state there is.
    measures_state: bool = False


@dataclass
class EngineRun:
    """A job that finished. Clocks are the processes' wall clocks; all on one machine."""

    #: The last ``/status``.
    status: dict[str, Any]
    #: From the start of the sources to the end of the last batch of the last stage.
    sustained_s: float
    #: From starting the first process to seeing the job finished, its state flushed.
    wall_s: float
    #: CPU of all processes from the start of the job to its end, and from their own start.
    job_cpu_s: float
    total_cpu_s: float
    peak_rss_bytes: dict[str, int]
    #: (seconds since the job's start, resident bytes by process) at every look.
    rss_samples: list[tuple[float, dict[str, int]]]
    #: (monotonic seconds, CPU seconds of all processes) at every look.
    cpu_samples: list[tuple[float, float]] = field(default_factory=list)
    #: The most that all stores held at one look: on disk, and in memory (caches, memory tables); 0: not measured.
    peak_disk_bytes: int = 0
    peak_state_bytes: int = 0
    #: Keys that caches of state had, and had not, in all; 0: not measured.
    cache_hits: int = 0
    cache_misses: int = 0

    @property
    def events_in(self) -> int:
        """Events that the sources read, rejected ones apart."""
        return int(self.status["totals"]["events_in"])

    @property
    def events_out(self) -> int:
        """Events that the sinks received."""
        return int(self.status["totals"]["events_out"])

    def figures(self) -> dict[str, Any]:
        """The figures that every engine benchmark reports."""
        return {
            "events": self.events_in,
            "events_per_second": self.events_in / self.sustained_s,
            "cores": self.job_cpu_s / self.sustained_s,
            "cpu_seconds_per_million_events": self.job_cpu_s / self.events_in * 1e6,
            "cpu_seconds_per_million_events_with_start_up": self.total_cpu_s / self.events_in * 1e6,
            "peak_rss_bytes_max": max(self.peak_rss_bytes.values()),
            "sustained_s": self.sustained_s,
            "wall_with_start_up_s": self.wall_s,
        }


class _Watcher:
    """Takes what the looks at the job give."""

    def __init__(self, cluster: Cluster, look_s: float, on_events: Callable[[int], None] | None) -> None:
        self._cluster = cluster
        self._look_s = look_s
        self._on_events = on_events
        self._began_s = time.monotonic()
        self.cpu_before_s = 0.0
        self.rss_samples: list[tuple[float, dict[str, int]]] = []
        self.cpu_samples: list[tuple[float, float]] = []
        self.metrics_ports: list[int] = []
        self._next_stores_s = 0.0
        self.peak_disk_bytes = self.peak_state_bytes = 0
        self.cache_hits = self.cache_misses = 0

    def cpu_s(self) -> float:
        return sum(process.cpu_s for process in self._cluster.processes.values())

    def look_at_stores(self) -> None:
        now_s = time.monotonic()
        if self.metrics_ports and now_s >= self._next_stores_s:
            self._next_stores_s = now_s + _STORES_S
            pages = list(map(_store_figures, self.metrics_ports))
            disk_bytes, memory_bytes, hits, misses = map(sum, zip(*pages, strict=True))
            # What has ended shows no counters any more.
            self.cache_hits, self.cache_misses = max(self.cache_hits, hits), max(self.cache_misses, misses)
            self.peak_disk_bytes = max(self.peak_disk_bytes, disk_bytes)
            self.peak_state_bytes = max(self.peak_state_bytes, disk_bytes + memory_bytes)

    def look(self, status: dict[str, Any]) -> None:
        for process in self._cluster.processes.values():
            if process.popen.poll() is not None and status["state"] not in FINAL_STATES:
                raise ClusterError(f"{process.name} ended before the job\n{process.log_tail()}")
        if status["state"] in _NOT_STARTED:
            self.cpu_before_s = self.cpu_s()
            self._began_s = time.monotonic()
            return
        self._cluster.poll_s = self._look_s
        sizes = {name: process.rss_bytes for name, process in self._cluster.processes.items()}
        self.rss_samples.append((time.monotonic() - self._began_s, sizes))
        self.cpu_samples.append((time.monotonic(), self.cpu_s()))
        self.look_at_stores()
        if self._on_events is not None:
            self._on_events(int(status["totals"]["events_in"]))


def run_engine(
    setup: EngineSetup, directory: Path, on_events: Callable[[int], None] | None = None
) -> EngineRun:
    """Start the processes, run the job to its end, stop them.

    Args:
        setup: what to run.
        directory: for stores, logs and dead letters; the stores stay there, closed.
        on_events: called at every look with the events read so far.

    Raises:
        ClusterError: the job did not finish.
    """
    with Cluster(
        directory, task_managers=setup.task_managers, settings=setup.settings, poll_s=_POLL_S
    ) as cluster:
        began_s = time.monotonic()
        cluster.start_control_plane(
            setup.job, setup.parameters, exit_when_finished=False, cpus=setup.control_plane_cpus
        )
        watcher = _Watcher(cluster, setup.look_s, on_events)
        for _ in range(setup.task_managers):
            port = free_port() if setup.measures_state else 0
            watcher.metrics_ports += [port] if port else []
            cluster.start_task_manager(cpus=setup.task_manager_cpus, metrics_port=port)
        status = cluster.wait_for(
            lambda status: status["state"] in FINAL_STATES,
            "the end of the job",
            setup.timeout_s,
            watcher.look,
        )
        wall_s = time.monotonic() - began_s
        for process in cluster.processes.values():
            process.sample()
        if status["state"] != "FINISHED":
            raise ClusterError(f"job {status['job']} {status['state'].lower()}: {status['cause']}")
    totals = status["totals"]
    # Sources that are not paced begin a little before the official start.
    started_ms = min(status["started_ms"], totals["first_event_ms"])
    total_cpu_s = watcher.cpu_s()
    return EngineRun(
        status=status,
        sustained_s=max(totals["last_event_ms"] - started_ms, 1) / 1e3,
        wall_s=wall_s,
        job_cpu_s=total_cpu_s - watcher.cpu_before_s,
        total_cpu_s=total_cpu_s,
        peak_rss_bytes={name: process.peak_rss_bytes for name, process in cluster.processes.items()},
        rss_samples=watcher.rss_samples,
        cpu_samples=watcher.cpu_samples,
        peak_disk_bytes=watcher.peak_disk_bytes,
        peak_state_bytes=watcher.peak_state_bytes,
        cache_hits=watcher.cache_hits,
        cache_misses=watcher.cache_misses,
    )


def _store_figures(metrics_port: int) -> tuple[int, int, int, int]:
    """Bytes of a task manager's stores, on disk and in memory, hits and misses of caches; 0 without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=_STORES_S) as reply:
            page = reply.read().decode()
    except OSError:
        return 0, 0, 0, 0
    found = dict.fromkeys(("disk_bytes", "memory_bytes", "cache_hits_total", "cache_misses_total"), 0)
    for kind, value in re.findall(rf"^weir_store_({'|'.join(found)})\{{.*\}} (\S+)$", page, re.MULTILINE):
        found[kind] += int(float(value))
    return found["disk_bytes"], found["memory_bytes"], found["cache_hits_total"], found["cache_misses_total"]
