"""Many random rescales under load: the output must equal a batch computation, and memory must stay flat."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.cluster import FINAL_STATES, Cluster, Start
from experiments.processes import ClusterError
from experiments.scaling import request_rescale
from experiments.soak_check import check_output, write_events
from experiments.soak_job import STAGES

JOB = "experiments.soak_job"
STRATEGIES: Mapping[str, Mapping[str, object]] = {
    "local": {"taskManager.useHybrid": "false"},
    "hybrid-no-cache": {"taskManager.useMigrate": "false", "taskManager.useCache": "false"},
    "hybrid": {"taskManager.useMigrate": "false"},
    "migrate": {},
    "relink": {"taskManager.useRelink": "true", "controlPlane.checkpoint_interval_ms": 300},
}
_PARALLELISM_MAX = 4
_SERVERS = 300
#: Quota that any plan with every stage at its largest fits into, whatever the number of task managers.
_QUOTA = 40
_POLL_S = 0.02
_RESCALE_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 600.0
#: There are events for so long a time per rescale. A stream whose last event comes too early goes on without any.
_RESCALE_S_MAX = 6.0
#: Memory after the last rescale against memory after a fifth of them; caches still fill up meanwhile.
GROWTH_BYTES_MAX = 64 << 20
_WARM_UP_SHARE = 0.2


class StreamEndedError(ClusterError):
    """A rescale came too late."""


@dataclass(frozen=True)
class SoakSettings:
    """What to do with each strategy."""

    rescales: int
    rate: int
    interval_s: float
    task_managers: int
    seed: int

    @property
    def events(self) -> int:
        """Enough for all rescales."""
        return round(self.rate * self.rescales * max(self.interval_s, _RESCALE_S_MAX))


@dataclass(frozen=True)
class SoakResult:
    """One strategy's run."""

    strategy: str
    rescales: int
    slowest_s: float
    groups_moved: int
    bytes_moved: int
    #: Of the groups, those that were taken over from tables of a checkpoint.
    groups_relinked: int
    #: Unread at the last rescale; 0: the last ones had no load.
    events_left: int
    #: Resident memory by process after a fifth of the rescales, and after the last one.
    rss_early_bytes: Mapping[str, int]
    rss_late_bytes: Mapping[str, int]
    #: Of the final counts.
    digest: str

    @property
    def growth_bytes(self) -> int:
        """Of the process that grew most."""
        return max(self.rss_late_bytes[name] - early for name, early in self.rss_early_bytes.items())


def run_soak(
    directory: Path,
    strategy: str,
    settings: SoakSettings,
    report: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
    popen: Start | None = None,
) -> SoakResult:
    """Rescale a running job at random until ``settings.rescales`` are done, and check what it wrote.

    Args:
        directory: for the events, the output and the cluster of each strategy.
        strategy: a key of ``STRATEGIES``.
        settings: what to do.
        report: takes a line for every ten rescales.
        environment: variables of the processes.
        popen: starts them; None: ``subprocess.Popen``.

    Raises:
        ClusterError: a rescale did not complete, or the job failed.
        WrongResultError: the output is wrong.
    """
    directory.mkdir(parents=True, exist_ok=True)
    events = write_events(directory / "events.jsonl", settings.events, _SERVERS, settings.seed)
    output = directory / f"out-{strategy}"
    release = directory / f"release-{strategy}"
    release.unlink(missing_ok=True)
    parameters = {
        "input": events,
        "output": output,
        "rate": settings.rate,
        "ballast_bytes": 100,
        "release": release,
    }
    cluster = Cluster(
        directory / f"cluster-{strategy}",
        task_managers=settings.task_managers,
        settings={"taskManager.operator_quota": _QUOTA, **STRATEGIES[strategy]},
        environment=environment,
        popen=popen,
    )
    shutil.rmtree(output, ignore_errors=True)
    with cluster:
        cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
        for _ in range(settings.task_managers):
            cluster.start_task_manager()
        cluster.wait_for(_has_begun, "the first events")
        rescales, early = _rescale_at_random(cluster, settings, strategy, report)
        late = _resident(cluster)
        status = cluster.wait_for(lambda status: True, "the status after the last rescale")
        events_left = settings.events - status["totals"]["events_in"]
        # All strategies are to give the same result, so that the rest is read as well, as fast as possible.
        release.touch()
        status = cluster.wait_for(
            lambda status: status["state"] in FINAL_STATES, "the end of the job", _END_TIMEOUT_S
        )
        if status["state"] != "FINISHED":
            raise ClusterError(f"job {status['state'].lower()}: {status['cause']}\n{cluster.logs()}")
    return SoakResult(
        strategy,
        len(rescales),
        max((max(item["phases"].values()) - item["started_ms"]) / 1e3 for item in rescales),
        sum(item["groups_total"] for item in rescales),
        sum(item["bytes_moved"] for item in rescales),
        sum(item["groups_relinked"] for item in rescales),
        events_left,
        early,
        late,
        check_output(events, output),
    )


def _has_begun(status: dict[str, Any]) -> bool:
    if status["state"] in FINAL_STATES:
        raise ClusterError(f"job {status['state'].lower()}: {status['cause']}")
    return bool(status["totals"]["events_out"])


def _rescale_at_random(
    cluster: Cluster, settings: SoakSettings, strategy: str, report: Callable[[str], None]
) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
    rng = random.Random(settings.seed)
    parallelism = dict.fromkeys(STAGES, 1)
    done: list[dict[str, Any]] = []
    early: Mapping[str, int] = {}
    checkpoint = 0
    began_s = time.monotonic()
    for number in range(settings.rescales):
        while time.monotonic() < began_s + number * settings.interval_s:
            time.sleep(_POLL_S)
        if "taskManager.useRelink" in STRATEGIES[strategy]:
            # Only what is in a checkpoint since the one before can be taken over from its tables.
            checkpoint = _await_checkpoint(cluster, checkpoint)
        stage = rng.choice(STAGES)
        wanted = rng.choice([n for n in range(1, _PARALLELISM_MAX + 1) if n != parallelism[stage]])
        done.append(rescale(cluster, stage, wanted))
        parallelism[stage] = wanted
        if number + 1 == max(1, round(settings.rescales * _WARM_UP_SHARE)):
            early = _resident(cluster)
        if (number + 1) % 10 == 0:
            memory = " ".join(f"{name} {rss >> 20}" for name, rss in _resident(cluster).items())
            report(f"{strategy}: {number + 1} of {settings.rescales} rescales; MB: {memory}")
    return done, early


def _await_checkpoint(cluster: Cluster, before: int) -> int:
    """Wait for a checkpoint with a higher number; returns it."""
    status = cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) > before, "a checkpoint")
    found: int = status["latest_checkpoint"]
    return found


def rescale(cluster: Cluster, stage: int, parallelism: int) -> dict[str, Any]:
    """Request a rescale and wait for its end; gives its last report.

    Raises:
        ClusterError: it was refused, or did not complete.
        StreamEndedError: because the job has come to its end.
    """
    code, body = request_rescale(cluster, stage, parallelism)
    status = cluster.status() or {}
    if code != 202:
        if status.get("state") in ("FINISHING", "FINISHED") or "end of its stream" in body["error"]:
            raise StreamEndedError(body["error"])
        raise ClusterError(
            f"rescale of stage {stage} to {parallelism}: {body}; {status.get('cause', '')}\n{cluster.logs()}"
        )
    deadline_s = time.monotonic() + _RESCALE_TIMEOUT_S
    while True:
        found: dict[str, Any] = cluster.http("GET", body["url"])[1]
        if found["phase"] == "COMPLETE":
            return found
        if found["phase"] == "ABORTED" and "end of its stream" in found["cause"]:
            raise StreamEndedError(found["cause"])
        if found["phase"] in ("ABORTED", "FAILED") or time.monotonic() > deadline_s:
            raise ClusterError(f"rescale of stage {stage} to {parallelism}: {found}\n{cluster.logs()}")
        time.sleep(_POLL_S)


def _resident(cluster: Cluster) -> dict[str, int]:
    return {
        name: psutil.Process(process.popen.pid).memory_info().rss
        for name, process in cluster.processes.items()
    }
