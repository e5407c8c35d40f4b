"""Carries out what the job's machine decides about subtasks: creates, starts and stops them on task managers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from control_plane.job import requests
from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers, reason_of
from control_plane.ports import NOT_ON_RECORD, Background, TellJob
from weir.clock import Clock
from weir.config import ControlPlaneConfig
from weir.errors import WeirError, kind_of
from weir.protocol.job import job_machine as machine
from weir.protocol.job.job_machine import Assignment, JobState, SubtaskStatus
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

#: A task manager that did not take the order to stop is told again after so long, while it is registered.
_ASK_AGAIN_S = 0.2
#: While the job is in one of these, its subtasks are wanted. The last stage may report that it is ready before the
#: reply to its deployment comes.
_WANTS_SUBTASKS = (JobState.DEPLOYING, JobState.RUNNING)
#: All subtasks may even have ended by then: there is nothing to stop, and a task manager that is told to stop would
#: also stop what a control plane that takes the job over adds to it.
_HAS_ENDED_WELL = (JobState.FINISHING, JobState.FINISHED)


class Checkpoints(Protocol):
    """The part of the checkpoints that deployments use."""

    @property
    def last_id(self) -> int:
        """The highest number that a checkpoint has had."""

    def restore_point(self) -> control_pb2.Restore | None:
        """Returns the checkpoint with which a deployment now begins; None: with nothing."""


class Rescales(Protocol):
    """Hears before the job's machine what befalls parties of a rescale."""

    def deployment_failed(self, subtasks: Iterable[SubtaskId], cause: str) -> None:
        """A task manager refused new subtasks."""

    def task_manager_lost(self, name: str, cause: str) -> None:
        """A task manager is gone."""

    def situation(self) -> str:
        """Returns words to add to the cause of a failure while a rescale runs; empty if none does."""


class Deployment:
    """The deployment of a job; methods run in the event loop, as own tasks. What they meet comes back as events."""

    def __init__(
        self,
        job: RunningJob,
        config: ControlPlaneConfig,
        clock: Clock,
        background: Background,
        task_managers: TaskManagers,
        checkpoints: Checkpoints,
        rescales: Rescales,
        *,
        saved: Callable[[], Awaitable[bool]],
        isolated_steps: Callable[[], Collection[str]],
        tell_job: TellJob,
    ) -> None:
        """Deploy nothing yet.

        Args:
            job: what is deployed.
            config: section ``controlPlane``.
            clock: wall clock.
            background: waits.
            task_managers: that are there.
            checkpoints: what subtasks begin with.
            rescales: hears of failures first.
            saved: waits until the record of the job is written; returns whether it could be.
            isolated_steps: returns the steps whose bad rows are put aside.
            tell_job: takes in what task managers answer.
        """
        self._job = job
        self._config = config
        self._clock = clock
        self._background = background
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
        if not await self._is_on_record(generation):
            # A rescale, of which another control plane would not know; without a record it is taken back.
            self._refuse(assignments, generation)
            return
        deployed_us = self._clock.now_us()
        unsent = list(assignments)
        for stage in reversed(job.graph.stages):
            # The record may have taken so long that the job was stopped, or has started again.
            if job.identity.generation != generation or job.state not in _WANTS_SUBTASKS:
                break
            here = [item for item in unsent if item.subtask.stage_index == stage.index]
            unsent = [item for item in unsent if item.subtask.stage_index != stage.index]
            await self._deploy_stage(here, deployed_us, generation)
        # What was deployed of an earlier generation is fenced.
        is_in_force = job.identity.generation == generation
        if is_in_force and job.state not in (*_WANTS_SUBTASKS, *_HAS_ENDED_WELL):
            await self._abort(assignments, unsent, generation)

    async def _is_on_record(self, generation: int) -> bool:
        """Wait until another control plane cannot use this generation for a deployment of its own.

        False: the job runs, and the record does not say what is to be deployed now.
        """
        job = self._job
        is_first = True
        while not await self._saved():
            if job.identity.generation != generation or job.state is not JobState.DEPLOYING:
                return job.state is not JobState.RUNNING or job.identity.generation != generation
            if is_first:
                log.warning("no subtask is deployed before the record of the job is written")
                is_first = False
            await self._background.sleep(_ASK_AGAIN_S)
        return True

    async def _deploy_stage(self, assignments: list[Assignment], deployed_us: int, generation: int) -> None:
        by_task_manager = self._task_managers.reachable(assignments)
        results = await asyncio.gather(
            *(
                self._task_managers.clients[name].deploy(self._request(subtasks, deployed_us))
                for name, subtasks in by_task_manager.items()
            ),
            return_exceptions=True,
        )
        if self._job.identity.generation != generation:
            # Subtasks of the next deployment, and of its rescales, may have the same names.
            return
        for name, result in zip(by_task_manager, results, strict=True):
            if isinstance(result, BaseException):
                # The event says already whose it is.
                cause = reason_of(result).removeprefix(f"task manager {name}: ")
                self._rescales.deployment_failed(by_task_manager[name], cause)
                subtasks = tuple(by_task_manager[name])
                event = machine.DeploymentFailed(name, cause, generation, kind_of(result), subtasks)
                self._tell_job(event)

    def _refuse(self, assignments: tuple[Assignment, ...], generation: int) -> None:
        for item in assignments:
            only = (item.subtask,)
            self._rescales.deployment_failed(only, NOT_ON_RECORD)
            failed = machine.DeploymentFailed(item.task_manager, NOT_ON_RECORD, generation, subtasks=only)
            self._tell_job(failed)

    async def _abort(
        self, assignments: tuple[Assignment, ...], unsent: list[Assignment], generation: int
    ) -> None:
        """Stop what was deployed; the rest was never sent anywhere."""
        # Again for all: the first Cancel may have overtaken a Deploy, and what a refused Deploy left is not live.
        await self.cancel(assignments)
        for item in unsent:
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
            str(job.database_run),
            job.layouts,
            job.horizons,
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
        request = control_pb2.StartRequest(
            handshake=handshake_to_proto(identity), job_start_us=job.started_us or 0
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
        """Tell the task managers of these subtasks to stop the job, until they have heard it."""
        job, identity = self._job, self._job.identity
        request = control_pb2.CancelRequest(job_id=identity.job_id, generation=identity.generation)

        async def tell(name: str) -> None:
            while True:
                try:
                    await self._task_managers.client(name).cancel(request)
                except WeirError as error:
                    log.warning("cannot tell task manager %s to stop: %s", name, reason_of(error))
                    # The next deployment fences this one, and its lease tells when a task manager is gone.
                    is_over = job.identity != identity or job.state.is_final
                    if is_over or not self._task_managers.is_registered(name):
                        return
                    await self._background.sleep(_ASK_AGAIN_S)
                else:
                    return

        await asyncio.gather(*(tell(name) for name in self._task_managers.reachable(assignments)))
