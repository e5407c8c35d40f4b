"""Carries out what the job's machine decides about subtasks: creates, starts and stops them on task managers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from control_plane.job import requests
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers, reason_of
from control_plane.ports import TellJob
from weir.clock import Clock
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind, WeirError, kind_of
from weir.protocol import job as machine
from weir.protocol.job import Assignment, JobState, SubtaskStatus
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: Between the Start calls and event 0 of a paced source: all task managers have the call by then.
_START_DELAY_US = 20_000


class Checkpoints(Protocol):
    """What a deployment needs of the checkpoints."""

    @property
    def last_id(self) -> int:
        """The highest number that a checkpoint has had."""
        ...

    def restore_point(self) -> control_pb2.Restore | None:
        """What a deployment now begins with."""
        ...


class Rescales(Protocol):
    """Hears before the job's machine what befalls parties of a rescale."""

    def deployment_failed(self, subtasks: Iterable[SubtaskId], cause: str) -> None:
        """A task manager refused new subtasks."""
        ...

    def task_manager_lost(self, name: str, cause: str) -> None:
        """A task manager is gone."""
        ...

    def situation(self) -> str:
        """What to add to the cause of a failure while a rescale runs."""
        ...


class Deployment:
    """One per job; methods run in the event loop, as tasks of their own. What they meet comes back as events."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        clock: Clock,
        task_managers: TaskManagers,
        checkpoints: Checkpoints,
        rescales: Rescales,
        *,
        saved: Callable[[], Awaitable[None]],
        isolated_steps: Callable[[], Collection[str]],
        tell_job: TellJob,
    ) -> None:
        """Deploy nothing yet.

        Args:
            job: what is deployed.
            config: section ``controlPlane``.
            clock: wall clock.
            task_managers: that are there.
            checkpoints: what subtasks begin with.
            rescales: hears of failures first.
            saved: waits until the record of the job is written.
            isolated_steps: returns the steps whose bad rows are put aside.
            tell_job: takes in what task managers answer.
        """
        self._job = job
        self._config = config
        self._clock = clock
        self._task_managers = task_managers
        self._checkpoints = checkpoints
        self._rescales = rescales
        self._saved = saved
        self._isolated_steps = isolated_steps
        self._tell_job = tell_job

    async def deploy(self, assignments: tuple[Assignment, ...]) -> None:
        """Stage by stage, the last one first; within a stage all task managers at once."""
        job = self._job
        generation = job.identity.generation
        # Another control plane must not use this generation for a deployment of its own.
        await self._saved()
        deployed_us = self._clock.now_us()
        for stage in reversed(job.graph.stages):
            if job.identity.generation != generation:
                # It took so long that the job has started again: what was deployed is fenced.
                return
            by_task_manager = self._task_managers.reachable(
                item for item in assignments if item.subtask.stage_index == stage.index
            )
            results = await asyncio.gather(
                *(
                    self._task_managers.clients[name].deploy(self._request(subtasks, deployed_us))
                    for name, subtasks in by_task_manager.items()
                ),
                return_exceptions=True,
            )
            for name, result in zip(by_task_manager, results, strict=True):
                if isinstance(result, BaseException):
                    # The event says already whose it is.
                    cause = reason_of(result).removeprefix(f"task manager {name}: ")
                    # A call is cancelled when its task manager is lost.
                    is_lost = isinstance(result, asyncio.CancelledError)
                    kind = FailureKind.OUTAGE if is_lost else kind_of(result)
                    self._rescales.deployment_failed(by_task_manager[name], cause)
                    self._tell_job(machine.DeploymentFailed(name, cause, generation, kind))
            if job.identity.generation != generation:
                return
            # The last stage may have reported that it is ready before this reply came: RUNNING is fine.
            if job.state not in (JobState.DEPLOYING, JobState.RUNNING):
                await self._abort(assignments, stage.index, generation)
                return

    async def _abort(self, assignments: tuple[Assignment, ...], stage_index: int, generation: int) -> None:
        """Stop what was deployed (stages from ``stage_index`` on); the rest was never sent anywhere."""
        # Again for all: the first Cancel may have overtaken a Deploy, and what a refused Deploy left is not live.
        await self.cancel(assignments)
        for item in assignments:
            if item.subtask.stage_index < stage_index:
                # Another generation may have begun meanwhile, with subtasks of the same names.
                report = machine.SubtaskReported(item.subtask, SubtaskStatus.CANCELED, generation=generation)
                self._tell_job(report)

    def _request(self, subtasks: list[SubtaskId], deployed_us: int) -> control_pb2.DeployRequest:
        job = self._job
        return requests.deploy_request(
            job.identity,
            self._config,
            job.job_module,
            job.parameters,
            job.graph,
            {
                subtask: name
                for subtask, name in job.machine.placement.items()
                if name in self._task_managers.clients
            },
            job.routing_tables.values(),
            subtasks,
            deployed_us,
            # Subtasks that a rescale adds begin with nothing.
            self._checkpoints.restore_point() if job.state is JobState.DEPLOYING else None,
            self._checkpoints.last_id,
            job.state_ids,
            sorted(self._isolated_steps()),
            job.strategy,
        )

    async def preload(self, names: Iterable[str]) -> None:
        """Let task managers without a subtask load the job and open a store, so that they can be scaled to at once."""
        for name in names:
            try:
                await self._task_managers.client(name).deploy(self._request([], self._clock.now_us()))
            except WeirError as error:
                log.warning("task manager %s cannot take part in this job: %s", name, error)

    async def start(self, assignments: tuple[Assignment, ...]) -> None:
        """Let the task managers of these subtasks begin; then others load the job, so that it can be scaled to them."""
        job = self._job
        identity = job.identity
        # Subtasks that a rescale adds start in a job that runs already.
        job.started_us = job.started_us or self._clock.now_us() + _START_DELAY_US
        request = control_pb2.StartRequest(
            handshake=handshake_to_proto(identity), job_start_us=job.started_us
        )
        names = list(self._task_managers.reachable(assignments))
        results = await asyncio.gather(
            *(self._task_managers.clients[name].start(request) for name in names), return_exceptions=True
        )
        if job.identity != identity:
            return
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                cause = f"it could not be started: {reason_of(result)}"
                # First, as with every loss: the job's machine forgets subtasks that it can do without.
                situation = self._rescales.situation()
                self._rescales.task_manager_lost(name, cause)
                self._tell_job(machine.TaskManagerLost(name, cause + situation))
        in_use = set(job.machine.placement.values())
        await self.preload(sorted(self._task_managers.clients.keys() - in_use))

    async def cancel(self, assignments: tuple[Assignment, ...]) -> None:
        """Tell the task managers of these subtasks to stop the job."""
        job = self._job
        request = control_pb2.CancelRequest(job_id=job.identity.job_id, generation=job.identity.generation)
        names = list(self._task_managers.reachable(assignments))
        results = await asyncio.gather(
            *(self._task_managers.clients[name].cancel(request) for name in names), return_exceptions=True
        )
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                # Its lease will tell whether it is gone; the call is safe to lose.
                log.warning("cannot tell task manager %s to stop: %s", name, reason_of(result))
