"""Random rescales of the count stage while the job runs: what ``control_plane.rescale.rescaler`` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiments.simulation.plan import COUNT
from experiments.simulation.task_manager import QUOTA, Report
from weir.errors import FencedError, InvalidTransitionError
from weir.protocol import checkpoint_model as checkpoints
from weir.protocol import job as jobs
from weir.protocol import rescale_model as model
from weir.protocol.job import JobState, SubtaskStatus
from weir.protocol.placement import TaskManagerLoad
from weir.protocol.rescale_coordinator import RescaleMachine
from weir.protocol.rescale_log import RescaleLog
from weir.protocol.rescale_plan import RescaleRefusal, StageFacts, plan_rescale
from weir.types import SubtaskId

if TYPE_CHECKING:
    from experiments.simulation.control_plane import ControlPlane

_HOLDER = "rescale"
_RETRY_MS = 6.0
_SWITCHED = (
    model.RescalePhase.MIGRATING,
    model.RescalePhase.COMPLETE,
    model.RescalePhase.ABORTED,
    model.RescalePhase.FAILED,
)


class Rescaling:
    """All rescales of one control plane."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.cp = control_plane
        self.log = RescaleLog()
        rng = control_plane.world.rng
        self.left = 0 if control_plane.job.sinks else rng.choice([0, 2, 5])
        self._next_ms = control_plane.world.now_ms + rng.random() * 60
        self._next_index = 0
        self._owned: dict[SubtaskId, set[int]] = {}

    # --- requests -----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Begin one now and then; a checkpoint in flight is given up."""
        cp = self.cp
        if not self.left or cp.world.now_ms < self._next_ms:
            return
        if cp.machine.state is JobState.RUNNING and self.log.current is None:
            self._next_ms = cp.world.now_ms + cp.world.rng.random() * 60
            self.left -= 1
            cp.tell_checkpoints(checkpoints.Hold(_HOLDER))
            self._begin()

    def _begin(self) -> None:
        plan = None
        if self.cp.machine.state is JobState.RUNNING:
            plan = self._plan()
        if plan is None:
            self.cp.tell_checkpoints(checkpoints.Release(_HOLDER))
            return
        started = self.log.add(plan, self.cp.now_ms, migrates=self.cp.world.rng.random() < 0.5)
        assert not isinstance(started, RescaleRefusal)
        rescale, actions = started
        self._owned = {}
        self._next_index = max(*plan.after, *plan.before, self._next_index - 1) + 1
        self.cp.world.say(self.cp.address, f"rescale {plan.before} -> {plan.after}")
        self._carry_out(rescale, actions)

    def _plan(self) -> Any:
        cp = self.cp
        statuses, placement = cp.machine.statuses, cp.machine.placement
        members = cp.membership.members()
        names = {member.name for member in members}
        subtasks = cp.table.subtasks
        facts = StageFacts(
            COUNT,
            "count",
            False,
            subtasks,
            tuple(i for i in subtasks if statuses.get(SubtaskId(COUNT, i)) is SubtaskStatus.FINISHED),
            tuple(source for source in cp.job.sources if placement[source] in names),
            table=cp.table,
            next_index=max(self._next_index, max(subtasks) + 1),
        )
        plan = plan_rescale(
            COUNT,
            {COUNT: facts},
            [TaskManagerLoad(member.name, QUOTA) for member in members],
            cp.world.rng.randint(1, 4),
            last_version=max(self.log.last_version(COUNT), cp.table.version),
        )
        return None if isinstance(plan, RescaleRefusal) else plan

    # --- reports ------------------------------------------------------------------------------------------------

    def changed(self, subtask: SubtaskId, status: SubtaskStatus, cause: str) -> None:
        """A subtask's status changed; before the job's machine hears of it."""
        current = self.log.current
        if current is None:
            return
        plan = current.plan
        if subtask in plan.new:
            if status is SubtaskStatus.DEPLOYED:
                self._tell(current, model.NewSubtaskDeployed(subtask))
            elif status in (SubtaskStatus.CANCELED, SubtaskStatus.FINISHED):
                if current.phase is model.RescalePhase.ABORTING:
                    self._tell(current, model.NewSubtaskEnded(subtask))
            elif status is SubtaskStatus.FAILED:
                self._tell(current, model.PartyLost(subtask, cause))
        elif subtask in plan.retiring and status is SubtaskStatus.FINISHED:
            self._tell(current, model.RetiredFinished(subtask))
        elif status is SubtaskStatus.FAILED and subtask in (*plan.subtasks, *plan.upstream):
            self._tell(current, model.PartyLost(subtask, cause))

    def owned(self, report: Report) -> None:
        """What an owner took over, as its heartbeats tell."""
        current = self.log.current
        if current is None or report.version != current.plan.version:
            return
        mine = {move.group for move in current.plan.moves if move.target == report.subtask.subtask_index}
        new = mine & set(report.owned) - self._owned.setdefault(report.subtask, set())
        if new:
            self._owned[report.subtask] |= new
            groups = tuple(sorted(new))
            self._tell(current, model.GroupsOwned(report.subtask, groups))
            self._tell(current, model.GroupsMigrated(groups, 1))

    def deployment_failed(self, subtasks: tuple[SubtaskId, ...], cause: str) -> None:
        """A task manager refused new subtasks."""
        for subtask in subtasks:
            current = self.log.current
            if current is not None and subtask in current.plan.new:
                self._tell(current, model.NewSubtaskRefused(subtask, cause))

    def task_manager_lost(self, name: str, cause: str) -> None:
        """A task manager is gone; before the job's machine hears of it."""
        current = self.log.current
        if current is None:
            return
        placement, statuses = self.cp.machine.placement, self.cp.machine.statuses
        for subtask in (*current.plan.subtasks, *current.plan.upstream):
            if placement.get(subtask) == name and not current.phase.is_final:
                finished = statuses[subtask] is SubtaskStatus.FINISHED
                self._tell(current, model.PartyLost(subtask, cause, finished))

    def job_left_running(self, cause: str, *, finished: bool) -> None:
        """The job finished or starts again."""
        current = self.log.current
        if current is not None:
            self._tell(current, model.JobStopped(cause, finished=finished))

    # --- actions ------------------------------------------------------------------------------------------------

    def _tell(self, rescale: RescaleMachine, event: model.RescaleEvent) -> None:
        before = rescale.phase
        try:
            actions = self.log.handle(rescale.rescale_id, event, self.cp.now_ms)
        except InvalidTransitionError:
            if isinstance(event, model.NewSubtaskRefused):
                # The reply to the deployment was lost; the subtask itself has reported since.
                return
            raise
        rescale.check_invariants()
        if rescale.phase is not before:
            self.cp.world.say(self.cp.address, f"rescale {rescale.phase.value} after {event}")
        self._carry_out(rescale, actions)
        if before not in _SWITCHED and rescale.phase in _SWITCHED:
            self.cp.tell_checkpoints(checkpoints.Release(_HOLDER))

    def _carry_out(self, rescale: RescaleMachine, actions: list[model.RescaleAction]) -> None:
        cp, plan = self.cp, rescale.plan
        for action in actions:
            match action:
                case model.DeployNew(assignments):
                    cp.tell_job(jobs.AddSubtasks({i.subtask: i.task_manager for i in assignments}))
                case model.SendPrepare(to):
                    for name, subtasks in self._by_name(to).items():
                        self._send(
                            rescale, name, "prepare", (plan, subtasks), self._prepared(rescale, subtasks)
                        )
                case model.InstallTable(_, _, table):
                    cp.world.risk()
                    assert table is not None
                    cp.table = table
                    cp.world.counts["rescales"] += 1
                    placement = {s: cp.machine.placement[s] for s in plan.new}
                    cp.tell_job(jobs.KeepSubtasks(plan.new))
                    cp.tell_checkpoints(checkpoints.SubtasksAdded(placement))
                    cp.tell_checkpoints(checkpoints.SubtasksRetired(plan.retiring))
                    cp.tell_job(jobs.RetireSubtasks(plan.retiring))
                case model.SendReroute():
                    parties = (*plan.upstream, *plan.subtasks)
                    placement = dict(cp.machine.placement)
                    for name, subtasks in self._by_name(parties).items():
                        done = self._rerouted(rescale, tuple(s for s in subtasks if s in plan.upstream))
                        self._send(rescale, name, "switch", (plan, placement), done)
                case model.SendAbort(to, version):
                    for name, subtasks in self._by_name(to).items():
                        self._send(rescale, name, "abort", (version, subtasks), lambda result: None)
                case model.CancelNew(live, _):
                    for name, subtasks in self._by_name(live).items():
                        self._send(rescale, name, "cancel", (subtasks,), lambda result: None)
                case model.FailJob(cause):
                    cp.tell_job(jobs.FailRequested(cause))
                case model.SendProceed() | model.RescaleEnded():
                    pass

    def _prepared(self, rescale: RescaleMachine, subtasks: tuple[SubtaskId, ...]) -> Callable[[Any], None]:
        def done(ended: Any) -> None:
            for subtask in subtasks:
                if subtask in ended:
                    self._tell(rescale, model.PrepareRefused(subtask, "it has ended"))
                elif not rescale.phase.is_final:
                    self._tell(rescale, model.Prepared(subtask))

        return done

    def _rerouted(self, rescale: RescaleMachine, subtasks: tuple[SubtaskId, ...]) -> Callable[[Any], None]:
        def done(result: Any) -> None:
            for subtask in subtasks:
                self._tell(rescale, model.Rerouted(subtask))

        return done

    def _by_name(self, subtasks: tuple[SubtaskId, ...]) -> dict[str, tuple[SubtaskId, ...]]:
        grouped: dict[str, tuple[SubtaskId, ...]] = {}
        for subtask in subtasks:
            name = self.cp.machine.placement.get(subtask)
            if name is not None:
                grouped[name] = (*grouped.get(name, ()), subtask)
        return grouped

    def _send(
        self,
        rescale: RescaleMachine,
        name: str,
        method: str,
        args: tuple[Any, ...],
        done: Callable[[Any], None],
        generation: int | None = None,
    ) -> None:
        """Until it arrived; whoever never answers loses its lease. A repetition keeps the generation of the first."""
        sent_in = self.cp.generation if generation is None else generation

        def answered(result: Any) -> None:
            if rescale.phase.is_final or sent_in != self.cp.generation:
                return
            if isinstance(result, FencedError):
                self.cp.tell_job(jobs.FailRequested(str(result)))
            elif isinstance(result, Exception):
                self.cp.later(_RETRY_MS, self._send, rescale, name, method, args, done, sent_in)
            else:
                done(result)

        self.cp.call(name, method, (sent_in, *args), answered)
