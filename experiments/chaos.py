"""Faults at random while a job runs on real processes; what it delivers must be what a batch computation gives."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.chaos_faults import Faults
from experiments.chaos_samples import Samples
from experiments.chaos_schedule import BROKER_FAULTS, DISK_FAULTS, Fault, schedule
from experiments.cluster import FINAL_STATES, Cluster, Start
from experiments.processes import ClusterError
from experiments.small_disk import NoSmallDiskError, SmallDisk
from experiments.soak_check import check_output, write_events
from experiments.tcp_proxy import TcpProxy

SETTINGS: Mapping[str, object] = {
    "taskManager.operator_quota": 40,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.checkpoint_interval_ms": 500,
    "controlPlane.checkpoint_timeout_ms": 10_000,
    # The faults have nothing to do with each other, and the job is to run between them.
    "controlPlane.restart_delay_ms_max": 2000,
}
_SERVERS = 300
_BALLAST_BYTES = 100
_DISK_BYTES = 256 << 20
_POLL_S, _LOOK_S, _SAMPLE_S = 0.05, 0.25, 2.0
_LOOK_TIMEOUT_S = 1.0
_START_TIMEOUT_S = 60.0
#: There are events for so many times the duration: restarts and the rest of the stream need some.
_EVENTS_MARGIN = 1.2
_END_TIMEOUT_S = 300.0
#: Without a new checkpoint for so long while no fault is on, the job hangs.
_HANGS_S = 60.0
#: Shorter runs have too few samples to tell whether memory is flat.
_FLAT_S_MIN = 150.0


class ChaosError(ClusterError):
    """The job failed, hangs, or a process ended by itself."""


@dataclass(frozen=True)
class ChaosSettings:
    """One run; the same settings give the same faults at the same times."""

    duration_s: float
    every_s: float
    seed: int
    rate: int = 2000
    task_managers: int = 3
    #: Keys of the configuration for all processes, as ``KEY=VALUE``.
    keys: tuple[str, ...] = ()

    def command(self) -> str:
        """What repeats the run."""
        return (
            f"python -m experiments chaos --minutes {self.duration_s / 60:g} --every-s {self.every_s:g} "
            f"--seed {self.seed} --rate {self.rate} --task-managers {self.task_managers}"
        ) + "".join(f" --set {key}" for key in self.keys)


@dataclass
class ChaosResult:
    """What :func:`run_chaos` gives."""

    settings: ChaosSettings
    faults: int = 0
    #: Faults of each kind, and seconds from the beginning of each to the next whole checkpoint.
    by_kind: dict[str, list[float]] = field(default_factory=dict)
    left_out: str = ""
    generations: int = 0
    checkpoints: int = 0
    #: Of the rescales that the control plane knows at the end: key groups, and those that were relinked.
    groups_moved: int = 0
    groups_relinked: int = 0
    events: int = 0
    end_s: float = 0.0
    digest: str = ""
    samples: Samples = field(default_factory=Samples)
    grown: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "command": self.settings.command(),
            "seed": self.settings.seed,
            "duration_s": self.settings.duration_s,
            "faults": self.faults,
            "seconds_to_checkpoint": {
                kind: {"count": len(values), "median": statistics.median(values), "max": max(values)}
                for kind, values in self.by_kind.items()
            },
            "left_out": self.left_out,
            "generations": self.generations,
            "checkpoints": self.checkpoints,
            "groups_moved": self.groups_moved,
            "groups_relinked": self.groups_relinked,
            "events": self.events,
            # The check of the rows has found none of these, or there would be no result.
            "lost": 0,
            "duplicated": 0,
            "reordered": 0,
            "digest": self.digest,
            "end_s": self.end_s,
            "rss_bytes_by_age": self.samples.rss_by_age(),
            "disk_bytes_max": {
                name: max(size for _, size in values) for name, values in self.samples.disk.items()
            },
            "grown": self.grown,
        }

    def table(self) -> list[str]:
        """Lines for people."""
        lines = [f"{'fault':32} {'count':>5}  seconds to the next checkpoint: median, max"]
        for kind, values in sorted(self.by_kind.items()):
            lines.append(f"{kind:32} {len(values):5}  {statistics.median(values):.1f}, {max(values):.1f}")
        return [
            *lines,
            f"{self.faults} faults, generation {self.generations} at the end, checkpoint {self.checkpoints}",
            f"the latest rescales moved {self.groups_moved} key groups, {self.groups_relinked} of them relinked",
            f"{self.events} events: 0 lost, 0 duplicated, 0 out of order; digest {self.digest}; the end of the "
            f"stream took {self.end_s:.1f} s",
            *self.samples.table(),
            *([f"left out: {self.left_out}"] if self.left_out else []),
        ]


def run_chaos(
    directory: Path,
    settings: ChaosSettings,
    report: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    popen: Start | None = None,
) -> ChaosResult:
    """Run the soak job under faults to its end, and check what it has delivered.

    Args:
        directory: for everything; what an earlier run left there is removed. Logs, events and output stay.
        settings: of the run.
        report: takes a line for every fault.
        environment: variables of the processes.
        popen: starts them; None: ``subprocess.Popen``.

    Raises:
        ChaosError: the job failed, hangs, or a process ended that nobody had ended.
        WrongResultError: the output is not what a batch computation gives.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    result = ChaosResult(settings)
    result.events = round(settings.rate * (settings.duration_s * _EVENTS_MARGIN + _START_TIMEOUT_S))
    events = write_events(directory / "events.jsonl", result.events, _SERVERS, settings.seed)
    with ExitStack() as stack:
        disks = _mount(directory, stack, result)
        cluster = Cluster(
            directory,
            task_managers=settings.task_managers,
            settings={
                **SETTINGS,
                "taskManager.rocksDBPath": directory / "state" / "data.db",
                **dict(key.split("=", 1) for key in settings.keys),
            },
            environment=environment,
            popen=popen,
        )
        proxies = {
            f"task_manager_{number}": stack.enter_context(TcpProxy(cluster.grpc_port))
            for number in range(1, settings.task_managers + 1)
        }
        # Left first: processes end before their disks and connections go.
        stack.enter_context(cluster)
        run = ChaosRun(
            directory, settings, cluster, Faults(cluster, disks, proxies, _parameters(directory, settings))
        )
        run.go(schedule(settings.seed, settings.duration_s, settings.every_s, run.left_out), result, report)
    result.digest = check_output(events, directory / "out")
    if settings.duration_s >= _FLAT_S_MIN:
        result.grown = result.samples.growth()
    return result


def _parameters(directory: Path, settings: ChaosSettings) -> dict[str, object]:
    return {
        "input": directory / "events.jsonl",
        "output": directory / "out",
        "rate": settings.rate,
        "ballast_bytes": _BALLAST_BYTES,
        "release": directory / "release",
    }


def _mount(directory: Path, stack: ExitStack, result: ChaosResult) -> dict[str, SmallDisk]:
    disks = {}
    try:
        for name in ("state", "checkpoints"):
            disk = SmallDisk(directory / name, _DISK_BYTES)
            stack.callback(disk.close)
            disks[name] = disk
    except NoSmallDiskError as error:
        result.left_out = f"full disks ({error})"
        return {}
    return disks


class ChaosRun:
    """The loop of one run."""

    start_timeout_s = _START_TIMEOUT_S
    #: A job without a new checkpoint for so long hangs.
    hangs_s = _HANGS_S

    def __init__(self, directory: Path, settings: ChaosSettings, cluster: Cluster, faults: Faults) -> None:
        self._directory = directory
        self._settings = settings
        self._cluster = cluster
        self._faults = faults
        self.left_out = BROKER_FAULTS if faults.has_disks else BROKER_FAULTS | DISK_FAULTS
        self._began_s = 0.0
        self._look_s = self._sample_s = 0.0
        self._status: dict[str, Any] = {}
        self._checkpoint = 0
        self._progress_s = 0.0
        #: Fault, its beginning, and the checkpoint behind which one shows that the job goes on.
        self._waiting: list[tuple[Fault, float, int]] = []

    def go(self, faults: Sequence[Fault], result: ChaosResult, report: Callable[[str], None]) -> None:
        """Start all processes, let the faults come in their time, and wait for the end of the job.

        Raises:
            ChaosError: the job failed, hangs, or a process ended that nobody had ended.
        """
        self._start()
        self._cluster.wait_for(
            lambda s: (s["latest_checkpoint"] or 0) >= 2, "two checkpoints", self.start_timeout_s
        )
        self._began_s = self._progress_s = time.monotonic()
        self._begin()
        result.samples = Samples()
        waiting = list(faults)
        while waiting or self._now_s() < self._settings.duration_s:
            self._step(result)
            for fault in [fault for fault in waiting if fault.at_s <= self._now_s()]:
                told = self._faults.begin(fault)
                if told is None:
                    # Something else must end first, so that enough is left alive.
                    continue
                waiting.remove(fault)
                result.faults += 1
                self._waiting.append((fault, time.monotonic(), self._checkpoint + 1))
                report(
                    f"{self._now_s():7.1f} s  {fault.number:3}  {told}  (job {self._status.get('state', '?')}, "
                    f"generation {self._status.get('generation', '?')}, checkpoint {self._checkpoint})"
                )
        report(f"{self._now_s():7.1f} s  the rest of the stream, without faults")
        self._finish(result)

    def _start(self) -> None:
        self._faults.start_all(self._settings.task_managers)

    def _begin(self) -> None:
        """The job runs, and the first fault comes soon."""

    def _finish(self, result: ChaosResult) -> None:
        """The rest of the stream as fast as possible; faults that are on end in their time."""
        (self._directory / "release").touch()
        began_s = time.monotonic()
        while self._status.get("state") not in FINAL_STATES:
            self._step(result)
            if time.monotonic() - began_s > _END_TIMEOUT_S:
                raise self._error(f"the job did not end within {_END_TIMEOUT_S:g} s")
        if self._status["state"] != "FINISHED":
            raise self._error(f"job {self._status['state'].lower()}: {self._status['cause']}")
        result.end_s = time.monotonic() - began_s
        self._note_end(result)

    def _note_end(self, result: ChaosResult) -> None:
        result.generations = self._status["generation"]
        result.checkpoints = self._checkpoint
        _, rescales = self._cluster.http("GET", "/rescales")
        result.groups_moved = sum(each["groups_owned"] for each in rescales)
        result.groups_relinked = sum(each["groups_relinked"] for each in rescales)

    def _step(self, result: ChaosResult) -> None:
        time.sleep(_POLL_S)
        now_s = time.monotonic()
        self._faults.end_due()
        ended = self._faults.ended_by_itself()
        if ended:
            raise self._error(f"{ended} ended by itself")
        if now_s >= self._sample_s:
            self._sample_s = now_s + _SAMPLE_S
            result.samples.take(
                self._cluster,
                {
                    "checkpoint store": self._directory / "checkpoints",
                    "state directories": self._directory / "state",
                },
            )
        if now_s >= self._look_s and self._faults.control_plane_answers:
            self._look_s = now_s + _LOOK_S
            self._look(result)

    def _look(self, result: ChaosResult) -> None:
        status = self._cluster.status(_LOOK_TIMEOUT_S)
        now_s = time.monotonic()
        if status is not None:
            self._status = status
            if status["state"] in ("FAILED", "CANCELLED"):
                raise self._error(f"job {status['state'].lower()}: {status['cause']}")
            if (status["latest_checkpoint"] or 0) > self._checkpoint:
                self._checkpoint = status["latest_checkpoint"]
                self._progress_s = now_s
        if self._faults.on:
            self._progress_s = max(self._progress_s, now_s - self.hangs_s / 2)
        if now_s - self._progress_s > self.hangs_s:
            raise self._error(
                f"no new checkpoint for {self.hangs_s:g} s; {self._status.get('restart_cause', '')}"
            )
        for item in [item for item in self._waiting if item[2] < self._checkpoint]:
            fault, began_s, _ = item
            self._waiting.remove(item)
            result.by_kind.setdefault(fault.kind.value, []).append(now_s - began_s)

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _error(self, what: str) -> ChaosError:
        status = json.dumps(
            {key: self._status.get(key) for key in ("state", "generation", "restart_cause", "cause")}
        )
        return ChaosError(
            f"{what}, {self._now_s():.1f} s after the beginning; {status}\n{self._cluster.logs()}"
        )
