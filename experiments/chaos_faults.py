"""Carries faults out on real processes, and ends them in their time."""

from __future__ import annotations

import signal
import time
import urllib.error
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from experiments.chaos_schedule import Fault, FaultKind
from experiments.cluster import Cluster
from experiments.kafka_brokers import Brokers
from experiments.processes import WeirProcess
from experiments.scaling import RESTORING
from experiments.small_disk import SmallDisk
from experiments.soak import JOB
from experiments.soak_job import STAGES
from experiments.tcp_proxy import TcpProxy

#: So many task managers are neither dead nor paused nor cut off at any moment.
UNHARMED_MIN = 2
_PARALLELISM_MAX = 3
_RESCALE_TIMEOUT_S = 2.0
_CONTROL_PLANE, _BROKERS = "control_plane", "brokers"


@dataclass(frozen=True)
class _On:
    """A fault that lasts."""

    until_s: float
    #: What it harms: the name of a process or of a disk.
    harms: str
    end: Callable[[], object]


class Faults:
    """All processes of one run; not safe for several threads."""

    def __init__(
        self,
        cluster: Cluster,
        disks: Mapping[str, SmallDisk],
        proxies: Mapping[str, TcpProxy],
        parameters: Mapping[str, object],
        *,
        job: str = JOB,
        stages: Sequence[int] = STAGES,
        brokers: Brokers | None = None,
    ) -> None:
        """Harm nothing yet.

        Args:
            cluster: has the processes.
            disks: ``state`` and ``checkpoints``, or none.
            proxies: by task manager, to the control plane.
            parameters: of the job.
            job: its module.
            stages: that are rescaled.
            brokers: of the Kafka that the job reads and writes.
        """
        self._cluster = cluster
        self._disks = disks
        self._proxies = proxies
        self._parameters = parameters
        self._job, self._stages, self._brokers = job, stages, brokers
        self.on: list[_On] = []
        self._refill_s = 0.0

    @property
    def has_disks(self) -> bool:
        """Whether disks can be filled."""
        return bool(self._disks)

    @property
    def control_plane_answers(self) -> bool:
        """Whether the control plane is neither dead nor paused."""
        return not self._is_harmed(_CONTROL_PLANE)

    def start_all(self, task_managers: int) -> None:
        """Start every process."""
        self.start_control_plane()
        self.start_task_managers(task_managers)

    def start_task_managers(self, count: int) -> None:
        """Start the first ones; they wait for the control plane."""
        for name in list(self._proxies)[:count]:
            self._start_task_manager(name)

    def begin(self, fault: Fault) -> str | None:
        """Carry a fault out; gives a line about it, or None: not now, because too much is harmed already."""
        match fault.kind:
            case FaultKind.KILL_TASK_MANAGER | FaultKind.PAUSE_TASK_MANAGER | FaultKind.CUT:
                unharmed = [name for name in self._proxies if not self._is_harmed(name)]
                if len(unharmed) <= UNHARMED_MIN:
                    return None
                return self._harm(fault, unharmed[int(fault.victim * len(unharmed))])
            case FaultKind.KILL_CONTROL_PLANE | FaultKind.PAUSE_CONTROL_PLANE:
                return None if self._is_harmed(_CONTROL_PLANE) else self._harm(fault, _CONTROL_PLANE)
            case FaultKind.RESCALE:
                return None if self._is_harmed(_CONTROL_PLANE) else self._rescale(fault)
            case FaultKind.FULL_STATE_DISK:
                return self._fill(fault, "state")
            case FaultKind.FULL_CHECKPOINT_DISK:
                return self._fill(fault, "checkpoints")
            case FaultKind.KILL_BROKER:
                return self._kill_broker(fault)
            case _:
                assert_never(fault.kind)

    def end_due(self) -> None:
        """End what has lasted long enough, and keep full disks full."""
        now_s = time.monotonic()
        for item in [item for item in self.on if item.until_s <= now_s]:
            self.on.remove(item)
            item.end()
        for name, disk in self._disks.items():
            if self._is_harmed(name):
                disk.fill()

    def ended_by_itself(self) -> str:
        """The first process that has ended, though nobody ended it; empty: none."""
        for name, process in self._cluster.processes.items():
            if not self._is_harmed(name) and process.popen.poll() is not None:
                return name
        return ""

    def _is_harmed(self, name: str) -> bool:
        return any(item.harms == name for item in self.on)

    def _lasting(self, fault: Fault, harms: str, end: Callable[[], object]) -> None:
        self.on.append(_On(time.monotonic() + fault.lasts_s, harms, end))

    def _harm(self, fault: Fault, name: str) -> str:
        process = self._cluster.processes[name]
        what = f"{name}, {fault.lasts_s:.1f} s"
        if fault.kind is FaultKind.CUT:
            proxy = self._proxies[name]
            proxy.cut()
            self._lasting(fault, name, proxy.mend)
            return f"network cut between control_plane and {what}"
        if fault.kind in (FaultKind.PAUSE_TASK_MANAGER, FaultKind.PAUSE_CONTROL_PLANE):
            process.popen.send_signal(signal.SIGSTOP)
            self._lasting(fault, name, lambda: process.popen.send_signal(signal.SIGCONT))
            return f"SIGSTOP of {what}"
        process.popen.kill()
        process.popen.wait()
        self._lasting(fault, name, lambda: self._start(name, process))
        return f"kill -9 of {what}"

    def _start(self, name: str, before: WeirProcess) -> None:
        if name == _CONTROL_PLANE:
            self.start_control_plane()
        else:
            self._start_task_manager(name, before.port)

    def start_control_plane(self) -> None:
        """Start the control plane with the job."""
        self._cluster.start_control_plane(self._job, self._parameters, exit_when_finished=False)

    def _start_task_manager(self, name: str, port: int = 0) -> None:
        self._cluster.start_task_manager(name, port=port, control_plane_port=self._proxies[name].port)

    def _rescale(self, fault: Fault) -> str | None:
        stage = self._stages[int(fault.victim * len(self._stages))]
        parallelism = 1 + int(fault.extent * _PARALLELISM_MAX)
        try:
            code, body = self._cluster.http(
                "POST", f"/scale?stage={stage}&parallelism={parallelism}", _RESCALE_TIMEOUT_S
            )
            if code == 409 and ("only a running job" in body["error"] or RESTORING in body["error"]):
                return None
            answer = "accepted" if code == 202 else f"refused: {body['error']}"
        except (urllib.error.URLError, OSError):
            # It is starting.
            return None
        return f"rescale of stage {stage} to {parallelism}: {answer}"

    def _fill(self, fault: Fault, name: str) -> str | None:
        if self._is_harmed(name):
            return None
        disk = self._disks[name]
        disk.fill()
        self._lasting(fault, name, disk.free)
        return f"disk full ({name}), {fault.lasts_s:.1f} s"

    def _kill_broker(self, fault: Fault) -> str | None:
        brokers = self._brokers
        if brokers is None or self._is_harmed(_BROKERS) or not brokers.all_serve:
            return None
        number = 1 + int(fault.victim * brokers.count)
        brokers.kill(number)
        self._lasting(fault, _BROKERS, brokers.bring_back)
        return f"kill -9 of broker {number}, {fault.lasts_s:.1f} s"
