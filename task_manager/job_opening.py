"""From the first Deploy of a job to its runtime: the job is loaded and compared, and its store is opened."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from task_manager.checkpoints.restore_listener import RestoreListener
from task_manager.job_runtime import JobRuntime
from task_manager.job_state import open_job_state
from task_manager.link.control_calls import ControlCalls
from task_manager.metrics import TaskManagerMetrics
from task_manager.subtasks.subtask_factory import JobSettings
from task_manager.topology import topology_from_proto
from weir.clock import Clock
from weir.config import Config
from weir.errors import FailureKind, HandshakeError, JobCodeError
from weir.graph import physical_graph
from weir.job_loading import load_deployed_job
from weir.operators.user_errors import UserErrors
from weir.redaction import redacted
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, strategy_from_proto

log = logging.getLogger(__name__)


def open_job(
    request: control_pb2.DeployRequest,
    identity: JobIdentity,
    address: str,
    config: Config,
    metrics: TaskManagerMetrics,
    clock: Clock,
    on_change: Callable[[], None],
    control: ControlCalls,
    errors: UserErrors,
) -> JobRuntime:
    """The runtime of a job, without subtasks; called while nothing else runs here.

    Raises:
        GraphError: the job cannot be loaded.
        HandshakeError: its graph is not that of the control plane.
        StateError: the directory of the store is not ours, in use, or cannot be written.
        CheckpointError: the checkpoint store cannot be read.
    """
    errors.begin(identity.job_id)
    parameters = json.loads(request.parameters_json)
    try:
        loaded = load_deployed_job(request.job_module, parameters)
    except JobCodeError as error:
        log.error("%s\n%s", error, error.user_traceback)
        raise
    if loaded.graph.fingerprint != identity.fingerprint:
        mismatch = HandshakeError(
            f"job {request.job_module}: the graph built on task manager {address} has fingerprint "
            f"{loaded.graph.fingerprint}, the control plane's has {identity.fingerprint}: start both processes "
            "from the same code"
        )
        mismatch.failure_kind = FailureKind.PERMANENT
        raise mismatch
    topology = topology_from_proto(
        physical_graph(loaded.graph), request.stages, request.locations, request.routing_tables
    )
    here = [subtask for subtask, place in topology.locations.items() if place == address]
    restore = (
        request.restore.checkpoint_uri,
        request.restore.job_id,
        request.restore.manifest_path,
    )
    restores = RestoreListener(clock, clock.now_us())
    state = open_job_state(
        config.task_manager,
        identity.job_id,
        request.checkpoint_uri,
        restore if request.HasField("restore") else None,
        topology,
        here,
        request.state_ids,
    )
    runtime = JobRuntime(
        identity,
        topology,
        _settings(request, parameters, config),
        config.task_manager,
        address,
        state,
        metrics,
        clock,
        on_change,
        control,
        restores,
        errors,
    )
    runtime.checkpoints.ended_id = request.ended_checkpoint_id
    return runtime


def _settings(
    request: control_pb2.DeployRequest, parameters: dict[str, object], config: Config
) -> JobSettings:
    return JobSettings(
        request.watermark_interval_ms,
        request.out_of_order_grace_period_ms,
        request.idle_timeout_ms,
        request.alignment_timeout_ms,
        request.deployed_us,
        dict(request.state_ids),
        tuple(request.isolated_steps),
        {
            "job_module": request.job_module,
            # Sinks write these facts beside their results.
            "parameters": redacted(parameters),
            "config": redacted(config.model_dump(mode="json", by_alias=True)),
        },
        strategy_from_proto(request.state_strategy),
    )
