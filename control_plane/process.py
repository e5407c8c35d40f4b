"""One control plane process: servers, timers and the coordinator, from start to orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

from control_plane.coordinator import Coordinator
from control_plane.http import HttpServer, create_app
from control_plane.service import serve_grpc
from control_plane.status_views import job_facts
from weir.clock import SystemClock
from weir.config import Config
from weir.job_loading import load_job
from weir.metrics import JobMetrics, register_process_metrics
from weir.protocol.job import JobState

log = logging.getLogger("control_plane")

#: How long to wait, at the end, for task managers that were told to end.
_FAREWELL_S = 10.0
#: How long to wait, after a signal, for subtasks to stop.
_CANCEL_S = 5.0
_JOB_FAILED_EXIT_CODE = 1
_CANCELLED_EXIT_CODE = 3


async def serve(
    config: Config, job_module: str, parameters: Mapping[str, str], *, exit_when_finished: bool
) -> int:
    """Run until the job has ended (``exit_when_finished``) or a signal comes, which cancels it.

    Returns:
        The exit code: 0 the job finished, 1 it failed, 3 it was cancelled.

    Raises:
        GraphError: the job cannot be loaded.
        AddressInUseError: a port is taken.
    """
    section = config.control_plane
    job = load_job(
        job_module, parameters, {"input": config.file_name, "max_parallelism": section.max_parallelism}
    )
    coordinator = Coordinator(
        section,
        job_module,
        job,
        SystemClock(),
        end_task_managers=exit_when_finished,
        migrates=config.task_manager.use_migrate,
    )
    registry = CollectorRegistry()
    register_process_metrics(registry, "control_plane")
    JobMetrics(registry, lambda: job_facts(coordinator))
    http = HttpServer(create_app(coordinator, registry), section)
    grpc_server, grpc_port = await serve_grpc(coordinator, section)
    http.start()
    log.info("job %s: %d stages", coordinator.identity.job_id, len(coordinator.graph.stages))
    log.info(
        "task managers register at %s:%d; http://%s:%d/status",
        section.host,
        grpc_port,
        section.host,
        http.port,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    timers = asyncio.create_task(_timers(coordinator, section.heartbeat_interval_ms / 1e3))
    try:
        await _until_over(coordinator, stop, exit_when_finished=exit_when_finished)
    finally:
        timers.cancel()
        await http.stop()
        await grpc_server.stop(grace=0.5)
        await coordinator.close()
    return _exit_code(coordinator.machine.state)


async def _until_over(coordinator: Coordinator, stop: asyncio.Event, *, exit_when_finished: bool) -> None:
    waits = [asyncio.create_task(stop.wait())]
    if exit_when_finished:
        waits.append(asyncio.create_task(coordinator.ended.wait()))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if not coordinator.ended.is_set():
        # Nobody watches over the job any more: it must not go on alone.
        log.info("stopping: cancelling job %s", coordinator.identity.job_id)
        coordinator.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(coordinator.ended.wait(), _CANCEL_S)
    if exit_when_finished:
        # Task managers learn of the end from their next heartbeat, and deregister.
        deadline_ms = coordinator.now_ms() + int(_FAREWELL_S * 1000)
        while coordinator.membership.members() and coordinator.now_ms() < deadline_ms:
            await asyncio.sleep(0.02)


async def _timers(coordinator: Coordinator, interval_s: float) -> None:
    while True:
        await asyncio.sleep(interval_s)
        coordinator.expire_leases()


def _exit_code(state: JobState) -> int:
    if state is JobState.FAILED:
        return _JOB_FAILED_EXIT_CODE
    return _CANCELLED_EXIT_CODE if state is JobState.CANCELLED else 0
