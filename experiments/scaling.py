"""Ask a running job to scale, and wait until that is done; for the demo, the experiments and the rescale benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.cluster import Cluster
from experiments.processes import ClusterError

#: Phases in which nothing changes any more.
_FINAL_PHASES = frozenset({"COMPLETE", "ABORTED", "FAILED"})
#: What the refusal of a rescale says when state comes from a checkpoint still.
RESTORING = "is still restoring"
_RESTORE_TIMEOUT_S, _RESTORE_POLL_S = 60.0, 0.05
#: From the first of these on, every group has its new owner.
_OWNED_PHASES = ("MIGRATING", "COMPLETE")


@dataclass(frozen=True)
class Rescale:
    """A rescale that is complete. Times are wall clocks in ms since the epoch."""

    #: When the request was sent.
    requested_ms: int
    #: Of the request itself, until its answer was here.
    answered_ms: int
    #: The last ``/rescales/ID``.
    report: Mapping[str, Any]

    @property
    def owned_ms(self) -> int:
        """When every key group had its new owner."""
        phases = self.report["phases"]
        return int(next(phases[name] for name in _OWNED_PHASES if name in phases))

    @property
    def completed_ms(self) -> int:
        """When every group's state was where it belongs, too."""
        return int(self.report["phases"]["COMPLETE"])

    def phases_ms(self) -> dict[str, int]:
        """How long each phase took."""
        names = list(self.report["phases"])
        begins = [self.report["phases"][name] for name in names]
        ends = [*begins[1:], begins[-1]]
        return {
            name: end - begin for name, begin, end in zip(names, begins, ends, strict=True) if end > begin
        }


def wait_running(cluster: Cluster, timeout_s: float = 60.0) -> dict[str, Any]:
    """Wait until the job runs; gives that status.

    Raises:
        ClusterError: it does not.
    """

    def runs(status: dict[str, Any]) -> bool:
        cluster.check_task_managers(status)
        return status["state"] not in ("WAITING_FOR_TASK_MANAGERS", "DEPLOYING")

    status = cluster.wait_for(runs, "the start of the job", timeout_s)
    if status["state"] != "RUNNING":
        raise ClusterError(f"job {status['job']} {status['state'].lower()} too early: {status['cause']}")
    return status


def sleep_until_ms(moment_ms: float) -> None:
    """Sleep until a wall clock; not at all if it has passed."""
    time.sleep(max(0.0, moment_ms / 1e3 - time.time()))


def request_rescale(cluster: Cluster, stage: int, parallelism: int) -> tuple[int, Any]:
    """Code and answer of the request, which is repeated while the stage is being restored."""
    deadline_s = time.monotonic() + _RESTORE_TIMEOUT_S
    while True:
        code, answer = cluster.http("POST", f"/scale?stage={stage}&parallelism={parallelism}")
        if code != 409 or RESTORING not in answer["error"] or time.monotonic() > deadline_s:
            return code, answer
        time.sleep(_RESTORE_POLL_S)


def rescale(
    cluster: Cluster,
    stage: int,
    parallelism: int,
    *,
    timeout_s: float = 120.0,
    poll_s: float = 0.1,
    on_poll: Callable[[Mapping[str, Any]], None] | None = None,
) -> Rescale:
    """Ask for a parallelism and wait until the rescale is complete.

    Args:
        cluster: with a running job.
        stage: index of the stage.
        parallelism: its new number of subtasks.
        timeout_s: for all of it, background migration included.
        poll_s: between two looks at its progress.
        on_poll: called with every ``/rescales/ID``.

    Raises:
        ClusterError: it was refused, ended otherwise, or is not complete in time; has the cause and the logs.
    """
    requested_ms = time.time_ns() // 1_000_000
    code, answer = request_rescale(cluster, stage, parallelism)
    answered_ms = time.time_ns() // 1_000_000
    if code != 202:
        raise ClusterError(f"scaling stage {stage} to {parallelism} was refused ({code}): {answer['error']}")
    deadline_s = time.monotonic() + timeout_s
    while True:
        report: dict[str, Any] = cluster.http("GET", answer["url"])[1]
        if on_poll is not None:
            on_poll(report)
        if report["phase"] in _FINAL_PHASES:
            break
        if time.monotonic() > deadline_s:
            raise ClusterError(
                f"rescale {report['id']} is still {report['phase']} after {timeout_s:g} s\n{cluster.logs()}"
            )
        time.sleep(poll_s)
    if report["phase"] != "COMPLETE":
        raise ClusterError(
            f"rescale {report['id']} {report['phase'].lower()}: {report['cause']}\n{cluster.logs()}"
        )
    return Rescale(requested_ms, answered_ms, report)
