"""The link to the control plane: register, renew the lease, report subtasks; waits for a control plane that is away."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    wait_fixed,
)

from task_manager.link.control_planes import ControlPlanes
from task_manager.link.machine_use import nothing_known
from task_manager.link.ports import LinkedJob, LinkedServer
from weir import threads
from weir.clock import Clock
from weir.config import TaskManagerConfig
from weir.errors import ConnectionLostError, HandshakeError, WeirError
from weir.protocol.watermarks.watermark_drift import ReportPace
from weir.rpc import control_pb2
from weir.rpc.wire import (
    PROTOCOL_VERSION,
)
from weir.types import MachineUse

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_REGISTER_TIMEOUT_S = 10.0
#: A heartbeat that waits for a control plane that is being replaced must not hold up registering at the new one.
_HEARTBEAT_TIMEOUT_S = 2.0
#: Where nothing has happened since the last report, the next one may take this part of the lease.
_IDLE_LEASE_SHARE = 1 / 3
#: Where a job runs and nothing changes but counters, a report costs both sides about 2 ms of CPU: one comes after so
#: many intervals. After one more where few subtasks run here: what reports cost counts there beside what rows do.
_STEADY_INTERVALS, _STEADY_INTERVALS_OF_FEW, _FEW_SUBTASKS = 2, 3, 4
#: At these moments after whole multiples of the interval: waves of rows (``exchange/gathering.py``) have passed then.
_STEADY_PHASE_US = 150_000
#: But this often at least: a control plane that makes fewer checkpoints meanwhile waits for the first rows.
_IDLE_S_MAX = 0.7
#: While waiting, say so this often.
_REMIND_S = 5.0


class ControlLink:
    """Runs in the main thread of the process; :meth:`notify` and :meth:`stop` come from others."""

    def __init__(
        self,
        config: TaskManagerConfig,
        control_planes: ControlPlanes,
        clock: Clock,
        sleep: Callable[[float], None] = threads.sleep,
        machine_use: Callable[[], MachineUse] = nothing_known,
    ) -> None:
        """Call nothing yet; ``control_planes`` is closed by :meth:`leave`; ``machine_use`` must not raise."""
        self._machine_use = machine_use
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._control_planes = control_planes
        self._changed = threads.event()
        self._stopped = False
        #: Monotonic second until which to wait for being emptied; None: nobody asked this process to leave.
        self._drain_until_s: float | None = None
        self._drain_asked = False
        self._registered = False
        self._control_plane_id = ""
        #: How long after a report in which nothing was new the next one comes, and what was in the last one.
        self._idle_interval_s = 0.0
        #: The same after one that told of counters only.
        self._steady_interval_s = 0.0
        self._steady_interval_of_few_s = 0.0
        self._is_steady, self._has_few = False, False
        self._reported: tuple[object, ...] = ()
        self._owned: list[control_pb2.OwnershipReport] = []
        self._is_idle = False
        #: When to report again while sources wait for each other, and how far they are then; empty: none waits.
        self._pace = ReportPace()
        self._waited_for_ms: dict[str, int] = {}
        #: Why sources read nothing, as the control plane said last.
        self._held_back = ""

    def notify(self) -> None:
        """Report at once instead of at the next heartbeat; called by subtasks."""
        self._changed.set()

    def stop(self) -> None:
        """Let :meth:`run` return; called by signal handlers."""
        self._stopped = True
        self._changed.set()

    @property
    def is_stopped(self) -> bool:
        """Return whether this process was told to stop at once."""
        return self._stopped

    def drain(self) -> None:
        """Let :meth:`run` return once others have taken over what runs here; the second call is :meth:`stop`."""
        if self._drain_until_s is not None or not self._registered or not self._config.drain_timeout_s:
            self.stop()
            return
        self._drain_until_s = self._clock.monotonic_s() + self._config.drain_timeout_s
        self._changed.set()

    def run(self, server: LinkedServer) -> None:
        """Serve until told to stop, by :meth:`stop` or by the control plane.

        Raises:
            ConnectionLostError: no control plane answered for ``connect_timeout_s``, or with a job
                ``reconnect_timeout_s``.
            HandshakeError: it refused this task manager.
        """
        interval_s = self._register(server)
        silent_since_s: float | None = None
        while not self._stopped:
            is_watched = silent_since_s is not None or self._drain_until_s is not None
            self._changed.wait(interval_s if is_watched else self._next_report_s(interval_s))
            self._changed.clear()
            if self._stopped:
                return
            try:
                reply = self._heartbeat(server)
            except grpc.RpcError as error:
                if self._drain_until_s is not None and not self._is_late(error, self._drain_until_s):
                    log.info(
                        "the control plane at %s does not answer; stopping", self._control_planes.address
                    )
                    return
                patience_s = self._patience_s(server)
                if silent_since_s is None:
                    silent_since_s = self._clock.monotonic_s()
                    log.warning(
                        "the control plane at %s does not answer; what runs here goes on (for at most %g s)",
                        self._control_planes.address,
                        patience_s,
                    )
                if self._clock.monotonic_s() - silent_since_s > patience_s:
                    raise self._gone(patience_s) from None
                self._control_planes.try_next()
                continue
            if silent_since_s is not None:
                log.info("the control plane at %s answers", self._control_planes.address)
            silent_since_s = None
            if reply.shutdown:
                log.info("the control plane ended the job; stopping")
                return
            if not reply.known and reply.control_plane_id != self._control_plane_id:
                log.info("another control plane has taken over; registering there, the job goes on")
                interval_s = self._register(server)
                continue
            if not reply.known:
                log.warning(
                    "the control plane gave up this task manager's lease; stopping its job, registering again"
                )
                server.renew_incarnation()
                interval_s = self._register(server)
            server.forget(reply.forgotten)
            if self._drain_until_s is not None and self._may_leave(server, self._drain_until_s):
                return

    def _next_report_s(self, interval_s: float) -> float:
        """How long to wait for the next report of a job with which nothing is wrong."""
        if self._waited_for_ms:
            return self._pace.interval_s(self._waited_for_ms, interval_s)
        if self._is_idle:
            return max(interval_s, self._idle_interval_s)
        steady_s = self._steady_interval_of_few_s if self._has_few else self._steady_interval_s
        if not self._is_steady or steady_s <= interval_s:
            return interval_s
        interval_us = int(steady_s * 1e6)
        left_us = interval_us - (self._clock.now_us() - _STEADY_PHASE_US) % interval_us
        return (left_us if left_us >= interval_us / 2 else left_us + interval_us) / 1e6

    def _may_leave(self, server: LinkedServer, until_s: float) -> bool:
        """Ask to be emptied, or how far that is; True also if it cannot be or takes too long."""
        request = control_pb2.DrainRequest(
            address=server.address, incarnation=server.incarnation, begin=not self._drain_asked
        )
        try:
            reply = self._control_planes.stub.Drain(request, timeout=_HEARTBEAT_TIMEOUT_S)
        except grpc.RpcError as error:
            if self._is_late(error, until_s):
                return False
            log.warning("the control plane does not empty this task manager: %s; stopping", error.details())
            return True
        if not self._drain_asked:
            log.info("asked to stop: others take over what runs here; a second signal stops at once")
        self._drain_asked = True
        if reply.state == control_pb2.DRAIN_STATE_REFUSED:
            log.warning("others cannot take over what runs here: %s; stopping", reply.cause)
            return True
        if reply.state == control_pb2.DRAIN_STATE_EMPTY:
            log.info("others have taken over what ran here; stopping")
            return True
        if self._clock.monotonic_s() > until_s:
            log.warning(
                "not empty after taskManager.drain_timeout_s (%g s); stopping", self._config.drain_timeout_s
            )
            return True
        return False

    def leave(self, server: LinkedServer) -> None:
        """Send the last reports and deregister; a control plane that is gone is no error."""
        try:
            self._heartbeat(server)
            self._control_planes.stub.Deregister(
                control_pb2.DeregisterRequest(address=server.address, incarnation=server.incarnation),
                timeout=_HEARTBEAT_TIMEOUT_S,
            )
        except grpc.RpcError:
            log.debug("the control plane is gone already")
        self._control_planes.close()

    def _heartbeat(self, server: LinkedServer) -> control_pb2.HeartbeatReply:
        runtime, use = server.runtime, self._machine_use()
        request = control_pb2.HeartbeatRequest(
            address=server.address,
            incarnation=server.incarnation,
            job_id=runtime.identity.job_id if runtime else "",
            generation=runtime.identity.generation if runtime else 0,
            subtasks=server.reports(),
            ownership=server.ownership_reports(),
            waits_for=runtime.waits_for if runtime else "",
            resident_bytes=use.resident_bytes,
            disk_free_bytes=use.disk_free_bytes,
            disk_bytes=use.disk_bytes,
            processor_us=use.processor_us,
            processors=use.processors,
            memory_bytes=use.memory_bytes,
            state_files=server.state_files(),
        )
        self._note_calm(request)
        reply = self._control_planes.heartbeat(request, _HEARTBEAT_TIMEOUT_S)
        self._waited_for_ms = dict(reply.lowest_watermarks_ms) if reply.sources_wait else {}
        if reply.lowest_watermarks_ms:
            # Sources learn of each other by reports, also of one that has no rows for a moment.
            self._is_steady = self._is_idle = False
            server.align(request.job_id, request.generation, reply.lowest_watermarks_ms)
        if reply.held_back or self._held_back:
            # Also subtasks that are new since.
            self._held_back = reply.held_back
            server.hold_back(reply.held_back)
        if reply.HasField("standby"):
            server.keep_standby(request.job_id, request.generation, reply.standby)
        return reply

    def _note_calm(self, request: control_pb2.HeartbeatRequest) -> None:
        """Note whether the job runs and nothing happens but rows, and whether not even rows came or wait."""
        reports = request.subtasks
        reported = tuple((it.records_in, it.records_out, it.records_rejected) for it in reports)
        is_running = all(
            it.state == control_pb2.SUBTASK_STATE_RUNNING and not (it.restoring_groups or it.is_held_back)
            for it in reports
        )
        # What owners have of a rescale is told for good.
        owned = list(request.ownership)
        self._is_steady = bool(reports) and is_running and owned == self._owned
        self._owned = owned
        self._has_few = len(reports) <= _FEW_SUBTASKS
        is_empty = not any(it.queue_depth or it.channels for it in reports)
        self._is_idle = self._is_steady and is_empty and reported == self._reported
        self._reported = reported

    def _patience_s(self, server: LinkedServer) -> float:
        """How long to wait for a control plane that does not answer."""
        runtime = server.runtime
        has_job = runtime is not None and not runtime.is_over
        return self._config.reconnect_timeout_s if has_job else self._config.connect_timeout_s

    def _register(self, server: LinkedServer) -> float:
        """Register, waiting for the control plane; returns the heartbeat interval in seconds."""
        began_s = self._clock.monotonic_s()
        retrying = Retrying(
            retry=retry_if_exception_type(_NotYetError),
            stop=lambda state: (
                self._stopped or self._clock.monotonic_s() - began_s >= self._patience_s(server)
            ),
            wait=wait_fixed(_RETRY_S),
            sleep=self._sleep,
            before_sleep=_Reminder(self._control_planes.addresses, self._patience_s(server)),
            reraise=True,
        )
        try:
            runtime, reply = retrying(self._try_register, server)
        except _NotYetError as error:
            if self._stopped:
                return _RETRY_S
            raise self._gone(self._patience_s(server), str(error)) from None
        self._control_planes.registered(reply)
        self._registered = True
        self._control_plane_id = reply.control_plane_id
        lease_share_s = reply.lease_timeout_ms / 1e3 * _IDLE_LEASE_SHARE
        self._idle_interval_s = min(lease_share_s, _IDLE_S_MAX)
        heartbeat_s = reply.heartbeat_interval_ms / 1e3
        self._steady_interval_s = min(lease_share_s, heartbeat_s * _STEADY_INTERVALS)
        self._steady_interval_of_few_s = min(lease_share_s, heartbeat_s * _STEADY_INTERVALS_OF_FEW)
        if runtime is not None and reply.keep_job:
            # The parts of subtasks that have ended were told to another control plane.
            runtime.deliver_last_parts_again()
        elif runtime is not None:
            log.info("the control plane does not want job %s any more; stopping it", runtime.identity.job_id)
            server.drop_job(runtime)
        log.info("registered at the control plane %s as %s", self._control_planes.address, server.address)
        return float(reply.heartbeat_interval_ms) / 1e3

    def _try_register(self, server: LinkedServer) -> tuple[LinkedJob | None, control_pb2.RegisterReply]:
        """Register once; returns also the job that runs here, for which the reply is."""
        runtime = server.runtime
        request = control_pb2.RegisterRequest(
            protocol_version=PROTOCOL_VERSION,
            address=server.address,
            incarnation=server.incarnation,
            operator_quota=self._config.operator_quota,
            job_id=runtime.identity.job_id if runtime else "",
            generation=runtime.identity.generation if runtime else 0,
            orders_secret=server.orders_secret,
        )
        try:
            stub = self._control_planes.stub
            reply: control_pb2.RegisterReply = stub.Register(request, timeout=_REGISTER_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._control_planes.try_next()
                raise _NotYetError(error.details()) from error
            if error.code() is grpc.StatusCode.ABORTED:
                log.warning("%s", error.details())
                server.renew_incarnation()
                raise _NotYetError(error.details()) from error
            raise HandshakeError(
                f"the control plane at {self._control_planes.address} refused this task manager: {error.details()}"
            ) from error
        return runtime, reply

    def _is_late(self, error: grpc.RpcError, until_s: float) -> bool:
        """Return whether a control plane is there and only slow, and may be waited for until a monotonic second."""
        return error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and self._clock.monotonic_s() < until_s

    def _gone(self, patience_s: float, last_answer: str = "") -> WeirError:
        return ConnectionLostError(
            f"no control plane answered at {self._control_planes.addresses} for {patience_s:g} s; start one with "
            "'python -m control_plane --job MODULE', or name another with --control-plane HOST:PORT"
            + (f" ({last_answer})" if last_answer else "")
        )


class _NotYetError(Exception):
    """The control plane is not up yet."""


class _Reminder:
    """Says that this process waits: at first, and then every few seconds."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._next_s = 0.0

    def __call__(self, state: RetryCallState) -> None:
        elapsed_s = state.seconds_since_start or 0.0
        if elapsed_s >= self._next_s:
            self._next_s = elapsed_s + _REMIND_S
            log.info(
                "waiting for the control plane at %s (%.0f of %g s)",
                self._address,
                elapsed_s,
                self._timeout_s,
            )
