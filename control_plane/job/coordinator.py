"""Drives the job: feeds events to the state machine and carries out its actions on task managers.

Everything here runs in one event loop, so there are no locks; what waits for a task manager is a task of its own
whose result comes back as an event.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace

from control_plane.checkpoints.checkpointer import Checkpointer
from control_plane.checkpoints.restore_log import RestoreLog
from control_plane.job.deployment import Deployment
from control_plane.job.recovery import Recovery, StartPoint, graph_and_routing
from control_plane.job.rejects import JobRejects
from control_plane.job.start import strategy_in_force
from control_plane.link.leases import Leases
from control_plane.record.takeover import Takeover
from control_plane.rescale.drain import Drainer
from control_plane.rescale.rescaler import Rescaler
from control_plane.rescale.state_locations import StateLocations
from control_plane.web import status_views
from control_plane.web.views import PlanView, RoutingView, StatusView
from weir.checkpoints.checkpoint_store import CheckpointStore
from weir.clock import Clock
from weir.config import ControlPlaneConfig, StateStrategy
from weir.errors import FailureKind, InvalidTransitionError, PlacementError
from weir.graph import physical_graph
from weir.job_loading import LoadedJob
from weir.protocol import checkpoint_model
from weir.protocol import job as machine
from weir.protocol.event_counts import NO_EVENTS
from weir.protocol.job import Assignment, JobMachine, JobState, SubtaskStatus
from weir.protocol.manifest import Manifest
from weir.protocol.membership import Member
from weir.protocol.placement import TaskManagerLoad, place
from weir.protocol.rescale_plan import RescaleRefusal
from weir.protocol.routing import RoutingTable
from weir.rpc import common_pb2, control_pb2
from weir.rpc.wire import (
    JobIdentity,
    failure_kind_from_proto,
    parse_address,
    subtask_from_proto,
)
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

_REPORTED = {
    control_pb2.SUBTASK_STATE_DEPLOYED: SubtaskStatus.DEPLOYED,
    control_pb2.SUBTASK_STATE_RUNNING: SubtaskStatus.RUNNING,
    control_pb2.SUBTASK_STATE_FINISHED: SubtaskStatus.FINISHED,
    control_pb2.SUBTASK_STATE_FAILED: SubtaskStatus.FAILED,
    control_pb2.SUBTASK_STATE_CANCELED: SubtaskStatus.CANCELED,
}


#: What runs in these states will not be restored any further.
_ENDS_RESTORES = frozenset(JobState) - {JobState.DEPLOYING, JobState.RUNNING, JobState.FINISHING}


class Coordinator:
    """One job. Services and HTTP handlers call the public methods from the event loop."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        job_module: str,
        job: LoadedJob,
        clock: Clock,
        *,
        end_task_managers: bool,
        strategy: StateStrategy,
        start: StartPoint,
        checkpoint_store: CheckpointStore | None,
        save: Callable[[bytes], None] | None = None,
    ) -> None:
        """A job that waits for task managers.

        Args:
            config: section ``controlPlane``.
            job_module: what task managers import.
            job: the loaded job.
            clock: wall and monotonic time.
            end_task_managers: tell them to end when the job has ended.
            strategy: what becomes of state in a rescale, on every task manager.
            start: what the job begins with.
            checkpoint_store: None: no checkpoints are made.
            save: keeps the record with which another control plane takes over; None: there is none.
        """
        self.job_module = job_module
        #: What becomes of state in a rescale: as every task manager was told in this deployment.
        self.strategy = strategy_in_force(start.left, strategy)
        self._configured_strategy = strategy
        self.parameters = job.parameters
        manifest = None if start.latest is None else start.latest.manifest
        since = start.left or manifest
        self.graph, self.routing_tables = graph_and_routing(physical_graph(job.graph), since)
        self.identity = JobIdentity(start.job_id, job.graph.fingerprint, start.generation)
        #: Task managers tell by it that another control plane has taken over.
        self.control_plane_id = secrets.token_hex(8)
        self.recovery = Recovery(self, config, start.left.restarts if start.left is not None else 0)
        self.machine = JobMachine(
            self.graph.subtasks(),
            restarts=self.recovery.policy.is_allowed and checkpoint_store is not None,
            commits_at_end=True,
            generation=start.generation,
        )
        self.reports: dict[SubtaskId, control_pb2.SubtaskReport] = {}
        self.rejects = JobRejects(self, config)
        #: What the checkpoint covers from which this deployment began; a job that is taken over goes on as it is.
        self.events_before = NO_EVENTS if manifest is None else manifest.events
        if start.left is not None and manifest is not None and manifest.generation == start.generation:
            self.events_before = manifest.events_before
        #: Numbers of the states of keyed steps in the stores.
        self.state_ids = start.state_ids(job.graph)
        self.waiting_for = f"{config.min_task_managers} task manager(s); none has registered"
        self.started_us: int | None = (since.job_start_us or None) if since is not None else None
        self.ended_us: int | None = None
        self.ended = asyncio.Event()
        #: Another control plane has committed a checkpoint of this job: this process must end.
        self.superseded = asyncio.Event()
        self._config = config
        self._clock = clock
        self._end_task_managers = end_task_managers
        self.leases = Leases(self, config.lease_timeout_ms)
        self._tasks: set[asyncio.Task[None]] = set()
        #: Last reports of subtasks that a rescale retired: their events count.
        self.retired_reports: list[control_pb2.SubtaskReport] = []
        self.locations = StateLocations(self._owner_address)
        self.deployment = Deployment(self, config, clock)
        self.restores = RestoreLog(start.generation)
        self.rescaler = Rescaler(self, earlier=start.left.rescales if start.left is not None else ())
        self.drainer = Drainer(self)
        self.takeover = Takeover(self, start.left, save)
        self.checkpointer = Checkpointer(
            self, config, checkpoint_store, start.latest, start.next_checkpoint_id
        )

    # --- called by services and HTTP -------------------------------------------------------------------------

    async def register(self, request: control_pb2.RegisterRequest) -> control_pb2.RegisterReply:
        """Give a task manager a lease, after its own server has answered.

        Raises:
            HandshakeError: it speaks another protocol version, or its address leads to another process.
            ConnectionLostError: nothing answers at its address.
            FencedError: its earlier lease has ended; it must come as a new incarnation.
        """
        await self.leases.register(request)
        keeps_job = self.takeover.registered(request)
        self._place_if_possible()
        if self.machine.state is JobState.RUNNING and not keeps_job:
            self.spawn(self.deployment.preload([request.address]))
        return control_pb2.RegisterReply(
            heartbeat_interval_ms=self._config.heartbeat_interval_ms,
            lease_timeout_ms=self._config.lease_timeout_ms,
            control_plane_id=self.control_plane_id,
            keep_job=keeps_job,
        )

    def heartbeat(self, request: control_pb2.HeartbeatRequest) -> control_pb2.HeartbeatReply:
        """Renew a lease and take the reports in."""
        known = self.leases.renew(request.address, request.incarnation)
        if (
            known
            and request.job_id == self.identity.job_id
            and request.generation == self.identity.generation
        ):
            for report in request.subtasks:
                self._take_report(report, request.address)
            for ownership in request.ownership:
                self.rescaler.ownership_reported(ownership)
        return control_pb2.HeartbeatReply(
            known=known,
            shutdown=self._end_task_managers and self.machine.state.is_final,
            control_plane_id=self.control_plane_id,
            forgotten=self._forgotten(request) if known and self.machine.state is JobState.RUNNING else (),
        )

    def _forgotten(self, request: control_pb2.HeartbeatRequest) -> list[common_pb2.SubtaskId]:
        """Subtasks that a rescale retired or took back: their last reports have been taken, and sinks delivered."""
        if request.job_id != self.identity.job_id or request.generation != self.identity.generation:
            return []
        known, settling = self.machine.statuses, self.checkpointer.machine
        reported = ((report.subtask, subtask_from_proto(report.subtask)) for report in request.subtasks)
        return [message for message, name in reported if name not in known and settling.place(name) is None]

    def drain(self, request: control_pb2.DrainRequest) -> control_pb2.DrainReply:
        """Empty a task manager that wants to leave, or tell how far that is; called until it is not DRAINING."""
        member = self.leases.membership.get(parse_address(request.address))
        if member is None or member.incarnation_id != request.incarnation:
            return control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_EMPTY)
        answer = self.drainer.request_or_look(member.name, begin=request.begin)
        if isinstance(answer, RescaleRefusal):
            return control_pb2.DrainReply(state=control_pb2.DRAIN_STATE_REFUSED, cause=answer.message)
        states = {
            "DRAINING": control_pb2.DRAIN_STATE_DRAINING,
            "EMPTY": control_pb2.DRAIN_STATE_EMPTY,
            "FAILED": control_pb2.DRAIN_STATE_REFUSED,
        }
        return control_pb2.DrainReply(state=states[answer.state], cause=answer.cause)

    def cancel(self) -> bool:
        """Stop the job; False if it has ended or is ending already."""
        if self.machine.state.is_final or self.machine.state in (JobState.FAILING, JobState.CANCELLING):
            return False
        self.handle(machine.CancelRequested())
        return True

    def begin_generation(self, generation: int, manifest: Manifest | None) -> None:
        """Deploy the job anew, as a checkpoint has it or from nothing; everything of earlier deployments is fenced."""
        ended = self.identity.generation
        self.identity = replace(self.identity, generation=generation)
        self.graph, self.routing_tables = graph_and_routing(self.graph, manifest)
        self.restores.begin_generation(generation)
        self.rejects.begin_generation(keeps=manifest is not None and manifest.generation == ended)
        self.reports.clear()
        self.retired_reports.clear()
        self.events_before = NO_EVENTS if manifest is None else manifest.events
        self.strategy = self._configured_strategy
        self.locations = StateLocations(self._owner_address)
        if manifest is not None:
            self.started_us = manifest.job_start_us
        self.handle(machine.RestartNow(tuple(self.graph.subtasks()), generation))
        self._place_if_possible()

    def status(self) -> StatusView:
        """What ``/status`` shows."""
        return status_views.status_view(self)

    def plan(self) -> PlanView:
        """What ``/plan`` shows."""
        return status_views.plan_view(self.graph)

    def routing(self) -> list[RoutingView]:
        """What ``/routing`` shows."""
        return [status_views.routing_view(table) for _, table in sorted(self.routing_tables.items())]

    def install(self, stage_index: int, subtask_indices: Iterable[int], table: RoutingTable | None) -> None:
        """From now on a stage has these subtasks and this routing table."""
        self.graph = self.graph.with_subtasks(stage_index, subtask_indices)
        if table is not None:
            self.routing_tables[stage_index] = table
        self.takeover.save()

    def _owner_address(self, stage_index: int, group: int) -> str:
        owner = self.owner(stage_index, group)
        return self.machine.placement.get(owner, "") if owner else ""

    def by_task_manager(self, subtasks: Iterable[SubtaskId]) -> dict[str, list[SubtaskId]]:
        """Subtasks by the task managers that run them; those of one that is gone are left out."""
        placement = self.machine.placement
        return self.reachable(
            Assignment(subtask, placement[subtask]) for subtask in subtasks if subtask in placement
        )

    def reachable(self, assignments: Iterable[Assignment]) -> dict[str, list[SubtaskId]]:
        """Subtasks by task manager, without those that have left: their loss is an event of its own."""
        grouped: dict[str, list[SubtaskId]] = {}
        for item in assignments:
            if item.task_manager in self.leases.clients:
                grouped.setdefault(item.task_manager, []).append(item.subtask)
        return grouped

    def is_reachable(self, subtask: SubtaskId) -> bool:
        """Whether the task manager of a subtask is registered."""
        return self.machine.placement.get(subtask) in self.leases.clients

    def wall_ms(self) -> int:
        """Wall clock, ms since the epoch."""
        return self._clock.now_us() // 1000

    def now_ms(self) -> int:
        """Monotonic time of leases."""
        return int(self._clock.monotonic_s() * 1000)

    async def close(self) -> None:
        """Free connections; called when the process ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.leases.close()

    # --- events to actions -----------------------------------------------------------------------------------

    def _take_report(self, report: control_pb2.SubtaskReport, task_manager: str) -> None:
        subtask = subtask_from_proto(report.subtask)
        if self.machine.placement.get(subtask) != task_manager:
            # Retired there; an index can be in use again somewhere else.
            return
        before = self.machine.statuses[subtask]
        status = _REPORTED.get(report.state)
        self.reports[subtask] = report
        self.restores.reported(subtask, task_manager, report)
        self.rejects.reported(subtask, report)
        if status is None or status is before:
            return
        started = status in (SubtaskStatus.RUNNING, SubtaskStatus.FINISHED)
        if before is SubtaskStatus.DEPLOYING and started and self.machine.state is JobState.RUNNING:
            # The start of another new subtask there was one for all: nobody saw this one ready.
            self.rescaler.subtask_changed(subtask, SubtaskStatus.DEPLOYED, "")
            self.handle(machine.SubtaskReported(subtask, SubtaskStatus.DEPLOYED))
        cause = report.cause
        if status is SubtaskStatus.FAILED:
            cause += self.rescaler.situation()
        self.rescaler.subtask_changed(subtask, status, report.cause)
        kind = failure_kind_from_proto(report.failure_kind)
        self.handle(machine.SubtaskReported(subtask, status, cause, kind=kind, step=report.failed_step))
        if subtask not in self.machine.statuses:
            self.retired_reports.append(self.reports.pop(subtask))
            self.rejects.retired(subtask)

    def handle(self, event: machine.Event) -> None:
        """Feed one event to the job's machine and carry out what follows."""
        before = self.machine.state
        try:
            actions = self.machine.handle(event)
        except InvalidTransitionError as error:
            # A report of another process cannot be trusted to fit; the machine has not changed.
            log.error("ignored: %s", error)
            return
        if self.machine.state is not before:
            self._state_changed(before)
        for action in actions:
            self._carry_out(action)

    def _state_changed(self, before: JobState) -> None:
        self.takeover.save()
        state = self.machine.state
        if state in _ENDS_RESTORES:
            self.restores.give_up()
        cause = self.machine.restart_cause if state is JobState.RESTARTING else self.machine.cause
        log.info("job %s: %s", self.identity.job_id, state.value)
        if before is JobState.RUNNING:
            at_end = state in (JobState.FINISHING, JobState.FINISHED)
            self.rescaler.job_left_running(cause, finished=at_end)
        if state is JobState.RUNNING:
            self.recovery.policy.running(self.now_ms())
            sources = frozenset(
                subtask for stage in self.graph.stages if stage.is_source for subtask in stage.subtasks()
            )
            self.checkpointer.handle(
                checkpoint_model.JobRuns(self.identity.generation, self.machine.placement, sources)
            )
        elif before in (JobState.RUNNING, JobState.FINISHING) and state not in (
            JobState.FINISHING,
            JobState.FINISHED,
        ):
            ends = state is not JobState.RESTARTING
            self.checkpointer.handle(checkpoint_model.JobStops(cause or state.value, ends))

    def _carry_out(self, action: machine.Action) -> None:
        match action:
            case machine.Deploy(assignments):
                self.spawn(self.deployment.deploy(assignments))
            case machine.Start(assignments):
                self.spawn(self.deployment.start(assignments))
            case machine.Cancel(assignments):
                self.spawn(self.deployment.cancel(assignments))
            case machine.Restart(failure):
                self.spawn(self.recovery.restart(failure))
            case machine.CommitFinal() if not self.rejects.judge(at_end=True):
                self.checkpointer.handle(checkpoint_model.FinalRequested(tuple(self.machine.statuses)))
            case machine.JobEnded(state, cause):
                self._end(state, cause)

    def spawn(self, work: Coroutine[None, None, None]) -> None:
        """Run something that waits for task managers; its failure is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("an action on task managers failed", exc_info=task.exception())

    def _place_if_possible(self) -> None:
        members = self.leases.membership.members()
        if self.machine.state is not JobState.WAITING_FOR_TASK_MANAGERS or self.takeover.is_waiting:
            return
        if len(members) < self._config.min_task_managers and not self.recovery.restarts:
            self.waiting_for = f"{self._config.min_task_managers} task manager(s); {len(members)} registered"
            log.info("waiting for %s", self.waiting_for)
            return
        try:
            placement = place(
                [TaskManagerLoad(member.name, member.quota) for member in members],
                self.graph.subtasks(),
                self.recovery.preferred,
            )
        except PlacementError as error:
            self.waiting_for = str(error)
            log.info("waiting: %s", error)
            return
        self.waiting_for = ""
        self.handle(machine.SlotsAvailable(placement))

    def lost(self, member: Member, cause: str) -> None:
        """A lease has ended, for whatever reason; called by ``leases``."""
        situation = self.rescaler.situation()
        self.rescaler.task_manager_lost(member.name, cause)
        self.handle(machine.TaskManagerLost(member.name, cause + situation))
        self.checkpointer.handle(checkpoint_model.TaskManagerLost(member.name, cause))
        self._fail_without_state(member.name, cause + situation)
        self._place_if_possible()

    def _fail_without_state(self, name: str, cause: str) -> None:
        """A task manager is gone that may have had no subtask any more, but state of subtasks elsewhere."""
        held = self.state_held_at(name)
        if self.machine.state is JobState.RUNNING and held:
            stages = ", ".join(
                f"{count} key groups of stage {index} ({self.graph.stage(index).name})"
                for index, count in sorted(Counter(index for index, _ in held).items())
            )
            self.handle(
                machine.FailRequested(
                    f"task manager {name} is lost with the state of {stages}: {cause}", FailureKind.OUTAGE
                )
            )

    def state_held_at(self, name: str) -> list[tuple[int, int]]:
        """(stage, key group) whose state is in the store of this task manager, and whose owner still needs it."""
        statuses = self.machine.statuses
        needed = []
        for stage_index, group in self.locations.held_at(name):
            owner = self.owner(stage_index, group)
            if owner is not None and owner in statuses and not statuses[owner].is_terminal:
                needed.append((stage_index, group))
        return needed

    def owner(self, stage_index: int, group: int) -> SubtaskId | None:
        """The subtask that owns a key group, by the routing table in force."""
        table = self.routing_tables.get(stage_index)
        return SubtaskId(stage_index, table.groups[group]) if table and group < len(table.groups) else None

    def _end(self, state: JobState, cause: str) -> None:
        self.ended_us = self._clock.now_us()
        rejected = self.rejects.summary()
        if cause:
            log.error("job %s %s: %s", self.identity.job_id, state.value.lower(), cause)
        elif rejected:
            log.warning("job %s %s; but %s", self.identity.job_id, self._counted(state), rejected)
        else:
            log.info("job %s %s", self.identity.job_id, self._counted(state))
        if state in (JobState.FAILED, JobState.CANCELLED):
            self.checkpointer.tell_retained()
            self.ended.set()
        else:
            self.spawn(self._clean_up())

    def _counted(self, state: JobState) -> str:
        totals = self.status().totals
        return f"{state.value.lower()}: {totals.events_in:,} events in, {totals.events_out:,} out"

    async def _clean_up(self) -> None:
        await self.checkpointer.remove()
        self.ended.set()
