"""The place of a job on this task manager: at most one runs here, and a newer deployment takes an older one's place."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from task_manager.checkpoints.standby_keeper import StandbyOrder
from task_manager.connections import check_channel_job
from task_manager.exchange.inbox import Inbox
from task_manager.job_opening import JobPlaces, open_job
from task_manager.job_runtime import JobRuntime
from task_manager.link.control_calls import ControlCalls
from task_manager.link.reports import report_to_proto
from task_manager.metrics import TaskManagerMetrics
from weir import threads
from weir.clock import Clock
from weir.config import Config, StateStrategy
from weir.errors import FencedError, HandshakeError
from weir.operators.user_errors import UserErrors
from weir.protocol.fencing import EpochFence
from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import JobIdentity, handshake_from_proto, strategy_from_proto, subtask_from_proto
from weir.state.api import StateBackend
from weir.types import ChannelId

log = logging.getLogger(__name__)

#: How long subtasks may take to stop.
_STOP_TIMEOUT_S = 10.0
#: How long the subtasks of an older deployment may take: the new one waits for them.
_MAKE_WAY_TIMEOUT_S = 1.0


class JobSlot:
    """Implements ``link.ports.LinkedServer``; any thread may call it."""

    def __init__(
        self,
        config: Config,
        metrics: TaskManagerMetrics,
        clock: Clock,
        on_change: Callable[[], None],
        control: ControlCalls,
        places: JobPlaces | None = None,
    ) -> None:
        """``on_change`` is called when there is something to report; the address is set by the server's start."""
        self.incarnation = secrets.token_hex(8)
        #: Who has been told it, when this task manager registered, may deploy here.
        self.orders_secret = secrets.token_bytes(32)
        self.address = ""
        self._config = config
        self._metrics = metrics
        self._errors = UserErrors()
        self._clock = clock
        self._on_change = on_change
        self._control = control
        self._places = places or JobPlaces()
        self._runtime: JobRuntime | None = None
        #: Jobs, and their strategies, of which the log says that they are not as configured here.
        self._told_strategies: set[tuple[str, StateStrategy]] = set()
        self._lock = threads.lock()

    def renew_incarnation(self) -> None:
        """The lease is lost: what runs here was given up by the control plane; begin anew under another name."""
        self.drop_job()
        self.incarnation = secrets.token_hex(8)

    def drop_job(self, runtime: object = None) -> None:
        """Stop what runs here and release its store; only if it is ``runtime``, where that is given."""
        # With the lock, so that a deployment waits until the store is free.
        with self._lock:
            if runtime is None or self._runtime is runtime:
                dropped, self._runtime = self._runtime, None
                if dropped is not None:
                    dropped.close(_STOP_TIMEOUT_S)

    @property
    def runtime(self) -> JobRuntime | None:
        """The deployed job, if any."""
        return self._runtime

    def ownership_reports(self) -> list[control_pb2.OwnershipReport]:
        """What owners here have of the latest rescale; sent with heartbeats."""
        runtime = self._runtime
        return [] if runtime is None else runtime.rescaling.reports()

    def reports(self) -> list[control_pb2.SubtaskReport]:
        """Return a report for each subtask; heartbeats carry them."""
        runtime = self._runtime
        return [] if runtime is None else [report_to_proto(*item) for item in runtime.progress().items()]

    def state_files(self) -> control_pb2.StateFiles | None:
        """What is here of checkpoints' files, and what was fetched; sent with heartbeats. None: no job is here."""
        runtime = self._runtime
        return None if runtime is None else runtime.state_files()

    def keep_standby(self, job_id: str, generation: int, order: control_pb2.StandbyOrder) -> None:
        """Keep state of other task managers of a deployment; comes with each heartbeat."""
        runtime = self._deployment(job_id, generation)
        if runtime is not None:
            runtime.standby.keep(
                StandbyOrder(
                    order.checkpoint_id,
                    order.manifest_path,
                    tuple(map(subtask_from_proto, order.subtasks)),
                    order.disk_hold_bytes,
                )
            )

    def _deployment(self, job_id: str, generation: int) -> JobRuntime | None:
        runtime = self._runtime
        if runtime is None or runtime.identity.job_id != job_id or runtime.identity.generation != generation:
            return None
        return runtime

    def align(self, job_id: str, generation: int, lowest_ms: Mapping[str, int]) -> None:
        """Tell sources of a deployment of the lowest watermark of each group of sources that wait for each other."""
        runtime = self._deployment(job_id, generation)
        if runtime is not None:
            runtime.align(lowest_ms)

    def hold_back(self, reason: str) -> None:
        """Let sources read nothing for this reason; empty: they read on. Called with each heartbeat while it is so."""
        runtime = self._runtime
        if runtime is not None:
            runtime.hold_back(reason)

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

    @contextmanager
    def deploying(self) -> Iterator[None]:
        """Deployments and the start of a job come one at a time."""
        with self._lock:
            yield

    def runtime_for(self, request: control_pb2.DeployRequest) -> JobRuntime:
        """Returns the runtime of a deployment, and opens it if it is new; within :meth:`deploying`.

        Raises:
            WeirError: see ``open_job``; or a newer deployment, or another job, runs here.
        """
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
            self._places,
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

    def current(self, identity: JobIdentity) -> JobRuntime:
        """Returns the runtime of a job that is deployed here.

        Raises:
            HandshakeError: another one is, or none.
        """
        runtime = self._runtime
        check_channel_job(None if runtime is None else runtime.identity, identity)
        assert runtime is not None
        return runtime

    def find_inbox(self, identity: JobIdentity, channel: ChannelId) -> Inbox:
        """Returns the inbox in which a channel of a job ends."""
        return self.current(identity).find_inbox(identity, channel)

    def find_store(self, identity: JobIdentity) -> tuple[StateBackend, EpochFence]:
        """Returns the store of a job and what fences old owners off."""
        runtime = self.current(identity)
        return runtime.store, runtime.fence
