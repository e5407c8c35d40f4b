"""Drives the job: feeds events to its state machine and lets the parts carry out its actions.

Everything here runs in one event loop, so there are no locks; what waits for a task manager is a task of its own
whose result comes back as an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from control_plane.checkpoints.checkpointer import Checkpointer
from control_plane.checkpoints.restore_log import RestoreLog
from control_plane.job.deployment import Deployment
from control_plane.job.late_counts import late_text
from control_plane.job.recovery import Recovery
from control_plane.job.rejects import JobRejects
from control_plane.job.running_job import RunningJob
from control_plane.job.takeover import Takeover
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background
from control_plane.record.record_writer import RecordWriter
from control_plane.rescale.rescaler import Rescaler
from control_plane.web.totals import totals_view
from weir.clock import Clock, monotonic_ms
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind, InvalidTransitionError, PlacementError
from weir.process.entry_point import REPEATED_LOGGER
from weir.protocol.checkpoints import checkpoint_model
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job import job_machine as machine
from weir.protocol.job.job_machine import JobState
from weir.protocol.job.membership import Member
from weir.protocol.job.placement import TaskManagerLoad, place
from weir.types import SubtaskId

log = logging.getLogger("control_plane")
#: What ``weir run`` says itself when the job has ended.
repeated = logging.getLogger(REPEATED_LOGGER)

#: How often, and how far apart, it is looked whether the end of the job is on record.
_END_ATTEMPTS_MAX = 25
_SAVED_AGAIN_S = 0.2
#: What runs in these states will not be restored any further.
_ENDS_RESTORES = frozenset(JobState) - {JobState.DEPLOYING, JobState.RUNNING, JobState.FINISHING}


class Drains(Protocol):
    """Tells deployments which task managers are being emptied."""

    @property
    def avoided(self) -> set[str]:
        """Task managers that take no new subtask."""

    def needed(self, names: Collection[str]) -> None:
        """Subtasks are deployed there, because others have no room."""


class Coordinator:
    """The coordinator of a job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        *,
        deployment: Deployment,
        checkpointer: Checkpointer,
        rescaler: Rescaler,
        drains: Drains,
        standbys: Callable[[], Mapping[str, Sequence[str]]],
        recovery: Recovery,
        takeover: Takeover,
        record: RecordWriter,
        rejects: JobRejects,
        restores: RestoreLog,
    ) -> None:
        """A job that waits for task managers; ``composition`` makes the parts, which carry out its actions.

        ``standbys`` returns those that have the state of a task manager, by its name, the best one first.
        """
        self._job = job
        self._config = config
        self._clock = clock
        self._background = background
        self._task_managers = task_managers
        self._deployment = deployment
        self._checkpointer = checkpointer
        self._rescaler = rescaler
        self._drains = drains
        self._standbys = standbys
        self._recovery = recovery
        self._takeover = takeover
        self._record = record
        self._rejects = rejects
        self._restores = restores
        self.ended = asyncio.Event()
        #: Another control plane has committed a checkpoint of this job: this process must end.
        self.superseded = asyncio.Event()
        job.waiting_for = f"{_wanted(config)}; none has registered"

    def cancel(self) -> bool:
        """Stop the job; False if it has ended or is ending already."""
        state = self._job.state
        if state.is_final or state in (JobState.FAILING, JobState.CANCELLING):
            return False
        self.handle(machine.CancelRequested())
        return True

    def leave_behind(self) -> None:
        """End a job that is being stopped without the subtasks that do not stop, such as one whose function hangs.

        They were told to stop. What they still do is in no checkpoint, and the next deployment fences it.
        """
        statuses, placement = self._job.machine.statuses, self._job.machine.placement
        hanging = sorted(subtask for subtask, status in statuses.items() if not status.is_terminal)
        if hanging:
            names = ", ".join(map(self._job.graph.name_of, hanging))
            log.warning("%s did not stop in time; the job ends without waiting any longer", names)
        for name in sorted({placement[subtask] for subtask in hanging if subtask in placement}):
            self.handle(machine.TaskManagerLost(name, "it did not stop in time"))

    def begin_generation(self, generation: int, manifest: Manifest | None) -> None:
        """Deploy the job anew, as a checkpoint has it or from nothing; everything of earlier deployments is fenced."""
        ended = self._job.identity.generation
        self._job.begin_generation(generation, manifest)
        self._restores.begin_generation(generation)
        self._rejects.begin_generation(keeps=manifest is not None and manifest.generation == ended)
        self.handle(machine.RestartNow(tuple(self._job.graph.subtasks()), generation))
        self.place_if_possible()

    def lost(self, member: Member, cause: str) -> None:
        """A lease has ended, for whatever reason; called by ``Leases``."""
        self._takeover.lost(member.name)
        situation = self._rescaler.situation()
        self._rescaler.task_manager_lost(member.name, cause)
        self.handle(machine.TaskManagerLost(member.name, cause + situation))
        self._checkpointer.handle(checkpoint_model.TaskManagerLost(member.name, cause))
        self._fail_without_state(member.name, cause + situation)
        self.place_if_possible()

    def place_if_possible(self) -> None:
        """Deploy a job that waits, if there are slots enough; called when a task manager has come or gone."""
        job, members = self._job, self._task_managers.members()
        if job.state is not JobState.WAITING_FOR_TASK_MANAGERS or self._takeover.is_waiting:
            return
        if len(members) < self._config.min_task_managers and not job.restarts:
            job.waiting_for = f"{_wanted(self._config)}; {len(members)} registered"
            log.info("waiting for %s", job.waiting_for)
            return
        try:
            placement = self._placement(members)
        except PlacementError as error:
            job.waiting_for = str(error)
            log.info("waiting: %s", error)
            return
        job.waiting_for = ""
        self.handle(machine.SlotsAvailable(placement))

    def _placement(self, members: list[Member]) -> dict[SubtaskId, str]:
        """Where each subtask goes: to a task manager that is being emptied only if the others have no room.

        Raises:
            PlacementError: all of them have fewer slots than there are subtasks.
        """
        loads = [TaskManagerLoad(member.name, member.quota) for member in members]
        subtasks, avoided = list(self._job.graph.subtasks()), self._drains.avoided
        preferred, standbys = self._job.preferred, self._standbys()
        try:
            return place([load for load in loads if load.name not in avoided], subtasks, preferred, standbys)
        except PlacementError:
            placement = place(loads, subtasks, preferred, standbys)
            self._drains.needed(avoided & set(placement.values()))
            return placement

    # --- events to actions -----------------------------------------------------------------------------------

    def handle(self, event: machine.Event) -> None:
        """Feed one event to the job's machine and carry out what follows."""
        before = self._job.state
        try:
            actions = self._job.machine.handle(event)
        except InvalidTransitionError as error:
            # A report of another process cannot be trusted to fit; the machine has not changed.
            log.error("ignored: %s", error)
            return
        if self._job.state is not before:
            self._state_changed(before)
        for action in actions:
            self._carry_out(action)

    def _state_changed(self, before: JobState) -> None:
        job = self._job
        if job.state is JobState.RUNNING:
            job.begin(self._clock.now_us())
        self._record.save()
        state = job.state
        if state in _ENDS_RESTORES:
            self._restores.give_up()
        cause = job.machine.restart_cause if state is JobState.RESTARTING else job.machine.cause
        log.info("job %s: %s", job.identity.job_id, state.value)
        if before is JobState.RUNNING:
            at_end = state in (JobState.FINISHING, JobState.FINISHED)
            self._rescaler.job_left_running(cause, finished=at_end)
        if state is JobState.RUNNING:
            self._recovery.policy.running(monotonic_ms(self._clock))
            self._checkpointer.handle(
                checkpoint_model.JobRuns(job.identity.generation, job.machine.placement, job.sources)
            )
        elif before in (JobState.RUNNING, JobState.FINISHING) and state not in (
            JobState.FINISHING,
            JobState.FINISHED,
        ):
            ends = state is not JobState.RESTARTING
            self._checkpointer.handle(checkpoint_model.JobStops(cause or state.value, ends))

    def _carry_out(self, action: machine.Action) -> None:
        match action:
            case machine.Deploy(assignments):
                self._background.spawn(self._deployment.deploy(assignments))
            case machine.Start(assignments):
                self._background.spawn(self._deployment.start(assignments))
            case machine.Cancel(assignments):
                self._background.spawn(self._deployment.cancel(assignments))
            case machine.Restart(failure):
                self._background.spawn(self._recovery.restart(failure))
            case machine.CommitFinal() if not self._rejects.judge(at_end=True):
                subtasks = tuple(self._job.machine.statuses)
                self._checkpointer.handle(checkpoint_model.FinalRequested(subtasks))
            case machine.JobEnded(state, cause):
                self._end(state, cause)

    def _fail_without_state(self, name: str, cause: str) -> None:
        """A task manager is gone that may have had no subtask any more, but state of subtasks elsewhere."""
        job = self._job
        held = job.state_held_at(name)
        if job.state is JobState.RUNNING and held:
            stages = ", ".join(
                f"{count} key groups of stage {index} ({job.graph.stage(index).name})"
                for index, count in sorted(Counter(index for index, _ in held).items())
            )
            self.handle(
                machine.FailRequested(
                    f"task manager {name} is lost with the state of {stages}: {cause}", FailureKind.OUTAGE
                )
            )

    def _end(self, state: JobState, cause: str) -> None:
        job_id = self._job.identity.job_id
        self._job.ended_us = self._clock.now_us()
        rejected = self._rejects.summary()
        if cause:
            (repeated if state is JobState.FAILED else log).error(
                "job %s %s: %s", job_id, state.value.lower(), cause
            )
        elif rejected:
            repeated.warning("job %s %s; but %s", job_id, self._counted(state), rejected)
        else:
            log.info("job %s %s", job_id, self._counted(state))
        if state in (JobState.FAILED, JobState.CANCELLED):
            self._checkpointer.kept.tell_retained()
            self._background.spawn(self._keep_end(state))
        else:
            self._background.spawn(self._clean_up())

    def _counted(self, state: JobState) -> str:
        totals = totals_view(self._job, self._rejects.totals, self._checkpointer.latest)
        late = late_text(totals.rows_late)
        return f"{state.value.lower()}: {totals.events_in:,} events in, {totals.events_out:,} out{late}"

    async def _keep_end(self, state: JobState) -> None:
        """The process may end with the job, and what it has not written down its successor would take up again."""
        if not await self._is_on_record():
            log.error(
                "that the job is %s is not on record: another control plane with this record would start it again",
                state.value.lower(),
            )
        self.ended.set()

    async def _clean_up(self) -> None:
        if await self._is_on_record():
            await self._checkpointer.kept.remove()
        else:
            log.error(
                "that the job has ended is not on record: its checkpoints stay, with which another start finds nothing "
                "left to do"
            )
        self.ended.set()

    async def _is_on_record(self) -> bool:
        """Whether another control plane knows that nothing is left to do; without checkpoints it would begin anew."""
        for _ in range(_END_ATTEMPTS_MAX):
            if await self._record.saved():
                return True
            await self._background.sleep(_SAVED_AGAIN_S)
        return await self._record.saved()


def _wanted(config: ControlPlaneConfig) -> str:
    count = config.min_task_managers
    return f"{count} task manager{'' if count == 1 else 's'}"
