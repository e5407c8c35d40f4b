"""The control plane process: servers, timers and the control plane, from start to orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from prometheus_client import CollectorRegistry

from control_plane.background import LoopBackground
from control_plane.composition import ControlPlane, Outside
from control_plane.ending import already_ended, told_exit_code, until_over
from control_plane.job.start import continue_left, give_up_left, start_from_savepoint, start_or_take_over
from control_plane.job.start_point import StartPoint
from control_plane.link.clients import TaskManagerClient
from control_plane.link.frequent_service import serve_frequent_calls
from control_plane.link.service import serve_grpc
from control_plane.ports import ManifestStore
from control_plane.record.job_record import JobRecord
from control_plane.start_command import StartCommand
from control_plane.watch.kept_history import HistoryKeeping
from control_plane.watch.traces import OpenSender, Traces, sender_of
from control_plane.web.http import HttpServer, create_app
from control_plane.web.report import page_files, report_html
from control_plane.web.status_views import job_facts
from weir.clock import SystemClock
from weir.config import Config, ControlPlaneConfig
from weir.dataflow.loading import LoadedJob, load_job
from weir.metrics import JobMetrics, register_process_metrics
from weir.process.entry_point import SHOWN_LOGGER
from weir.protocol.job.job_machine import JobState
from weir.questions.access import Audit
from weir.records.file_keeper import FileKeeper, Keeper
from weir.security.identity import current
from weir.types import join_address

log = logging.getLogger("control_plane")
#: The timers look at least so often, by which they see that this process was stopped for a while.
_LOOK_S = 0.5


async def serve(config: Config, command: StartCommand) -> int:
    """Run until the job has ended (``exit_when_finished``) or a signal comes, which cancels it.

    Args:
        config: of all processes.
        command: what to run.

    Returns:
        The exit code: 0 the job finished, 1 it failed, 3 it was cancelled.

    Raises:
        GraphError: the job cannot be loaded.
        ConfigError: an earlier control plane left another job running, or this one with other parameters.
        AddressInUseError: a port is taken.
        CheckpointError: the savepoint or the checkpoint store cannot be used.
    """
    section = _with_absolute_store(config.control_plane)
    job = load_job(
        command.job_module,
        command.parameters,
        {"input": config.file_name, "max_parallelism": section.max_parallelism},
    )
    log.info("parameters of %s %s", command.job_module, job.describe_parameters() or "none")
    open_sender = sender_of(config.traces)
    lost = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_lost() -> None:
        loop.call_soon_threadsafe(lost.set)

    keeper = _keeper(section, job.graph.name, on_lost)
    begun = await _begin(job, section.checkpoint_uri, keeper, command)
    if isinstance(begun, JobState):
        return already_ended(command, begun)
    start, store = begun
    background = LoopBackground()
    control_plane = ControlPlane(
        section,
        command.job_module,
        job,
        start,
        _outside(background, store, keeper),
        end_task_managers=command.exit_when_finished,
        strategy=config.task_manager.state_strategy,
        autoscaler=config.autoscaler,
        channel_batches=config.task_manager.operator_buffer_size,
    )
    traces = _traces(control_plane, open_sender)
    audit = Audit(config.security.audit_file)
    async with _serving(control_plane, background, keeper, command, audit, traces):
        await until_over(control_plane, lost, command)
        if command.report_path:
            _write_report(control_plane, Path(command.report_path))
    return told_exit_code(control_plane)


def _write_report(control_plane: ControlPlane, path: Path) -> None:
    """Write what the page shows; a job has ended as it has, whether that can be written or not."""
    control_plane.watcher.look()
    try:
        path.write_text(report_html(control_plane, page_files()), encoding="utf-8")
    except OSError as error:
        log.error("--report %s: %s; the job is over, so there will be no report of it", path, error.strerror)
    else:
        logging.getLogger(SHOWN_LOGGER).info("report of the run: %s", path)


def _outside(background: LoopBackground, store: ManifestStore | None, keeper: Keeper | None) -> Outside:
    """The ports of a process: the machine's clock, gRPC, and where checkpoints and the record are kept."""
    save = None if keeper is None else keeper.save
    is_shared = keeper is not None and keeper.is_shared
    return Outside(SystemClock(), background, TaskManagerClient, store, save, is_shared=is_shared)


def _with_absolute_store(section: ControlPlaneConfig) -> ControlPlaneConfig:
    """Task managers may run in other directories."""
    uri = section.checkpoint_uri
    if not uri or "://" in uri:
        return section
    return section.model_copy(update={"checkpoint_uri": str(Path(uri).absolute())})


async def _begin(
    job: LoadedJob, uri: str, keeper: Keeper | None, command: StartCommand
) -> tuple[StartPoint, ManifestStore | None] | JobState:
    """Become the leader; returns what the job begins with, or how it has ended. Whoever cannot begin does not lead."""
    record = None if keeper is None else await _lead(keeper)
    savepoint = command.savepoint
    try:
        if record is not None and record.job_id == command.continued_job:
            # However that one was started: by now there is more than it began with.
            return continue_left(job, uri, record)
        if not savepoint:
            return start_or_take_over(job, uri, record, starts_fresh=command.starts_fresh)
        start, store = start_from_savepoint(job.graph, uri, savepoint, allow_dropped=command.allow_dropped)
    except BaseException:
        if keeper is not None:
            keeper.close()
        raise
    give_up_left(record, f"this one starts from {savepoint}")
    return start, store


@contextlib.asynccontextmanager
async def _serving(
    control_plane: ControlPlane,
    loop: LoopBackground,
    keeper: Keeper | None,
    command: StartCommand,
    audit: Audit,
    traces: Traces | None,
) -> AsyncIterator[None]:
    """Servers and timers from start to orderly end."""
    section, parent = control_plane.config, command.parent
    registry = CollectorRegistry()
    register_process_metrics(registry, "control_plane")
    JobMetrics(registry, lambda: job_facts(control_plane))
    http = HttpServer(
        create_app(control_plane, registry, section, audit),
        section,
        or_any_port=command.or_any_http_port,
    )
    calls_server, control_plane.reception.calls_place = await serve_frequent_calls(control_plane, section)
    grpc_server, grpc_port = await serve_grpc(control_plane, section)
    control_plane.reception.grpc_port = grpc_port
    keeping = await _history_kept(control_plane, loop, keeper)
    http.start()
    # Task managers of an earlier weir run have ended with it; those of this one are still there.
    are_gone = parent is not None and not command.continued_job
    control_plane.takeover.start(0 if are_gone else section.lease_timeout_ms)
    host = section.advertised_host or section.host
    log.info("job %s: %d stages", control_plane.job.identity.job_id, len(control_plane.job.graph.stages))
    log.info(
        "task managers register at %s; %s://%s/status",
        join_address(host, grpc_port),
        "http" if current().tls is None else "https",
        join_address(host, http.port),
    )
    if parent is not None:
        job_id = control_plane.job.identity.job_id
        addresses = {"address": join_address(host, grpc_port), "http": join_address(host, http.port)}
        parent.tell({**addresses, "job_id": job_id})
    background = [asyncio.create_task(control_plane.run_timers(min(section.lease_timeout_ms / 4e3, _LOOK_S)))]
    background.append(asyncio.create_task(control_plane.watcher.run()))
    background.append(asyncio.create_task(control_plane.autoscaling.run()))
    if keeping is not None:
        background.append(asyncio.create_task(keeping.run()))
    if command.follows:
        background.append(asyncio.create_task(_follow(control_plane)))
    try:
        yield
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await http.stop()
        calls_server.close()
        if keeping is not None:
            await keeping.save()
        if traces is not None:
            traces.look()
            await loop.in_thread(traces.close)
        await grpc_server.stop(grace=0.5)
        await control_plane.record.close()
        await loop.close()
        await control_plane.task_managers.close()
        if keeper is not None:
            keeper.close()


def _traces(control_plane: ControlPlane, open_sender: OpenSender | None) -> Traces | None:
    """Let checkpoints and rescales that end from now on be traced, if they are to be."""
    if open_sender is None:
        return None
    job = control_plane.job
    sender = open_sender({"weir.job": job.graph.logical.name, "weir.job_id": job.identity.job_id})
    traces = Traces(job, control_plane.clock, control_plane.rescaler.log, sender)
    control_plane.checkpointer.listeners.append(traces.checkpoint_ended)
    control_plane.watcher.listeners.append(traces.look)
    return traces


async def _history_kept(
    control_plane: ControlPlane, background: LoopBackground, keeper: Keeper | None
) -> HistoryKeeping | None:
    """Go on with the history that an earlier process of this job kept; returns what keeps it from now on."""
    if keeper is None:
        return None
    watcher = control_plane.watcher
    keeping = HistoryKeeping(watcher.history, control_plane.job.identity.job_id, keeper, background)
    kept = await keeping.load()
    if kept is not None:
        watcher.resume(kept)
    return keeping


async def _follow(control_plane: ControlPlane) -> None:
    from rich.console import Console

    from control_plane.terminal.follow import follow

    try:
        await follow(control_plane, Console(stderr=True))
    except OSError as error:
        # The terminal is gone; the job is not.
        log.warning("--follow ends: %s", error)


def _keeper(section: ControlPlaneConfig, job_name: str, on_lost: Callable[[], None]) -> Keeper | None:
    if section.etcd_endpoints:
        from weir.records.etcd_keeper import EtcdKeeper

        return EtcdKeeper(section.etcd_endpoints, f"/weir/{job_name}", on_lost)
    return FileKeeper(Path(section.state_path)) if section.state_path else None


async def _lead(keeper: Keeper) -> JobRecord | None:
    """Become the leader; returns what an earlier one left."""
    try:
        await asyncio.to_thread(keeper.lead)
        data = await asyncio.to_thread(keeper.load)
        return None if data is None else JobRecord.from_bytes(data, keeper.place)
    except BaseException:
        keeper.close()
        raise
