"""Connects the parts of a control plane to each other and to their ports; the only module that knows all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from control_plane.autoscale.autoscaling import Autoscaling, policy_settings
from control_plane.autoscale.hook import hook_of
from control_plane.checkpoints.checkpointer import Checkpointer
from control_plane.checkpoints.restore_log import RestoreLog
from control_plane.job.coordinator import Coordinator
from control_plane.job.deployment import Deployment
from control_plane.job.recovery import Recovery, restart_policy
from control_plane.job.rejects import JobRejects
from control_plane.job.running_job import RunningJob
from control_plane.job.standbys import Standbys
from control_plane.job.start_point import StartPoint
from control_plane.job.takeover import Takeover
from control_plane.link.leases import Leases
from control_plane.link.reception import Reception
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background, Connect, ManifestStore
from control_plane.record.record_writer import RecordWriter
from control_plane.rescale.drain import Drainer
from control_plane.rescale.rescaler import Rescaler
from control_plane.watch.log_tails import LogTails
from control_plane.watch.profiler import Profiler
from control_plane.watch.watcher import Watcher
from weir.clock import Clock, monotonic_ms
from weir.config import AutoscalerConfig, ControlPlaneConfig, StateStrategy
from weir.dataflow.loading import LoadedJob
from weir.protocol.checkpoints.manifest import Manifest
from weir.protocol.job import job_machine as machine
from weir.protocol.job.restart import RestartPolicy
from weir.protocol.rescale.rescale_log import RescaleLog

_NO_AUTOSCALER = AutoscalerConfig()


@dataclass(frozen=True)
class Outside:
    """The ports of one control plane process."""

    clock: Clock
    background: Background
    connect: Connect
    #: None: no checkpoints are made.
    store: ManifestStore | None
    #: Keeps the record with which another control plane takes over; None: there is none.
    save: Callable[[bytes], None] | None
    #: Another control plane may come to lead while this one runs; ``save`` then raises SupersededError.
    is_shared: bool = False


class ControlPlane:
    """The parts of one control plane, connected; servers, pages and timers use them."""

    def __init__(
        self,
        config: ControlPlaneConfig,
        job_module: str,
        loaded: LoadedJob,
        start: StartPoint,
        outside: Outside,
        *,
        end_task_managers: bool,
        strategy: StateStrategy,
        autoscaler: AutoscalerConfig = _NO_AUTOSCALER,
        channel_batches: int = 20,
    ) -> None:
        """A control plane whose job waits for task managers; made in the event loop.

        Args:
            config: section ``controlPlane``.
            job_module: what task managers import.
            loaded: the job.
            start: what the job begins with.
            outside: the ports.
            end_task_managers: tell task managers to end when the job has ended.
            strategy: what becomes of state in a rescale, on every task manager.
            autoscaler: section ``autoscaler``.
            channel_batches: batches that a channel takes, on every task manager.
        """
        self.config, self.clock, self.background = config, outside.clock, outside.background
        policy = restart_policy(config)
        has_restarts = policy.is_allowed and outside.store is not None
        self.job = RunningJob(job_module, loaded, start, strategy, restarts=has_restarts)
        self.task_managers = TaskManagers(config.lease_timeout_ms, config.disk_hold_bytes)
        left = start.left
        rescales = RescaleLog() if left is None else RescaleLog(left.rescales, left.used_by_rescales)
        self.record = self._record(start, rescales, outside)
        self.restores = RestoreLog(start.generation)
        self.rejects = JobRejects(config, lambda: self.job.state, self._tell_job)
        self.checkpointer = self._checkpointer(start, outside.store, policy)
        self.rescaler = self._rescaler(rescales)
        self.drainer = Drainer(
            self.job, self.background, self.task_managers, self.rescaler, self.checkpointer
        )
        self.standbys = self._standbys()
        self.leases = Leases(
            self.task_managers,
            self.clock,
            self.background,
            outside.connect,
            left=self.drainer.left,
            lost=lambda member, cause: self.coordinator.lost(member, cause),
            died=policy.died,
        )
        self.recovery = self._recovery(policy)
        self.deployment = self._deployment()
        self.takeover = Takeover(
            self.job,
            start.left,
            self.clock,
            self.background,
            self.checkpointer,
            connect=outside.connect,
            tell_job=self._tell_job,
            begin_generation=self._begin_generation,
            let_begin=self.deployment.start,
        )
        self.coordinator = self._coordinator()
        self.reception = self._reception(end_task_managers=end_task_managers)
        self.watcher = Watcher(self.job, self.clock, self.background, self.task_managers, rescales)
        self.profiler = Profiler(self.job, self.clock, self.background, self.task_managers)
        self.log_tails = LogTails(self.clock, self.task_managers)
        self.autoscaling = self._autoscaling(autoscaler, channel_batches)

    async def run_timers(self, interval_s_max: float) -> None:
        """End leases and begin checkpoints when they are due, until cancelled.

        Args:
            interval_s_max: looks are at most so far apart, by which leases tell that this process was stopped.
        """
        while True:
            await self.background.sleep(self._look_in_s(interval_s_max))
            self.leases.expire()
            self.checkpointer.tick()

    def _look_in_s(self, interval_s_max: float) -> float:
        """Seconds until a lease ends, but at most so many; a checkpoint that is due before wakes by itself."""
        self.checkpointer.wake_within(interval_s_max)
        ends_ms = self.task_managers.membership.next_expiry_ms()
        if ends_ms is None:
            return interval_s_max
        # At least a ms: deadlines are whole ms, and a clock may be just before one.
        return min(interval_s_max, max(ends_ms - monotonic_ms(self.clock), 1) / 1e3)

    # --- parts tell each other through these, which find the coordinator when they are called ----------------

    def _tell_job(self, event: machine.Event) -> None:
        self.coordinator.handle(event)

    def _begin_generation(self, generation: int, manifest: Manifest | None) -> None:
        self.coordinator.begin_generation(generation, manifest)

    # --- parts -----------------------------------------------------------------------------------------------

    def _record(self, start: StartPoint, rescales: RescaleLog, outside: Outside) -> RecordWriter:
        return RecordWriter(
            self.job,
            rescales,
            self.background,
            lambda: self.checkpointer,
            outside.save,
            is_shared=outside.is_shared,
            first_checkpoint_id=start.next_checkpoint_id,
            superseded=lambda: self.coordinator.superseded.set(),
            incarnations=self.task_managers.incarnations,
        )

    def _checkpointer(
        self, start: StartPoint, store: ManifestStore | None, policy: RestartPolicy
    ) -> Checkpointer:
        return Checkpointer(
            self.job,
            self.config,
            self.clock,
            self.background,
            self.task_managers,
            store,
            start.latest,
            start.next_checkpoint_id,
            self.record,
            tell_job=self._tell_job,
            progressed=partial(self._progressed, policy),
            superseded=lambda: self.coordinator.superseded.set(),
        )

    def _progressed(self, policy: RestartPolicy) -> None:
        """A checkpoint is complete."""
        policy.progressed()
        self.leases.progressed()

    def _rescaler(self, rescales: RescaleLog) -> Rescaler:
        return Rescaler(
            self.job,
            rescales,
            self.clock,
            self.background,
            self.task_managers,
            tell_job=self._tell_job,
            tell_checkpoints=self.checkpointer.handle,
            request_checkpoint=lambda: self.checkpointer.request(redeploys_job=True),
            record=self.record,
            hindrance=lambda: self.drainer.busy(),
            avoided=lambda: self.drainer.avoided,
            relinks_to=lambda: self.checkpointer.relinkable_id,
        )

    def _standbys(self) -> Standbys:
        return Standbys(
            self.job,
            self.config,
            self.task_managers,
            latest=lambda: self.checkpointer.latest,
            avoided=lambda: self.drainer.avoided,
            is_settling=lambda: self.takeover.is_settling,
        )

    def _autoscaling(self, config: AutoscalerConfig, channel_batches: int) -> Autoscaling:
        return Autoscaling(
            config,
            policy_settings(config, self.config),
            self.job,
            self.clock,
            self.background,
            self.task_managers,
            self.rescaler,
            channel_batches=channel_batches,
            hook=hook_of(config),
        )

    def _recovery(self, policy: RestartPolicy) -> Recovery:
        return Recovery(
            self.job,
            self.config,
            policy,
            self.clock,
            self.background,
            self.task_managers,
            self.checkpointer,
            drop_gone=self.leases.drop_gone,
            tell_job=self._tell_job,
            begin_generation=self._begin_generation,
        )

    def _deployment(self) -> Deployment:
        return Deployment(
            self.job,
            self.config,
            self.clock,
            self.background,
            self.task_managers,
            self.checkpointer,
            self.rescaler,
            saved=self.record.saved,
            isolated_steps=lambda: self.recovery.isolated_steps,
            tell_job=self._tell_job,
        )

    def _coordinator(self) -> Coordinator:
        return Coordinator(
            self.job,
            self.config,
            self.clock,
            self.background,
            self.task_managers,
            deployment=self.deployment,
            checkpointer=self.checkpointer,
            rescaler=self.rescaler,
            drains=self.drainer,
            standbys=self.standbys.by_owner,
            recovery=self.recovery,
            takeover=self.takeover,
            record=self.record,
            rejects=self.rejects,
            restores=self.restores,
        )

    def _reception(self, *, end_task_managers: bool) -> Reception:
        return Reception(
            self.job,
            self.config,
            self.background,
            self.task_managers,
            leases=self.leases,
            takeover=self.takeover,
            deployment=self.deployment,
            checkpointer=self.checkpointer,
            rescaler=self.rescaler,
            drainer=self.drainer,
            rejects=self.rejects,
            restores=self.restores,
            standbys=self.standbys,
            tell_job=self._tell_job,
            place_if_possible=self.coordinator.place_if_possible,
            # Not before the record says so: another control plane that takes over would need them.
            end_task_managers=lambda: end_task_managers and self.coordinator.ended.is_set(),
        )
