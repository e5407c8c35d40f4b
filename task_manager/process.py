"""The task manager process: server, link to the control plane and metrics, from start to orderly end."""

from __future__ import annotations

import logging
from pathlib import Path

from task_manager.connections import let_grpc_sleep
from task_manager.job_slot import JobSlot
from task_manager.link.control_calls import GrpcControlCalls
from task_manager.link.control_link import ControlLink
from task_manager.link.control_planes import ControlPlanes, control_plane_addresses
from task_manager.link.machine_use import machine_use
from task_manager.metrics import TaskManagerMetrics
from task_manager.processors import keep_rows_together
from task_manager.server import TaskManagerServer
from task_manager.services.question_server import QuestionServer
from weir import threads
from weir.clock import SystemClock
from weir.config import Config, PrometheusConfig, TaskManagerConfig
from weir.kernels.declare import load_first_kernel

log = logging.getLogger("task_manager")

_PORT_MAX = 65535


class TaskManagerProcess:
    """Called by ``__main__``; :meth:`stop` comes from signal handlers."""

    def __init__(self, config: Config, *, own_port: bool, own_metrics_port: bool = False) -> None:
        """Connect nothing yet.

        Args:
            config: settings of all task managers.
            own_port: the port was given for this process, so that its store needs a place of its own.
            own_metrics_port: the metrics port was given for this process; it is taken as it is.

        Raises:
            ConfigError: the address of a control plane is wrong.
        """
        self._config = _own_places(config) if own_port else config
        self._metrics_port = (
            config.prometheus.prometheus_port
            if own_metrics_port
            else metrics_port(config.prometheus, config.task_manager.tm_port)
        )
        clock, section = SystemClock(), self._config.task_manager
        self._clock = clock
        control_planes = ControlPlanes(control_plane_addresses(section))
        state_path = None if section.state_backend == "memory" else Path(section.rocksdb_path)
        self._link = ControlLink(section, control_planes, clock, machine_use=machine_use(state_path, clock))
        calls = GrpcControlCalls(section, control_planes, clock, lambda: self._link.is_stopped)
        self._metrics = TaskManagerMetrics(clock)
        self._slot = JobSlot(self._config, self._metrics, clock, self._link.notify, calls)
        questions = QuestionServer(self._slot, calls, self._metrics.registry, section, clock)
        self._server = TaskManagerServer(section, self._slot, clock, questions)

    def stop(self) -> None:
        """Cancel the subtasks, deregister and return from :meth:`run`."""
        self._link.stop()

    def drain(self) -> None:
        """Return from :meth:`run` once others have taken over what runs here; called a second time: at once."""
        self._link.drain()

    def run(self) -> int:
        """Serve until stopped; returns the exit code.

        Raises:
            WeirError: a port is taken, the control plane does not answer, and the like.
        """
        let_grpc_sleep()
        if self._config.task_manager.one_processor:
            keep_rows_together(self._clock)
        address = self._server.start()
        log.info("listening on %s", address)
        # While the control plane is found and reads the job: else the first rows would wait for it.
        threads.start(load_first_kernel, "kernels")
        try:
            self._metrics.start(self._config.prometheus, self._metrics_port, address)
            self._link.run(self._slot)
        finally:
            # First of all, so that the control plane hears the cause from us and not from broken channels of others.
            self._link.leave(self._slot)
            self._server.stop()
            self._metrics.close()
        return 0


def _own_places(config: Config) -> Config:
    """Give a task manager with a port of its own a store and a metrics port of its own (unless it is the first one)."""
    section, default = config.task_manager, TaskManagerConfig()
    if section.tm_port == default.tm_port:
        return config
    path = Path(section.rocksdb_path)
    own_path = path.with_name(f"{path.stem}-{section.tm_port}{path.suffix}")
    task_manager = section.model_copy(update={"rocksdb_path": str(own_path)})
    return config.model_copy(update={"task_manager": task_manager})


def metrics_port(prometheus: PrometheusConfig, tm_port: int) -> int:
    """Where a process serves its metrics: as far from ``prometheus_port`` as its port is from the first one's.

    Any free port (0) if ``prometheus_port`` is 0, or where that would be no port at all.
    """
    port = prometheus.prometheus_port + max(0, tm_port - TaskManagerConfig().tm_port)
    return port if prometheus.prometheus_port and port <= _PORT_MAX else 0
