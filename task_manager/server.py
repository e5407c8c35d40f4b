"""The gRPC face of a task manager: takes deployments from the control plane, and channels and state from peers."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc

from task_manager.exchange.channels import Inbox
from task_manager.exchange.exchange_service import ExchangeService
from task_manager.exchange.remote_channel import check_channel_job
from task_manager.job_opening import open_job
from task_manager.job_runtime import JobRuntime
from task_manager.link.control_calls import ControlCalls
from task_manager.link.reports import report_to_proto
from task_manager.metrics import TaskManagerMetrics
from task_manager.rescale.cached_wire import entries_of
from task_manager.state.state_service import StateService
from task_manager.topology import topology_from_proto
from weir.clock import Clock
from weir.config import Config, StateStrategy
from weir.errors import (
    AddressInUseError,
    FailureKind,
    FencedError,
    HandshakeError,
    StateError,
    WeirError,
    kind_of,
)
from weir.operators.chain import StepError
from weir.operators.user_errors import UserErrors
from weir.protocol.cache_copy import CopyArrived
from weir.protocol.fencing import EpochFence
from weir.protocol.rescale_owner import HandoverReceived
from weir.protocol.routing import GroupMove
from weir.rpc import common_pb2, control_pb2, control_pb2_grpc, data_pb2_grpc, state_pb2_grpc
from weir.rpc.wire import (
    PROTOCOL_VERSION,
    JobIdentity,
    failure_kind_to_proto,
    handshake_from_proto,
    message_size_options,
    refusal_metadata,
    strategy_from_proto,
    subtask_from_proto,
    subtask_to_proto,
)
from weir.state.api import StateBackend
from weir.types import ChannelId, join_address

log = logging.getLogger(__name__)

#: Threads of the gRPC server, made on demand: every open channel holds one for its whole life.
_SERVER_THREADS_MAX = 4096
#: How long subtasks may take to stop.
_STOP_TIMEOUT_S = 10.0
#: How long the subtasks of an older deployment may take: the new one waits for them.
_MAKE_WAY_TIMEOUT_S = 1.0


class TaskManagerServer(control_pb2_grpc.TaskManagerServicer):
    """Owns the gRPC server and at most one job."""

    def __init__(
        self,
        config: Config,
        metrics: TaskManagerMetrics,
        clock: Clock,
        on_change: Callable[[], None],
        control: ControlCalls,
    ) -> None:
        """``on_change`` is called when there is something to report."""
        self.incarnation = secrets.token_hex(8)
        self.address = ""
        self._config = config
        self._metrics = metrics
        self._errors = UserErrors()
        self._clock = clock
        self._on_change = on_change
        self._control = control
        self._runtime: JobRuntime | None = None
        #: Jobs, and their strategies, of which the log says that they are not as configured here.
        self._told_strategies: set[tuple[str, StateStrategy]] = set()
        self._lock = threading.Lock()
        self._server = grpc.server(
            ThreadPoolExecutor(_SERVER_THREADS_MAX, thread_name_prefix="grpc"),
            # Without this, two task managers could share a port and each get half of the calls.
            options=[("grpc.so_reuseport", 0), *message_size_options(config.task_manager.message_bytes_max)],
        )
        control_pb2_grpc.add_TaskManagerServicer_to_server(self, self._server)
        data_pb2_grpc.add_ExchangeServicer_to_server(ExchangeService(self._find_inbox), self._server)
        state_pb2_grpc.add_StateServicer_to_server(StateService(self._find_store), self._server)

    def start(self) -> str:
        """Listen; gives the address under which this task manager is known.

        Raises:
            AddressInUseError: the port is taken.
        """
        section = self._config.task_manager
        bound = join_address(section.host, section.tm_port)
        try:
            port = self._server.add_insecure_port(bound)
        except RuntimeError as error:
            raise AddressInUseError(
                f"cannot listen on {bound}: the port is in use or the address is not this machine's; "
                "choose another with --port"
            ) from error
        self.address = join_address(section.advertised_host or section.host, port)
        self._server.start()
        return self.address

    def renew_incarnation(self) -> None:
        """The lease is lost: what runs here was given up by the control plane; begin anew under another name."""
        self.drop_job()
        self.incarnation = secrets.token_hex(8)

    def drop_job(self, runtime: JobRuntime | None = None) -> None:
        """Stop what runs here and release its store; only if it is ``runtime``, where that is given."""
        # With the lock, so that a deployment waits until the store is free.
        with self._lock:
            if runtime is None or self._runtime is runtime:
                runtime, self._runtime = self._runtime, None
                if runtime is not None:
                    runtime.close(_STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Cancel the job, release the store and stop listening."""
        self.drop_job()
        self._server.stop(grace=0.5).wait()

    @property
    def runtime(self) -> JobRuntime | None:
        """The deployed job, if any."""
        return self._runtime

    def ownership_reports(self) -> list[control_pb2.OwnershipReport]:
        """What owners here have of the latest rescale; sent with heartbeats."""
        runtime = self._runtime
        return [] if runtime is None else runtime.rescaling.reports()

    def reports(self) -> list[control_pb2.SubtaskReport]:
        """One report per subtask; sent with heartbeats."""
        runtime = self._runtime
        return [] if runtime is None else [report_to_proto(*item) for item in runtime.progress().items()]

    def Status(
        self, request: control_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> control_pb2.StatusReply:
        """Who this is and what runs here."""
        runtime = self._runtime
        return control_pb2.StatusReply(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self.incarnation,
            operator_quota=self._config.task_manager.operator_quota,
            subtasks=self.reports(),
            job_id=runtime.identity.job_id if runtime else "",
            generation=runtime.identity.generation if runtime else 0,
        )

    def Deploy(
        self, request: control_pb2.DeployRequest, context: grpc.ServicerContext
    ) -> control_pb2.DeployReply:
        """Create subtasks; the first call for a job loads it and opens the store."""
        with self._lock, _errors_to(context):
            runtime = self._runtime_for(request)
            runtime.deploy(
                [subtask_from_proto(subtask) for subtask in request.subtasks],
                topology_from_proto(runtime.graph, request.stages, request.locations, request.routing_tables),
            )
        return control_pb2.DeployReply()

    def Start(
        self, request: control_pb2.StartRequest, context: grpc.ServicerContext
    ) -> control_pb2.StartReply:
        """Every subtask of the job is ready: sources begin."""
        with self._lock, _errors_to(context):
            runtime = self._current(handshake_from_proto(request.handshake))
            runtime.begin(request.job_start_us)
        return control_pb2.StartReply()

    def Cancel(
        self, request: control_pb2.CancelRequest, context: grpc.ServicerContext
    ) -> control_pb2.CancelReply:
        """Stop a job's subtasks; a job that is not here is no error, so that the call can be repeated."""
        runtime = self._runtime
        if (
            runtime is not None
            and runtime.identity.job_id == request.job_id
            # A late order must not stop a newer deployment.
            and runtime.identity.generation <= request.generation
        ):
            if request.subtasks or request.lost_producers:
                runtime.cancel_subtasks([subtask_from_proto(subtask) for subtask in request.subtasks])
                runtime.end_channels_of([subtask_from_proto(item) for item in request.lost_producers])
            else:
                runtime.cancel()
        return control_pb2.CancelReply()

    def PrepareRescale(
        self, request: control_pb2.PrepareRescaleRequest, context: grpc.ServicerContext
    ) -> control_pb2.PrepareRescaleReply:
        """Tell owners here what will move."""
        with _errors_to(context):
            ended = self._current(handshake_from_proto(request.handshake)).rescaling.prepare(
                [subtask_from_proto(subtask) for subtask in request.subtasks],
                request.routing_version,
                tuple(
                    GroupMove(move.key_group, move.source_subtask_index, move.target_subtask_index)
                    for move in request.moves
                ),
                list(request.retiring),
                {subtask_from_proto(item.subtask): item.address for item in request.locations},
            )
        return control_pb2.PrepareRescaleReply(ended=[subtask_to_proto(subtask) for subtask in ended])

    def Reroute(
        self, request: control_pb2.RerouteRequest, context: grpc.ServicerContext
    ) -> control_pb2.RerouteReply:
        """Switch upstream subtasks here."""
        with _errors_to(context):
            runtime = self._current(handshake_from_proto(request.handshake))
            runtime.reroute(
                [subtask_from_proto(subtask) for subtask in request.upstream],
                [subtask_from_proto(subtask) for subtask in request.owners],
                request.stage_index,
                request.routing_version,
                topology_from_proto(runtime.graph, request.stages, request.locations, request.routing_tables),
                list(request.retiring),
            )
        return control_pb2.RerouteReply()

    def HandOver(
        self, request: control_pb2.HandOverRequest, context: grpc.ServicerContext
    ) -> control_pb2.HandOverReply:
        """Take key groups over from another task manager."""
        with _errors_to(context):
            self._current(handshake_from_proto(request.handshake)).rescaling.receive(
                subtask_from_proto(request.target),
                HandoverReceived(request.routing_version, _groups_of(request.groups), request.state_location),
                request.bytes_shipped,
            )
        return control_pb2.HandOverReply()

    def TakeCopy(
        self, request: control_pb2.TakeCopyRequest, context: grpc.ServicerContext
    ) -> control_pb2.TakeCopyReply:
        """Take what the old owner of key groups had cached."""
        with _errors_to(context):
            self._current(handshake_from_proto(request.handshake)).rescaling.take_copy(
                subtask_from_proto(request.target),
                CopyArrived(
                    request.routing_version,
                    _groups_of(request.groups),
                    at_handover=request.at_handover,
                    anew=request.anew,
                    complete=request.complete,
                ),
                entries_of(request),
            )
        return control_pb2.TakeCopyReply()

    def AbortRescale(
        self, request: control_pb2.AbortRescaleRequest, context: grpc.ServicerContext
    ) -> control_pb2.AbortRescaleReply:
        """Take a rescale back."""
        with _errors_to(context):
            self._current(handshake_from_proto(request.handshake)).rescaling.abort(
                [subtask_from_proto(subtask) for subtask in request.owners], request.routing_version
            )
        return control_pb2.AbortRescaleReply()

    def TriggerCheckpoint(
        self, request: control_pb2.TriggerCheckpointRequest, context: grpc.ServicerContext
    ) -> control_pb2.TriggerCheckpointReply:
        """Let sources here send a barrier."""
        with _errors_to(context):
            ended = self._current(handshake_from_proto(request.handshake)).trigger_checkpoint(
                request.checkpoint_id,
                [subtask_from_proto(subtask) for subtask in request.subtasks],
                holds=request.holds,
            )
        return control_pb2.TriggerCheckpointReply(ended=[subtask_to_proto(subtask) for subtask in ended])

    def EndCheckpoint(
        self, request: control_pb2.EndCheckpointRequest, context: grpc.ServicerContext
    ) -> control_pb2.EndCheckpointReply:
        """A checkpoint is complete, or was given up."""
        with _errors_to(context):
            failures = self._current(handshake_from_proto(request.handshake)).end_checkpoint(
                request.checkpoint_id,
                [subtask_from_proto(subtask) for subtask in request.ended],
                committed=request.committed,
                waits=request.waits,
            )
        return control_pb2.EndCheckpointReply(
            failures=[
                control_pb2.DeliveryFailure(
                    subtask=subtask_to_proto(subtask), cause=cause, failure_kind=failure_kind_to_proto(kind)
                )
                for subtask, (cause, kind) in failures.items()
            ]
        )

    def TakeImage(
        self, request: control_pb2.TakeImageRequest, context: grpc.ServicerContext
    ) -> control_pb2.TakeImageReply:
        """Note the store here for an owner elsewhere."""
        with _errors_to(context):
            checkpoints = self._current(handshake_from_proto(request.handshake)).checkpoints
            return control_pb2.TakeImageReply(image_id=checkpoints.take_for_peer(request.checkpoint_id))

    def CollectImage(
        self, request: control_pb2.CollectImageRequest, context: grpc.ServicerContext
    ) -> control_pb2.CollectImageReply:
        """Wait until an image is published."""
        with _errors_to(context):
            checkpoints = self._current(handshake_from_proto(request.handshake)).checkpoints
            image_json, new_bytes = checkpoints.collect_for_peer(request.image_id)
        return control_pb2.CollectImageReply(image_json=image_json, new_bytes=new_bytes)

    def PullState(
        self, request: control_pb2.PullStateRequest, context: grpc.ServicerContext
    ) -> control_pb2.PullStateReply:
        """Let owners here fetch their state from a store that is to go away."""
        with _errors_to(context):
            rescaling = self._current(handshake_from_proto(request.handshake)).rescaling
            return control_pb2.PullStateReply(groups_left=rescaling.pull(request.address))

    def forget(self, subtasks: Iterable[common_pb2.SubtaskId]) -> None:
        """The control plane has the last report of these subtasks and needs nothing more of them."""
        # A deployment may hold the lock for long, and the heartbeat must not wait for it: the next one says it again.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._runtime is not None:
                self._runtime.forget([subtask_from_proto(subtask) for subtask in subtasks])
        finally:
            self._lock.release()

    def _runtime_for(self, request: control_pb2.DeployRequest) -> JobRuntime:
        identity = handshake_from_proto(request.handshake)
        if self._runtime is not None and self._runtime.identity == identity:
            return self._runtime
        if self._runtime is not None:
            self._make_way(self._runtime, identity)
        self._tell_strategy(identity.job_id, strategy_from_proto(request.state_strategy))
        self._runtime = open_job(
            request,
            identity,
            self.address,
            self._config,
            self._metrics,
            self._clock,
            self._on_change,
            self._control,
            self._errors,
        )
        return self._runtime

    def _tell_strategy(self, job_id: str, strategy: StateStrategy) -> None:
        """Warn, once for each job, that the configuration here does not count."""
        own = self._config.task_manager.state_strategy
        if strategy != own and (job_id, strategy) not in self._told_strategies:
            self._told_strategies.add((job_id, strategy))
            log.warning(
                "section taskManager says %s here, and %s at the control plane of job %s: the latter counts",
                own,
                strategy,
                job_id,
            )

    def _make_way(self, runtime: JobRuntime, identity: JobIdentity) -> None:
        """Drop what an older deployment of this job runs here, or a job that has ended.

        Raises:
            FencedError: the caller's deployment is the older one.
            HandshakeError: another job runs here.
        """
        ours = runtime.identity
        if ours.job_id == identity.job_id and ours.generation > identity.generation:
            raise FencedError(
                f"task manager {self.address} runs deployment {ours.generation} of job {ours.job_id}; "
                f"{identity.generation} is older"
            )
        if ours.job_id != identity.job_id and not runtime.ended:
            raise HandshakeError(f"task manager {self.address} still runs job {ours.job_id}")
        self._runtime = None
        runtime.close(_STOP_TIMEOUT_S if runtime.ended else _MAKE_WAY_TIMEOUT_S)

    def _current(self, identity: JobIdentity) -> JobRuntime:
        runtime = self._runtime
        check_channel_job(None if runtime is None else runtime.identity, identity)
        assert runtime is not None
        return runtime

    def _find_inbox(self, identity: JobIdentity, channel: ChannelId) -> Inbox:
        return self._current(identity).find_inbox(identity, channel)

    def _find_store(self, identity: JobIdentity) -> tuple[StateBackend, EpochFence]:
        runtime = self._current(identity)
        return runtime.store, runtime.fence


def _groups_of(groups: Iterable[control_pb2.OwnedGroup]) -> dict[int, int]:
    """Owner epoch by key group."""
    return {item.key_group: item.owner_epoch for item in groups}


@contextlib.contextmanager
def _errors_to(context: grpc.ServicerContext) -> Iterator[None]:
    """Send our errors to the caller as one line each."""
    try:
        yield
    except WeirError as error:
        _refuse(context, kind_of(error), str(error))
    except StepError as error:
        _refuse(context, error.kind, str(error))
    except OSError as error:
        # Not every one passes: a directory may be in the way.
        ours = StateError(f"{error.filename or 'a file'}: {error.strerror or error}")
        ours.__cause__ = error
        _refuse(context, kind_of(ours), str(ours))
    except (ValueError, KeyError) as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"malformed request: {error}")
    except Exception as error:
        log.exception("a call of the control plane failed")
        _refuse(context, kind_of(error), f"{type(error).__name__}: {error}")


def _refuse(context: grpc.ServicerContext, kind: FailureKind, cause: str) -> None:
    context.set_trailing_metadata(refusal_metadata(kind))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, cause)
