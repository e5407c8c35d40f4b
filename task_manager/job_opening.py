"""The way from the first Deploy of a job to its runtime: the job is loaded and compared, and its store is opened."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from task_manager.checkpoints.checkpointing import CheckpointParticipant
from task_manager.checkpoints.image_calls import ImageCalls
from task_manager.checkpoints.restore_listener import RestoreListener
from task_manager.checkpoints.standby_keeper import StandbyKeeper
from task_manager.exchange.inboxes import Inboxes
from task_manager.exchange.peer_network import PeerNetwork
from task_manager.job_runtime import JobRuntime
from task_manager.job_stores import JobStores, open_job_stores
from task_manager.link.control_calls import ControlCalls
from task_manager.metrics import TaskManagerMetrics
from task_manager.rescale.rescale_opening import open_rescaling
from task_manager.state.job_database import JobDatabase, open_job_database, ordered_states
from task_manager.subtasks.job_settings import JobSettings
from task_manager.subtasks.running import RunningSubtask
from task_manager.subtasks.step_parts import StepParts
from task_manager.subtasks.subtask_factory import SubtaskFactory
from task_manager.topology import Topology, topology_from_proto
from weir import threads
from weir.clock import Clock
from weir.config import Config, TaskManagerConfig
from weir.dataflow.loading import LoadedJob, load_deployed_job
from weir.errors import FailureKind, HandshakeError, JobCodeError
from weir.kernels.habits import load_habitual
from weir.operators.registry import preload_operators, runtimes_of
from weir.operators.user_errors import UserErrors
from weir.plan.fingerprints import fingerprint_of
from weir.plan.graph import LogicalGraph, PhysicalGraph
from weir.plan.stages import physical_graph
from weir.plan.state_horizons import with_horizons
from weir.plan.stored_aggregates import with_layouts
from weir.process.entry_point import settle_memory
from weir.protocol.checkpoints.aggregate_layout import layouts_from_json
from weir.protocol.checkpoints.horizons import horizons_from_json
from weir.questions.askable import askable, asked_pairs
from weir.redaction import redacted
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, strategy_from_proto
from weir.types import SubtaskId

#: That publish, and as many that take images.
_CHECKPOINT_THREADS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobPlaces:
    """What a job on a task manager is loaded from, and where its state and its rows go; simulations have others."""

    load: Callable[[str, dict[str, object]], LoadedJob] = load_deployed_job
    #: Called as ``open_job_stores``.
    open_state: Callable[..., JobStores] = open_job_stores
    #: Called as ``PeerNetwork``.
    network: Callable[..., PeerNetwork] = PeerNetwork


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
    places: JobPlaces,
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
    loaded = _load(request.job_module, parameters, identity, address, places.load)
    layouts = layouts_from_json(json.loads(request.layouts_json or "{}"))
    horizons = horizons_from_json(json.loads(request.horizons_json or "{}"))
    graph = with_horizons(with_layouts(loaded.graph, layouts), horizons)
    topology = topology_from_proto(
        physical_graph(graph), request.stages, request.locations, request.routing_tables
    )
    _load_code(topology.graph)
    here = [subtask for subtask, place in topology.locations.items() if place == address]
    restore = (
        request.restore.checkpoint_uri,
        request.restore.job_id,
        request.restore.manifest_path,
    )
    restores = RestoreListener(clock, clock.now_us(), topology.graph.name_of)
    in_database = config.task_manager.state_backend == "cassandra"
    state = places.open_state(
        config.task_manager,
        identity.job_id,
        request.checkpoint_uri,
        restore if request.HasField("restore") else None,
        topology,
        here,
        request.state_ids,
        **({"database_run": request.database_run} if in_database else {}),
    )
    database = _open_database(request, identity, config, loaded.graph, graph, state, clock)
    settings = _settings(request, parameters, config)
    runtime = _connect(
        identity, topology, settings, config.task_manager, address, state, metrics, clock, on_change, control,
        restores, errors, places.network, database,
    )  # fmt: skip
    runtime.checkpoints.ended_id = request.ended_checkpoint_id
    return runtime


def _open_database(
    request: control_pb2.DeployRequest,
    identity: JobIdentity,
    config: Config,
    built: LogicalGraph,
    graph: LogicalGraph,
    state: JobStores,
    clock: Clock,
) -> JobDatabase | None:
    """The job's database, if it keeps its state in one; ``built``: the graph as its author made it."""
    try:
        return open_job_database(
            config.task_manager,
            built.name,
            identity.job_id,
            request.database_run,
            dict(request.state_ids),
            ["/".join(pair) for pair in asked_pairs(askable(graph))],
            ordered_states(graph),
            state.restored_id,
            clock,
            has_checkpoints=bool(request.checkpoint_uri),
        )
    except BaseException:
        state.close()
        raise


def _load_code(graph: PhysicalGraph) -> None:
    """Load what runs the steps of a job, and kernels that such jobs have called before."""
    preload_operators(graph)
    if load_habitual(runtimes_of(graph)):
        # Hundred thousands of objects, which stay: the collector would go through them again and again beside the rows.
        gc.collect()
        settle_memory()


def _load(
    module: str,
    parameters: dict[str, object],
    identity: JobIdentity,
    address: str,
    load: Callable[[str, dict[str, object]], LoadedJob],
) -> LoadedJob:
    """The job, if it is the one that the control plane has loaded."""
    try:
        loaded = load(module, parameters)
    except JobCodeError as error:
        log.error("%s\n%s", error, error.user_traceback)
        raise
    if fingerprint_of(loaded.graph) != identity.fingerprint:
        mismatch = HandshakeError(
            f"job {module}: the graph built on task manager {address} has fingerprint "
            f"{fingerprint_of(loaded.graph)}, the control plane's has {identity.fingerprint}: start both processes "
            "from the same code"
        )
        mismatch.failure_kind = FailureKind.PERMANENT
        raise mismatch
    return loaded


def _connect(
    identity: JobIdentity,
    topology: Topology,
    settings: JobSettings,
    config: TaskManagerConfig,
    address: str,
    state: JobStores,
    metrics: TaskManagerMetrics,
    clock: Clock,
    on_change: Callable[[], None],
    control: ControlCalls,
    restores: RestoreListener,
    errors: UserErrors,
    make_network: Callable[..., PeerNetwork],
    database: JobDatabase | None,
) -> JobRuntime:
    """Make the parts of a job on this task manager and tell each of those that it needs."""
    stats = state.store.stats if database is None else partial(database.stats, state.store)
    metrics.show_store(address, config.state_backend, stats)
    inboxes = Inboxes(address, topology, clock)
    network = make_network(identity, address, config, clock, inboxes.open, topology.graph.name_of)
    steps = StepParts(identity, settings, config, state, clock, errors)
    factory = SubtaskFactory(
        address, settings, config, state, network, steps, clock, control.locate, errors, database
    )
    checkpoints = _checkpoints(identity, topology, address, state, network, control, database)
    running: dict[SubtaskId, RunningSubtask] = {}
    rescaling = open_rescaling(
        identity,
        address,
        running,
        inboxes,
        network,
        state.store,
        config,
        settings.strategy,
        on_change,
        clock,
        state if database is None and state.publisher is not None else None,
    )
    return JobRuntime(
        identity,
        address,
        state,
        inboxes,
        running,
        network,
        factory,
        checkpoints,
        rescaling,
        restores,
        metrics,
        clock,
        on_change,
        StandbyKeeper(
            state.checkpoint_store, state.standby_copies(), config.migration_bytes_per_second, clock
        ),
        database,
    )


def _checkpoints(
    identity: JobIdentity,
    topology: Topology,
    address: str,
    state: JobStores,
    network: PeerNetwork,
    control: ControlCalls,
    database: JobDatabase | None,
) -> CheckpointParticipant:
    return CheckpointParticipant(
        identity,
        address,
        state.checkpoint_store,
        state.publisher,
        ImageCalls(identity, network),
        control,
        state.images_by_id,
        threads.pool(_CHECKPOINT_THREADS, "checkpoint"),
        threads.pool(_CHECKPOINT_THREADS, "images"),
        None if database is None else database.applying,
        topology.graph.name_of,
        state.checks,
    )


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
