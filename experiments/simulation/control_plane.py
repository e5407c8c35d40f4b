"""The simulated control plane around the real machines: what ``control_plane/`` does, without input and output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.simulation.plan import SINK, Deployment, Job
from experiments.simulation.rescaling import Rescaling
from experiments.simulation.storage import ManifestStore, Register
from experiments.simulation.task_manager import QUOTA, Report
from experiments.simulation.world import Process, Violation, World
from weir.errors import FencedError, InvalidTransitionError, PlacementError, WeirError
from weir.protocol import checkpoint_model as checkpoints
from weir.protocol import job as jobs
from weir.protocol.checkpoint import CheckpointMachine
from weir.protocol.job import JobMachine, JobState, SubtaskStatus
from weir.protocol.manifest import Manifest, SubtaskPart
from weir.protocol.membership import HeartbeatAnswer, Membership
from weir.protocol.placement import TaskManagerLoad, place
from weir.protocol.restart import GiveUp, RestartPolicy
from weir.types import Address, SubtaskId

LEASE_MS = 40
_LOOK_MS = 4.0


class CountsEveryLastPart(CheckpointMachine):
    """Broken: a last part counts although its subtask passed the barrier before."""

    @staticmethod
    def _counts(last_part: SubtaskPart, flight: object) -> bool:
        return True


class ForgetsRetired(CheckpointMachine):
    """Broken: a retired subtask is no part of the next checkpoint."""

    def handle(self, event: checkpoints.CheckpointEvent, now_ms: int) -> list[checkpoints.CheckpointAction]:
        """Take one event in."""
        if not isinstance(event, checkpoints.SubtasksRetired):
            return super().handle(event, now_ms)
        for subtask in event.subtasks:
            self._placement.pop(subtask, None)
            self._last_parts.pop(subtask, None)
        return []


class ControlPlane(Process):
    """One process; a restarted one is a new object with the same address, and begins a new generation."""

    def __init__(
        self, world: World, address: str, job: Job, store: ManifestStore, register: Register
    ) -> None:
        super().__init__(world, address)
        self.job, self.store, self.register_of_jobs = job, store, register
        generation, checkpoint_id = register.begin_generation(None)
        self._load(checkpoint_id)
        rng = world.rng
        settings = checkpoints.CheckpointSettings(
            interval_ms=rng.choice([8, 20, 40]),
            pause_ms=rng.choice([0, 5]),
            timeout_ms=rng.choice([30, 80]),
            failures_max=rng.choice([0, 3]),
        )
        kinds = {"last part": CountsEveryLastPart, "retired": ForgetsRetired}
        next_id = max(checkpoint_id, store.last_id) + 1
        self.checkpoints = kinds.get(world.broken, CheckpointMachine)(settings, next_id)
        self.machine = JobMachine(
            job.subtasks(self.table), restarts=True, commits_at_end=True, generation=generation
        )
        self.policy = RestartPolicy(10_000, rng.choice([0, 5]), 20, 100)
        self.membership = Membership(LEASE_MS)
        self.rescaling = Rescaling(self)
        self._preferred: dict[SubtaskId, str] = {}
        #: Until then it waits for all task managers to come, so that the job spreads.
        self._patient_until_ms = world.now_ms + 25
        self._slow_writes = rng.choice([0.0, 0.1, 0.5])
        self._tolerates_old_reports = world.broken == "acknowledgement"
        world.say(address, f"begins generation {generation} from checkpoint {checkpoint_id}")
        self._look()

    @property
    def now_ms(self) -> int:
        """Time of the machines."""
        return int(self.world.now_ms)

    @property
    def generation(self) -> int:
        """The deployment in force."""
        return self.machine.generation

    def _load(self, checkpoint_id: int) -> None:
        self.manifest = self.store.read(checkpoint_id) if checkpoint_id else None
        self.table = self.manifest.routing[1] if self.manifest else self.job.first_table()

    def _look(self) -> None:
        """What time alone brings."""
        self.later(_LOOK_MS, self._look)
        for member in self.membership.expire(self.now_ms):
            self._lost(member.name, "no heartbeat")
        self.tell_checkpoints(checkpoints.Tick())
        self.rescaling.look()
        self._place_if_possible()

    # --- called by task managers --------------------------------------------------------------------------------

    def register(self, name: str, incarnation: str) -> None:
        """Give a lease.

        Raises:
            FencedError: this incarnation has lost its lease.
        """
        registration = self.membership.register(address_of(name), incarnation, QUOTA, self.now_ms)
        if registration.replaced is not None:
            self._lost(registration.replaced.name, "another process registered")
        self._place_if_possible()

    def heartbeat(self, name: str, incarnation: str, generation: int, reports: tuple[Report, ...]) -> bool:
        """Renew a lease and take reports in."""
        answer = self.membership.heartbeat(address_of(name), incarnation, self.now_ms)
        if answer is not HeartbeatAnswer.RENEWED:
            return False
        if generation == self.generation:
            for report in reports:
                self._take_report(report, name)
        return True

    def acknowledge(
        self, name: str, incarnation: str, generation: int, checkpoint_id: int, part: SubtaskPart
    ) -> bool:
        """A part of a checkpoint.

        Raises:
            FencedError: the sender has lost its lease.
        """
        if self._tolerates_old_reports:
            generation = self.generation
        else:
            member = self.membership.get(address_of(name))
            if member is None or member.incarnation_id != incarnation:
                raise FencedError(f"{name} has no lease")
        taken = self.checkpoints.waits_for(generation, checkpoint_id, part.subtask)
        self.tell_checkpoints(checkpoints.PartDelivered(generation, checkpoint_id, part))
        return taken

    def _take_report(self, report: Report, name: str) -> None:
        subtask, status = report.subtask, SubtaskStatus(report.status)
        if self.machine.placement.get(subtask) != name:
            return
        before = self.machine.statuses[subtask]
        self.rescaling.owned(report)
        if status is before or subtask not in self.machine.statuses:
            return
        started = status in (SubtaskStatus.RUNNING, SubtaskStatus.FINISHED)
        if before is SubtaskStatus.DEPLOYING and started and self.machine.state is JobState.RUNNING:
            self.rescaling.changed(subtask, SubtaskStatus.DEPLOYED, "")
            self.tell_job(jobs.SubtaskReported(subtask, SubtaskStatus.DEPLOYED))
        self.rescaling.changed(subtask, status, report.cause)
        try:
            self.tell_job(jobs.SubtaskReported(subtask, status, report.cause, self.generation))
        except InvalidTransitionError:
            # Heartbeats overtake each other: the later news came first.
            if status not in (SubtaskStatus.DEPLOYED, SubtaskStatus.RUNNING):
                raise

    def _lost(self, name: str, cause: str) -> None:
        self.rescaling.task_manager_lost(name, cause)
        self.tell_job(jobs.TaskManagerLost(name, cause))
        self.tell_checkpoints(checkpoints.TaskManagerLost(name, cause))
        self._place_if_possible()

    def _place_if_possible(self) -> None:
        if self.machine.state is not JobState.WAITING_FOR_TASK_MANAGERS:
            return
        if len(self.membership.members()) < 3 and self.world.now_ms < self._patient_until_ms:
            return
        loads = [TaskManagerLoad(member.name, member.quota) for member in self.membership.members()]
        try:
            placement = place(loads, self.machine.statuses, self._preferred)
        except PlacementError:
            return
        self._preferred = placement
        self.tell_job(jobs.SlotsAvailable(placement))

    # --- events and actions -------------------------------------------------------------------------------------

    def tell_job(self, event: jobs.Event) -> None:
        """Feed the job's machine and carry out what follows."""
        before = self.machine.state
        actions = self.machine.handle(event)
        self.machine.check_invariants()
        state = self.machine.state
        if state is not before:
            self.world.say(self.address, f"job {state.value} after {event}")
            if before is JobState.RUNNING:
                finished = state is JobState.FINISHING
                self.rescaling.job_left_running(self.machine.restart_cause, finished=finished)
            if state is JobState.RUNNING:
                self.policy.running(self.now_ms)
                sources = frozenset(self.job.sources)
                self.tell_checkpoints(checkpoints.JobRuns(self.generation, self.machine.placement, sources))
        for action in actions:
            self._carry_out(action)

    def _carry_out(self, action: jobs.Action) -> None:
        match action:
            case jobs.Deploy(assignments):
                self._deploy(assignments)
            case jobs.Start(assignments):
                self._start(assignments)
            case jobs.Cancel(assignments):
                for name in sorted({item.task_manager for item in assignments}):
                    self.call(name, "cancel", (self.generation, None), lambda result: None)
            case jobs.Restart(failure):
                self.tell_checkpoints(checkpoints.JobStops(failure.cause))
                decision = self.policy.decide(self.now_ms, failure.cause, failure.kind)
                if isinstance(decision, GiveUp):
                    self.tell_job(jobs.RestartRefused(decision.reason))
                else:
                    self.later(decision.delay_ms, self._restart, self.generation)
            case jobs.CommitFinal(subtasks):
                self.tell_checkpoints(checkpoints.FinalRequested(subtasks))
            case jobs.JobEnded(state, cause):
                if state is not JobState.FINISHED:
                    raise Violation(f"the job ended {state.value}: {cause}")
                self.tell_checkpoints(checkpoints.JobStops("", ends=True))
                self.register_of_jobs.is_finished = True

    def tell_checkpoints(self, event: checkpoints.CheckpointEvent) -> None:
        """Feed the checkpoint machine and carry out what follows."""
        actions = self.checkpoints.handle(event, self.now_ms)
        self.checkpoints.check_invariants()
        for action in actions:
            self._carry_out_checkpoint(action)

    def _carry_out_checkpoint(self, action: checkpoints.CheckpointAction) -> None:
        match action:
            case checkpoints.Trigger(checkpoint_id, sources):
                self.world.say(self.address, f"triggers checkpoint {checkpoint_id}")
                self.world.risk()
                placement = self.machine.placement
                for name in sorted({placement[source] for source in sources}):
                    args = (self.generation, checkpoint_id, sources)
                    self.call(name, "trigger", args, lambda result: None)
            case checkpoints.Commit():
                self.world.risk()
                self.later(self._store_delay_ms(), self._write, action)
            case checkpoints.NotifyEnd():
                self._notify(action)
            case checkpoints.FinalDone():
                self.tell_job(jobs.FinalCommitted())
            case checkpoints.StopJob():
                raise Violation("the job stops, but nobody asked for it")
            case checkpoints.FailJob(cause, kind):
                self.tell_job(jobs.FailRequested(cause, kind))

    # --- deployments --------------------------------------------------------------------------------------------

    def _deploy(self, assignments: tuple[jobs.Assignment, ...]) -> None:
        generation = self.generation
        for name in sorted({item.task_manager for item in assignments}):
            mine = tuple(item.subtask for item in assignments if item.task_manager == name)

            def done(result: Any, name: str = name, mine: tuple[SubtaskId, ...] = mine) -> None:
                if isinstance(result, Exception) and generation == self.generation:
                    self.rescaling.deployment_failed(mine, str(result))
                    if self.machine.state is not JobState.WAITING_FOR_TASK_MANAGERS:
                        self.tell_job(jobs.DeploymentFailed(name, str(result), generation))

            deployment = Deployment(
                generation,
                mine,
                dict(self.machine.placement),
                self.table,
                self.job.sources,
                self.manifest if self.machine.state is JobState.DEPLOYING else None,
                self.checkpoints.next_id - 1,
            )
            self.call(name, "deploy", (deployment,), done)

    def _start(self, assignments: tuple[jobs.Assignment, ...]) -> None:
        generation = self.generation
        for name in sorted({item.task_manager for item in assignments}):
            mine = tuple(item.subtask for item in assignments if item.task_manager == name)

            def done(result: Any, name: str = name) -> None:
                if isinstance(result, Exception) and generation == self.generation:
                    self._lost(name, f"it could not be started: {result}")

            self.call(name, "start", (generation, mine), done)

    def _restart(self, generation: int) -> None:
        if self.machine.state is not JobState.RESTARTING or generation != self.generation:
            return
        if not self.checkpoints.is_settled and self.world.broken != "settled":
            self.later(_LOOK_MS, self._restart, generation)
            return
        try:
            generation, checkpoint_id = self.register_of_jobs.begin_generation(generation)
        except FencedError as error:
            self._give_way(error)
            return
        self._load(checkpoint_id)
        self.world.say(self.address, f"generation {generation} from checkpoint {checkpoint_id}")
        self.tell_job(jobs.RestartNow(self.job.subtasks(self.table), generation))
        self._place_if_possible()

    def _give_way(self, error: FencedError) -> None:
        """Another control plane took over: one that went on would take ids of manifests from it for ever."""
        self.world.say(self.address, f"gives way: {error}")
        self.is_alive = False

    def call(self, name: str, method: str, args: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """Call a task manager, by the name of its member."""
        self.world.rpc(self, name, method, args, done)

    # --- commits ------------------------------------------------------------------------------------------------

    def _write(self, commit: checkpoints.Commit) -> None:
        manifest = Manifest(
            commit.checkpoint_id,
            "job",
            "",
            commit.generation,
            self.now_ms,
            0,
            self.table.max_parallelism,
            {1: self.table.subtasks, SINK: tuple(range(self.job.sinks))},
            {1: self.table},
            commit.parts,
        )
        try:
            self.store.create(manifest)
        except WeirError as error:
            self.tell_checkpoints(checkpoints.CommitFailed(commit.checkpoint_id, str(error)))
        else:
            self.world.risk()
            self.later(self._store_delay_ms(), self._publish, commit)

    def _store_delay_ms(self) -> float:
        rng = self.world.rng
        return rng.random() * (50 if rng.random() < self._slow_writes else 3)

    def _publish(self, commit: checkpoints.Commit) -> None:
        try:
            self.register_of_jobs.commit(commit.generation, commit.checkpoint_id)
        except FencedError as error:
            self._give_way(error)
            return
        self.world.say(self.address, f"checkpoint {commit.checkpoint_id} of generation {commit.generation}")
        self.world.risk()
        self.later(self._store_delay_ms(), self._published, commit.checkpoint_id)

    def _published(self, checkpoint_id: int) -> None:
        self.tell_checkpoints(checkpoints.Committed(checkpoint_id))

    def _notify(self, notify: checkpoints.NotifyEnd) -> None:
        self.world.risk()
        waiting = set(notify.task_managers)
        unreached: list[str] = []
        for name in notify.task_managers:

            def done(result: Any, name: str = name) -> None:
                waiting.discard(name)
                if isinstance(result, Exception) and self.world.broken != "told":
                    unreached.append(name)
                if not waiting and notify.committed and notify.generation == self.generation:
                    self.tell_checkpoints(checkpoints.EndNotified(notify.checkpoint_id, tuple(unreached)))

            args = (notify.generation, notify.checkpoint_id, notify.committed)
            self.call(name, "end_checkpoint", args, done)


def address_of(name: str) -> Address:
    """Of a task manager."""
    host, _, port = name.partition(":")
    return Address(host, int(port))
