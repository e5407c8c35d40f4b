"""What task managers ask and report: they register, renew their leases, tell of their subtasks, and leave."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from control_plane.checkpoints.checkpointer import Checkpointer
from control_plane.checkpoints.restore_log import RestoreLog
from control_plane.job.deployment import Deployment
from control_plane.job.rejects import JobRejects
from control_plane.job.running_job import RunningJob
from control_plane.job.standbys import Standbys
from control_plane.job.takeover import Takeover
from control_plane.link.leases import Leases
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background, TellJob
from control_plane.rescale.drain import Drainer
from control_plane.rescale.rescaler import Rescaler
from weir.config import ControlPlaneConfig
from weir.plan.graph import PhysicalGraph
from weir.protocol.job import job_machine as machine
from weir.protocol.job.input_plans import differing_plans
from weir.protocol.job.job_machine import JobState, SubtaskStatus
from weir.protocol.rescale.rescale_plan import RescaleRefusal
from weir.protocol.watermarks.watermark_drift import AlignedSource, lowest_watermarks_ms
from weir.rows.records import WATERMARK_MIN_MS
from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import failure_kind_from_proto, parse_address, subtask_from_proto
from weir.types import MachineUse, SubtaskId

log = logging.getLogger(__name__)

_REPORTED = {
    control_pb2.SUBTASK_STATE_DEPLOYED: SubtaskStatus.DEPLOYED,
    control_pb2.SUBTASK_STATE_RUNNING: SubtaskStatus.RUNNING,
    control_pb2.SUBTASK_STATE_FINISHED: SubtaskStatus.FINISHED,
    control_pb2.SUBTASK_STATE_FAILED: SubtaskStatus.FAILED,
    control_pb2.SUBTASK_STATE_CANCELED: SubtaskStatus.CANCELED,
}


_STARTED_STATES = (JobState.DEPLOYING, JobState.RUNNING, JobState.FINISHING)


@dataclass(frozen=True, slots=True)
class CallsPlace:
    """Where this process takes calls that come often (``weir.rpc.frequent_calls``); port 0: nowhere."""

    port: int
    #: What connections begin with.
    greeting: bytes


class Reception:
    """The reception of what task managers send; ``service`` calls it in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        background: Background,
        task_managers: TaskManagers,
        *,
        leases: Leases,
        takeover: Takeover,
        deployment: Deployment,
        checkpointer: Checkpointer,
        rescaler: Rescaler,
        drainer: Drainer,
        rejects: JobRejects,
        restores: RestoreLog,
        standbys: Standbys,
        tell_job: TellJob,
        place_if_possible: Callable[[], None],
        end_task_managers: Callable[[], bool],
    ) -> None:
        """``end_task_managers``: whether to tell them to end now."""
        self._job = job
        self._config = config
        self._background = background
        self._task_managers = task_managers
        self._leases = leases
        self._takeover = takeover
        self._deployment = deployment
        self._checkpointer = checkpointer
        self._rescaler = rescaler
        self._drainer = drainer
        self._rejects = rejects
        self._restores = restores
        self._standbys = standbys
        self._tell_job = tell_job
        self._place_if_possible = place_if_possible
        self._end_task_managers = end_task_managers
        #: Task managers tell by it that another control plane has taken over.
        self.control_plane_id = secrets.token_hex(8)
        #: Where calls that come often are taken, and the port of gRPC; the process sets both when it listens.
        self.calls_place = CallsPlace(0, b"")
        self.grpc_port = 0

    async def register(self, request: control_pb2.RegisterRequest) -> control_pb2.RegisterReply:
        """Give a task manager a lease, after its own server has answered.

        Raises:
            HandshakeError: it speaks another protocol version, or its address leads to another process.
            ConnectionLostError: nothing answers at its address.
            FencedError: its earlier lease has ended; it must come as a new incarnation.
        """
        await self._leases.register(request)
        keeps_job = self._takeover.registered(request)
        self._place_if_possible()
        if self._job.state is JobState.RUNNING and not keeps_job:
            self._background.spawn(self._deployment.preload([request.address]))
        return control_pb2.RegisterReply(
            heartbeat_interval_ms=self._config.heartbeat_interval_ms,
            lease_timeout_ms=self._config.lease_timeout_ms,
            control_plane_id=self.control_plane_id,
            keep_job=keeps_job,
            frequent_calls_port=self.calls_place.port,
            frequent_calls_greeting=self.calls_place.greeting,
            grpc_port=self.grpc_port,
        )

    def heartbeat(self, request: control_pb2.HeartbeatRequest) -> control_pb2.HeartbeatReply:
        """Renew a lease and take the reports in."""
        known = self._leases.renew(request.address, request.incarnation)
        lowest_ms: dict[str, int] = {}
        sources_wait = False
        standby: control_pb2.StandbyOrder | None = None
        if known and request.waits_for:
            self._task_managers.waits_for[request.address] = request.waits_for
        else:
            self._task_managers.waits_for.pop(request.address, None)
        if known:
            self._task_managers.use[request.address] = MachineUse(
                request.resident_bytes,
                request.disk_free_bytes,
                request.disk_bytes,
                request.processor_us,
                request.processors,
                request.memory_bytes,
            )
            self._look_at_disk(request)
        if known and self._is_of_deployment(request):
            for report in request.subtasks:
                self._take_report(report, request.address)
            for ownership in request.ownership:
                self._rescaler.ownership_reported(ownership)
            self._task_managers.state_files[request.address] = request.state_files
            standby = self._standbys.order_for(request.address)
            lowest_ms = lowest_watermarks_ms(aligned_sources(self._job.graph, self._job.reports))
            # A disk that is almost full holds sources back without any alignment.
            sources_wait = bool(lowest_ms) and any(it.is_held_back for it in self._job.reports.values())
        return control_pb2.HeartbeatReply(
            known=known,
            shutdown=self._end_task_managers(),
            control_plane_id=self.control_plane_id,
            forgotten=self._forgotten(request) if known and self._job.state is JobState.RUNNING else (),
            lowest_watermarks_ms=lowest_ms,
            held_back=self._task_managers.disks.reason if known else "",
            standby=standby,
            sources_wait=sources_wait,
        )

    def _look_at_disk(self, request: control_pb2.HeartbeatRequest) -> None:
        note = self._task_managers.disks.take(request.address, request.disk_free_bytes, request.disk_bytes)
        if note is not None:
            log.log(logging.WARNING if note.is_bad else logging.INFO, "%s", note.message)

    def drain(self, request: control_pb2.DrainRequest) -> control_pb2.DrainReply:
        """Empty a task manager that wants to leave, or tell how far that is; called until it is not DRAINING."""
        member = self._task_managers.membership.get(parse_address(request.address))
        if member is None or member.incarnation_id != request.incarnation:
            return control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_EMPTY)
        answer = self._drainer.request_or_look(member.name, begin=request.begin)
        if isinstance(answer, RescaleRefusal):
            return control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_REFUSED, cause=answer.message)
        states = {
            "DRAINING": control_pb2.DRAIN_STATE_DRAINING,
            "EMPTY": control_pb2.DRAIN_STATE_EMPTY,
            "FAILED": control_pb2.DRAIN_STATE_REFUSED,
        }
        return control_pb2.DrainReply(state=states[answer.state], cause=answer.cause)

    def _is_of_deployment(self, request: control_pb2.HeartbeatRequest) -> bool:
        identity = self._job.identity
        return request.job_id == identity.job_id and request.generation == identity.generation

    def _forgotten(self, request: control_pb2.HeartbeatRequest) -> list[common_pb2.SubtaskId]:
        """Subtasks that a rescale retired or took back: their last reports have been taken, and sinks delivered."""
        if not self._is_of_deployment(request):
            return []
        known, settling = self._job.machine.statuses, self._checkpointer.machine
        reported = ((report.subtask, subtask_from_proto(report.subtask)) for report in request.subtasks)
        return [message for message, name in reported if name not in known and settling.place(name) is None]

    def _take_report(self, report: control_pb2.SubtaskReport, task_manager: str) -> None:
        job = self._job
        subtask = subtask_from_proto(report.subtask)
        if job.machine.placement.get(subtask) != task_manager:
            # Retired there; an index can be in use again somewhere else.
            return
        before = job.machine.statuses[subtask]
        if _counts(report) != _counts(job.reports.get(subtask)):
            self._checkpointer.rows_came()
        status = _REPORTED.get(report.state)
        known_plan = job.reports[subtask].input_plan if subtask in job.reports else 0
        job.reports[subtask] = report
        self._restores.reported(subtask, task_manager, report)
        self._rejects.reported(subtask, report)
        if report.input_plan != known_plan or status is not before:
            self._check_input(subtask)
        if status is None or status is before:
            return
        started = status in (SubtaskStatus.RUNNING, SubtaskStatus.FINISHED)
        if before is SubtaskStatus.DEPLOYING and started and job.state is JobState.RUNNING:
            # The start of another new subtask there was one for all: nobody saw this one ready.
            self._rescaler.subtask_changed(subtask, SubtaskStatus.DEPLOYED, "")
            self._tell_job(machine.SubtaskReported(subtask, SubtaskStatus.DEPLOYED))
        cause = report.cause
        if status is SubtaskStatus.FAILED:
            cause += self._rescaler.situation()
        self._rescaler.subtask_changed(subtask, status, report.cause)
        kind = failure_kind_from_proto(report.failure_kind)
        self._tell_job(machine.SubtaskReported(subtask, status, cause, kind=kind, step=report.failed_step))
        if subtask not in job.machine.statuses:
            job.retired_reports.append(job.reports.pop(subtask))
            self._rejects.retired(subtask)

    def _check_input(self, subtask: SubtaskId) -> None:
        """Let the job begin anew if the subtasks of a source do not divide the same input."""
        job, stage_index = self._job, subtask.stage_index
        if not job.reports[subtask].input_plan or job.state not in _STARTED_STATES:
            return
        plans = {
            name.subtask_index: report.input_plan
            for name, report in job.reports.items()
            if name.stage_index == stage_index
        }
        if wrong := differing_plans(job.graph.stage(stage_index).nodes[0].name, plans):
            self._tell_job(machine.FailRequested(wrong))


def aligned_sources(
    graph: PhysicalGraph, reports: Mapping[SubtaskId, control_pb2.SubtaskReport]
) -> Iterator[AlignedSource]:
    """Subtasks of sources that wait for each other, as they were last reported; without those that have ended."""
    for stage in graph.stages:
        alignment = stage.nodes[0].watermark.alignment
        if alignment is None or not stage.is_source:
            continue
        for subtask in stage.subtasks():
            report = reports.get(subtask)
            if report is None:
                yield AlignedSource(alignment.group, WATERMARK_MIN_MS, False)
            elif report.state != control_pb2.SUBTASK_STATE_FINISHED:
                yield AlignedSource(alignment.group, report.read_watermark_ms, report.is_idle)


def _counts(report: control_pb2.SubtaskReport | None) -> tuple[int, int, int]:
    if report is None:
        return 0, 0, 0
    return report.records_in, report.records_out, report.records_rejected
