"""Drives rescales: feeds reports to the rescale machine and carries out its actions on task managers.

docs/design/0001 has the protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background, Record, TellCheckpoints, TellJob
from control_plane.rescale.rescale_calls import RescaleCalls
from control_plane.rescale.rescale_planner import RescalePlanner
from control_plane.rescale.source_moves import SourceMoves
from weir.clock import Clock, wall_ms
from weir.config import StateMove
from weir.errors import InvalidTransitionError
from weir.plan.graph import Stage
from weir.protocol.checkpoints import checkpoint_model
from weir.protocol.job import job_machine
from weir.protocol.job.job_machine import JobState, SubtaskStatus
from weir.protocol.rescale import rescale_model as model
from weir.protocol.rescale.rescale_coordinator import RescaleMachine
from weir.protocol.rescale.rescale_log import AnyRescale, RescaleLog
from weir.protocol.rescale.rescale_plan import RefusalKind, RescaleRefusal
from weir.rpc import control_pb2
from weir.rpc.wire import JobIdentity, subtask_from_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: Who holds checkpoints back.
_HOLDER = "rescale"
#: Rescales whose deployments are remembered; no order to a task manager is on its way for longer.
_IDENTITIES_MAX = 1000
_STARTED = (SubtaskStatus.DEPLOYED, SubtaskStatus.RUNNING)
_ENDED_BADLY = (SubtaskStatus.FAILED, SubtaskStatus.LOST)


class Rescaler:
    """The rescaler of a job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        rescales: RescaleLog,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        *,
        tell_job: TellJob,
        tell_checkpoints: TellCheckpoints,
        request_checkpoint: Callable[
            [], checkpoint_model.CheckpointRecord | checkpoint_model.CheckpointRefusal
        ],
        record: Record,
        hindrance: Callable[[], RescaleRefusal | None],
        avoided: Callable[[], Collection[str]],
        relinks_to: Callable[[], int | None] = int,
    ) -> None:
        """A job without a rescale.

        Args:
            job: the job.
            rescales: all rescales; this object adds to them.
            clock: wall clock.
            background: calls task managers.
            task_managers: that are there.
            tell_job: takes in which subtasks come and go, and failures.
            tell_checkpoints: holds checkpoints back while a rescale switches.
            request_checkpoint: asks for one after which the job is deployed anew, by which sources move.
            record: of the job; it must tell of a rescale before task managers hear of it.
            hindrance: returns why no rescale can start now, apart from another rescale.
            avoided: returns the task managers that take no new subtask.
            relinks_to: returns the checkpoint whose images new owners may open; 0: none; None: it is about to change.
        """
        #: By generation: the situation of the rescale that the job's failure ended.
        self._ended_by_failure: dict[int, str] = {}
        self.log = rescales
        self._job = job
        self._clock = clock
        self._background = background
        self._planner = RescalePlanner(job, rescales, task_managers)
        self._tell_job = tell_job
        self._tell_checkpoints = tell_checkpoints
        self._record = record
        self._hindrance = hindrance
        self._avoided = avoided
        #: Deployments that rescales, by id, belong to: what is told late must not reach the next one.
        self._identities: dict[int, JobIdentity] = {}
        self._calls = RescaleCalls(
            job, background, task_managers, record, self._identities, self._handle, self._fail_job, relinks_to
        )
        self._source_moves = SourceMoves(job, rescales, clock, background, record, request_checkpoint)
        self._owned: dict[SubtaskId, set[int]] = {}
        self._complete: dict[SubtaskId, set[int]] = {}
        self._bytes: dict[SubtaskId, int] = {}
        self._sent: dict[SubtaskId, tuple[int, int]] = {}

    # --- requests --------------------------------------------------------------------------------------------

    def request(
        self,
        stage_index: int,
        target: int | Collection[int] | None,
        avoid: Collection[str] = (),
    ) -> AnyRescale | RescaleRefusal:
        """Start a rescale, or say why not. ``avoid`` names task managers that take no new subtask."""
        job = self._job
        if job.state is not JobState.RUNNING:
            return RescaleRefusal(
                RefusalKind.BUSY, f"the job is {job.state.value}; only a running job can be scaled"
            )
        busy = self.log.busy() or self._hindrance() or self._planner.restoring(stage_index)
        if busy is not None:
            return busy
        plan = self._planner.plan(stage_index, target, {*avoid, *self._avoided()})
        if isinstance(plan, RescaleRefusal):
            return plan
        stage = job.graph.stage(stage_index)
        if stage.is_source:
            return self._source_moves.begin(plan, stage.name)
        migrates = job.strategy.move is StateMove.FETCHED
        started = self.log.add(plan, wall_ms(self._clock), migrates=migrates, name_of=self._job.graph.name_of)
        if isinstance(started, RescaleRefusal):
            return started
        rescale, actions = started
        self._identities[rescale.rescale_id] = job.identity
        self._identities.pop(rescale.rescale_id - _IDENTITIES_MAX, None)
        self._owned, self._complete, self._bytes, self._sent = {}, {}, {}, {}
        log.info(
            "rescale %d of stage %d: %s -> %s",
            rescale.rescale_id,
            stage_index,
            list(plan.before),
            list(plan.after),
        )
        # From now on the job cannot be taken over as it is; new subtasks are deployed when that is on record.
        self._record.save()
        # No checkpoint cuts through the switch: one in flight is given up, the next begins after it.
        self._tell_checkpoints(checkpoint_model.Hold(_HOLDER))
        self._carry_out_all(rescale, actions)
        return rescale

    def redeploy(self, stage_index: int, avoid: Collection[str]) -> AnyRescale | RescaleRefusal:
        """Deploy the job anew for the sake of a source, which has its subtasks elsewhere then, or say why not.

        Args:
            stage_index: of the source.
            avoid: task managers that take no subtask.
        """
        job = self._job
        busy = self.log.busy() or self._hindrance()
        if job.state is not JobState.RUNNING or busy is not None:
            return busy or RescaleRefusal(RefusalKind.BUSY, f"the job is {job.state.value}")
        plan = self._planner.redeployment(stage_index, avoid)
        if isinstance(plan, RescaleRefusal):
            return plan
        return self._source_moves.begin(plan, job.graph.stage(stage_index).name)

    def why_fixed(self, stage: Stage) -> str:
        """Why a stage can have no other number of subtasks, whatever is free; empty: it can."""
        return self._planner.why_fixed(stage)

    @property
    def avoided(self) -> Collection[str]:
        """Task managers that take no new subtask."""
        return self._avoided()

    def next_index(self, stage: Stage) -> int:
        """Return one more than the highest subtask index that the stage ever had."""
        return self._planner.next_index(stage)

    @property
    def _current(self) -> RescaleMachine | None:
        """The rescale that runs; not of a source, which has no parties."""
        current = self.log.current
        return current if isinstance(current, RescaleMachine) else None

    # --- reports ---------------------------------------------------------------------------------------------

    def subtask_changed(self, subtask: SubtaskId, status: SubtaskStatus, cause: str) -> None:
        """A subtask's status changed; called before the job's own machine hears of it."""
        current = self._current
        if current is None:
            return
        plan = current.plan
        if subtask in plan.new:
            if current.phase is model.RescalePhase.ABORTING and status in _STARTED:
                # The order to stop came before its deployment.
                self._background.spawn(self._calls.cancel(current, (subtask,), ()))
            elif status is SubtaskStatus.DEPLOYED:
                self._handle(current, model.NewSubtaskDeployed(subtask))
            elif status in (SubtaskStatus.CANCELED, SubtaskStatus.FINISHED):
                if current.phase is model.RescalePhase.ABORTING:
                    self._handle(current, model.NewSubtaskEnded(subtask))
                elif current.phase.is_reversible:
                    # By itself: its task manager was told to stop the job, or leaves.
                    self._party_lost(current, subtask, cause or "its task manager stopped it")
            elif status is SubtaskStatus.FAILED:
                self._party_lost(current, subtask, cause)
        elif subtask in plan.retiring and status is SubtaskStatus.FINISHED:
            self._handle(current, model.RetiredFinished(subtask))
        elif status in _ENDED_BADLY and subtask in (*plan.subtasks, *plan.upstream):
            self._party_lost(current, subtask, cause)

    def deployment_failed(self, subtasks: Iterable[SubtaskId], cause: str) -> None:
        """A task manager refused new subtasks, or its answer was lost."""
        current, statuses = self._current, self._job.machine.statuses
        for subtask in subtasks:
            # One that has reported itself since was deployed, whatever became of the answer.
            is_unknown = statuses.get(subtask) is SubtaskStatus.DEPLOYING
            if current is not None and subtask in current.plan.new and is_unknown:
                self._handle(current, model.NewSubtaskRefused(subtask, cause))

    def task_manager_lost(self, name: str, cause: str) -> None:
        """A task manager is gone; called before the job's own machine hears of it."""
        current = self._current
        if current is None:
            return
        placement, statuses = self._job.machine.placement, self._job.machine.statuses
        for subtask in (*current.plan.subtasks, *current.plan.upstream):
            if placement.get(subtask) == name and not current.phase.is_final:
                finished = statuses[subtask] is SubtaskStatus.FINISHED
                self._handle(
                    current,
                    model.PartyLost(subtask, f"task manager {name} is gone: {cause}", had_finished=finished),
                )

    def ownership_reported(self, report: control_pb2.OwnershipReport) -> None:
        """An owner tells what it has of the latest rescale; repeated in every heartbeat."""
        current = self._current
        subtask = subtask_from_proto(report.subtask)
        placement = self._job.machine.placement
        if (
            current is None
            or subtask.stage_index != current.plan.stage_index
            or report.routing_version != current.plan.version
        ):
            return
        if report.failure:
            self._fail_job(current, report.failure)
            return
        if subtask not in placement:
            return
        self._note_sent(current, subtask, report)
        owned = set(report.owned_groups) - self._owned.setdefault(subtask, set())
        self._job.locations.note(subtask.stage_index, report.owned_groups, report.locations)
        self._job.locations.note(
            subtask.stage_index,
            report.complete_groups,
            [placement[subtask]] * len(report.complete_groups),
        )
        if owned:
            self._owned[subtask] |= owned
            self._handle(current, model.GroupsOwned(subtask, tuple(sorted(owned))))
        complete = set(report.complete_groups) - self._complete.setdefault(subtask, set())
        new_bytes = report.bytes_moved - self._bytes.get(subtask, 0)
        if complete or new_bytes > 0:
            self._complete[subtask] |= complete
            self._bytes[subtask] = report.bytes_moved
            self._handle(current, model.GroupsMigrated(tuple(sorted(complete)), max(new_bytes, 0)))

    def _note_sent(
        self, current: RescaleMachine, subtask: SubtaskId, report: control_pb2.OwnershipReport
    ) -> None:
        before = self._sent.get(subtask, (0, 0))
        now = report.bytes_sent, report.relinked_groups
        if now > before:
            self._sent[subtask] = now
            self._handle(current, model.GroupsSent(now[0] - before[0], now[1] - before[1]))

    def situation(self) -> str:
        """Returns words to add to the cause of a failure while a rescale runs; empty if none does."""
        current = self.log.current
        if current is None:
            # A better cause of the failure that ended a rescale may come a moment after it.
            return self._ended_by_failure.get(self._job.identity.generation, "")
        return (
            f" (while rescale {current.rescale_id} of stage {current.plan.stage_index} was in phase "
            f"{current.phase.value})"
        )

    def job_left_running(self, cause: str, *, finished: bool) -> None:
        """The job finished, failed or is being cancelled; or it starts anew."""
        self._source_moves.look()
        current = self.log.current
        if current is not None:
            if not finished and self._job.state is not JobState.CANCELLING:
                self._ended_by_failure = {self._job.identity.generation: self.situation()}
            self._handle(current, model.JobStopped(cause, finished=finished))

    def _party_lost(self, current: RescaleMachine, subtask: SubtaskId, cause: str) -> None:
        self._handle(current, model.PartyLost(subtask, cause or "no cause given"))

    def _fail_job(self, rescale: RescaleMachine, cause: str) -> None:
        if self._identities[rescale.rescale_id] != self._job.identity:
            # The job has started again since.
            return
        self._tell_job(
            job_machine.FailRequested(
                f"rescale {rescale.rescale_id} of stage {rescale.plan.stage_index} failed in phase "
                f"{rescale.phase.value}: {cause}"
            )
        )

    # --- actions ---------------------------------------------------------------------------------------------

    def _handle(self, rescale: AnyRescale, event: model.RescaleEvent) -> None:
        before = rescale.phase
        try:
            actions = self.log.handle(rescale.rescale_id, event, wall_ms(self._clock))
        except InvalidTransitionError as error:
            log.error("ignored: %s", error)
            return
        if rescale.phase is not before:
            log.info("rescale %d: %s", rescale.rescale_id, rescale.phase.value)
            if rescale.phase is model.RescalePhase.MIGRATING or rescale.phase.is_final:
                self._tell_checkpoints(checkpoint_model.Release(_HOLDER))
                self._record.save()
        self._carry_out_all(rescale, actions)

    def _carry_out_all(self, rescale: AnyRescale, actions: Iterable[model.RescaleAction]) -> None:
        for action in actions:
            if isinstance(rescale, RescaleMachine):
                self._carry_out(rescale, action)

    def _carry_out(self, rescale: RescaleMachine, action: model.RescaleAction) -> None:
        job = self._job
        match action:
            case model.DeployNew(assignments):
                placement = {item.subtask: item.task_manager for item in assignments}
                self._tell_job(job_machine.AddSubtasks(placement))
            case model.SendPrepare():
                self._background.spawn(self._calls.prepare(rescale, action))
            case model.InstallTable(stage_index, subtasks, table):
                job.locations.pin(stage_index, [move.group for move in rescale.plan.moves])
                job.install(stage_index, subtasks, table)
                self._record.save()
                self._tell_job(job_machine.KeepSubtasks(rescale.plan.new))
                self._tell_job(job_machine.RetireSubtasks(rescale.plan.retiring))
                placed = job.machine.placement
                self._tell_checkpoints(
                    checkpoint_model.SubtasksAdded({subtask: placed[subtask] for subtask in rescale.plan.new})
                )
                self._tell_checkpoints(checkpoint_model.SubtasksRetired(rescale.plan.retiring))
            case model.SendReroute():
                self._background.spawn(self._calls.reroute(rescale, action.to, (), action.version))
            case model.SendProceed(to, version):
                self._background.spawn(self._calls.reroute(rescale, (), to, version))
            case model.SendAbort(to, version):
                self._background.spawn(self._calls.abort(rescale, to, version))
            case model.CancelNew(live, lost):
                self._background.spawn(self._calls.cancel(rescale, live, lost))
            case model.FailJob(cause):
                self._tell_job(job_machine.FailRequested(cause))
            case model.RescaleEnded(phase, cause):
                suffix = f": {cause}" if cause else ""
                log.info("rescale %d ended, %s%s", rescale.rescale_id, phase.value.lower(), suffix)
