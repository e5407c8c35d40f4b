"""Carries out what the job's machine decides about subtasks: creates, starts and stops them on task managers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from control_plane.job import requests
from control_plane.link.clients import reason_of
from weir.clock import Clock
from weir.config import ControlPlaneConfig
from weir.errors import FailureKind, WeirError, kind_of
from weir.protocol import job as machine
from weir.protocol.job import Assignment, JobState, SubtaskStatus
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto
from weir.types import SubtaskId

if TYPE_CHECKING:
    from control_plane.job.coordinator import Coordinator

log = logging.getLogger("control_plane")

#: Between the Start calls and event 0 of a paced source: all task managers have the call by then.
_START_DELAY_US = 20_000


class Deployment:
    """One per job; methods run in the event loop, as tasks of their own. What they meet comes back as events."""

    def __init__(self, coordinator: Coordinator, config: ControlPlaneConfig, clock: Clock) -> None:
        self._coordinator = coordinator
        self._config = config
        self._clock = clock

    async def deploy(self, assignments: tuple[Assignment, ...]) -> None:
        """Stage by stage, the last one first; within a stage all task managers at once."""
        coordinator = self._coordinator
        generation = coordinator.identity.generation
        # Another control plane must not use this generation for a deployment of its own.
        await coordinator.takeover.saved()
        deployed_us = self._clock.now_us()
        for stage in reversed(coordinator.graph.stages):
            if coordinator.identity.generation != generation:
                # It took so long that the job has started again: what was deployed is fenced.
                return
            by_task_manager = coordinator.reachable(
                item for item in assignments if item.subtask.stage_index == stage.index
            )
            results = await asyncio.gather(
                *(
                    coordinator.leases.clients[name].deploy(self._request(subtasks, deployed_us))
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
                    coordinator.rescaler.deployment_failed(by_task_manager[name], cause)
                    coordinator.handle(machine.DeploymentFailed(name, cause, generation, kind))
            if coordinator.identity.generation != generation:
                return
            # The last stage may have reported that it is ready before this reply came: RUNNING is fine.
            if coordinator.machine.state not in (JobState.DEPLOYING, JobState.RUNNING):
                await self._abort(assignments, stage.index, generation)
                return

    async def _abort(self, assignments: tuple[Assignment, ...], stage_index: int, generation: int) -> None:
        """Stop what was deployed (stages from ``stage_index`` on); the rest was never sent anywhere."""
        coordinator = self._coordinator
        # Again for all: the first Cancel may have overtaken a Deploy, and what a refused Deploy left is not live.
        await self.cancel(assignments)
        for item in assignments:
            if item.subtask.stage_index < stage_index:
                # Another generation may have begun meanwhile, with subtasks of the same names.
                report = machine.SubtaskReported(item.subtask, SubtaskStatus.CANCELED, generation=generation)
                coordinator.handle(report)

    def _request(self, subtasks: list[SubtaskId], deployed_us: int) -> control_pb2.DeployRequest:
        coordinator = self._coordinator
        return requests.deploy_request(
            coordinator.identity,
            self._config,
            coordinator.job_module,
            coordinator.parameters,
            coordinator.graph,
            {
                subtask: name
                for subtask, name in coordinator.machine.placement.items()
                if name in coordinator.leases.clients
            },
            coordinator.routing_tables.values(),
            subtasks,
            deployed_us,
            # Subtasks that a rescale adds begin with nothing.
            coordinator.checkpointer.restore_point()
            if coordinator.machine.state is JobState.DEPLOYING
            else None,
            coordinator.checkpointer.machine.next_id - 1,
            coordinator.state_ids,
            sorted(coordinator.recovery.isolated_steps),
            coordinator.strategy,
        )

    async def preload(self, names: Iterable[str]) -> None:
        """Let task managers without a subtask load the job and open a store, so that they can be scaled to at once."""
        coordinator = self._coordinator
        for name in names:
            try:
                await coordinator.leases.client(name).deploy(self._request([], self._clock.now_us()))
            except WeirError as error:
                log.warning("task manager %s cannot take part in this job: %s", name, error)

    async def start(self, assignments: tuple[Assignment, ...]) -> None:
        """Let the task managers of these subtasks begin; then others load the job, so that it can be scaled to them."""
        coordinator = self._coordinator
        identity = coordinator.identity
        # Subtasks that a rescale adds start in a job that runs already.
        coordinator.started_us = coordinator.started_us or self._clock.now_us() + _START_DELAY_US
        request = control_pb2.StartRequest(
            handshake=handshake_to_proto(identity), job_start_us=coordinator.started_us
        )
        names = list(coordinator.reachable(assignments))
        results = await asyncio.gather(
            *(coordinator.leases.clients[name].start(request) for name in names), return_exceptions=True
        )
        if coordinator.identity != identity:
            return
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                cause = f"it could not be started: {reason_of(result)}"
                # First, as with every loss: the job's machine forgets subtasks that it can do without.
                situation = coordinator.rescaler.situation()
                coordinator.rescaler.task_manager_lost(name, cause)
                coordinator.handle(machine.TaskManagerLost(name, cause + situation))
        in_use = set(coordinator.machine.placement.values())
        await self.preload(sorted(coordinator.leases.clients.keys() - in_use))

    async def cancel(self, assignments: tuple[Assignment, ...]) -> None:
        """Tell the task managers of these subtasks to stop the job."""
        coordinator = self._coordinator
        request = control_pb2.CancelRequest(
            job_id=coordinator.identity.job_id, generation=coordinator.identity.generation
        )
        names = list(coordinator.reachable(assignments))
        results = await asyncio.gather(
            *(coordinator.leases.clients[name].cancel(request) for name in names), return_exceptions=True
        )
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                # Its lease will tell whether it is gone; the call is safe to lose.
                log.warning("cannot tell task manager %s to stop: %s", name, reason_of(result))
