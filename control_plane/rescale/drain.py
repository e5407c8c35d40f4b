"""Empty a task manager so that it can be stopped: move its subtasks elsewhere, then what is in its store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from control_plane.ports import Background
from weir.errors import WeirError
from weir.plan.graph import Stage
from weir.protocol.checkpoints.checkpoint_model import CheckpointRecord
from weir.protocol.job.job_machine import JobState
from weir.protocol.rescale.rescale_log import AnyRescale, RescaleLog
from weir.protocol.rescale.rescale_model import RescalePhase
from weir.protocol.rescale.rescale_plan import RefusalKind, RescaleRefusal
from weir.rpc import control_pb2
from weir.rpc.wire import handshake_to_proto
from weir.types import SubtaskId

log = logging.getLogger("control_plane")

_POLL_S = 0.02
#: How often owners are asked how much of their state they have still to fetch.
_PULL_POLL_S = 0.1


@dataclass
class Drain:
    """The progress of one drain; shown by ``/drains``."""

    task_manager: str
    #: ``DRAINING``, ``EMPTY`` or ``FAILED``.
    state: str = "DRAINING"
    cause: str = ""
    rescales: list[int] = field(default_factory=list)
    #: Key groups that their owners still fetch from its store.
    groups_left: int = 0


class Rescales(Protocol):
    """What a drain needs of the rescales, by which it moves subtasks."""

    @property
    def log(self) -> RescaleLog:
        """Return the log of all rescales."""

    def request(
        self, stage_index: int, target: int | Collection[int] | None, avoid: Collection[str] = ()
    ) -> AnyRescale | RescaleRefusal:
        """Start a rescale, or say why not."""

    def redeploy(self, stage_index: int, avoid: Collection[str]) -> AnyRescale | RescaleRefusal:
        """Deploy the job anew for the sake of a source, or say why not."""

    def next_index(self, stage: Stage) -> int:
        """Return one more than the highest subtask index that the stage ever had."""


class Checkpoints(Protocol):
    """What a drain needs of the checkpoints, by which sinks deliver."""

    @property
    def is_enabled(self) -> bool:
        """Return whether there is a checkpoint store."""

    def request(self) -> object:
        """Make a checkpoint now; returns its record, or why not."""

    def unsettled_at(self, task_manager: str) -> bool:
        """Return whether subtasks that ended there have something to deliver."""


class Drainer:
    """The drainer of a job; all methods are called in the event loop."""

    def __init__(
        self,
        job: RunningJob,
        background: Background,
        task_managers: TaskManagers,
        rescales: Rescales,
        checkpoints: Checkpoints,
    ) -> None:
        self._job = job
        self._background = background
        self._task_managers = task_managers
        self._rescales = rescales
        self._checkpoints = checkpoints
        self.drains: dict[str, Drain] = {}
        #: Task managers from whose stores owners fetch their state now.
        self._pulling: set[str] = set()
        self._refusals: dict[str, str] = {}

    @property
    def avoided(self) -> set[str]:
        """Task managers that take no new subtask, because they are being emptied."""
        return {name for name, drain in self.drains.items() if drain.state != "FAILED"}

    def busy(self) -> RescaleRefusal | None:
        """The refusal of a rescale while key groups are on their way, which therefore cannot move again."""
        if not self._pulling:
            return None
        return RescaleRefusal(
            RefusalKind.BUSY,
            f"key groups are still fetched from task manager {min(self._pulling)}, which is being emptied; "
            "ask again when /drains says that it is EMPTY",
        )

    def request(self, name: str) -> Drain | RescaleRefusal:
        """Begin to empty a task manager, or say why not; repeating a request shows the drain that runs."""
        known = [member.name for member in self._task_managers.members()]
        if name not in known:
            listed = ", ".join(known) or "none"
            return RescaleRefusal(
                RefusalKind.UNKNOWN_STAGE, f"no task manager {name} is registered; there are {listed}"
            )
        running = self.drains.get(name)
        if running is not None and running.state == "DRAINING":
            return running
        subtasks = self._subtasks_on(name)
        state = self._job.state
        if subtasks and state is not JobState.RUNNING:
            return RescaleRefusal(
                RefusalKind.BUSY, f"the job is {state.value}; subtasks of a running job only can be moved"
            )
        graph = self._job.graph
        for subtask in subtasks:
            stage = graph.stage(subtask.stage_index)
            if stage.is_source and not self._checkpoints.is_enabled:
                return RescaleRefusal(
                    RefusalKind.SOURCE,
                    f"the source {graph.name_of(subtask)} runs on {name}, and sources move by a checkpoint: set "
                    "controlPlane.checkpoint_uri, drain another task manager, or let the job end",
                )
        drain = Drain(name)
        self.drains[name] = drain
        self._background.spawn(self._run(drain))
        return drain

    def request_or_look(self, name: str, *, begin: bool) -> Drain | RescaleRefusal:
        """Answer a task manager that wants to leave: it asks to be emptied, then again and again how far that is."""
        drain = self.drains.get(name)
        answer = drain if drain is not None and not begin else self.request(name)
        if isinstance(answer, RescaleRefusal):
            self._refusals[name] = answer.message
        return answer

    def left(self, name: str) -> str:
        """A task manager is not registered any more; returns why it was not empty, if it wanted to be."""
        drain, refusal = self.drains.pop(name, None), self._refusals.pop(name, "")
        if drain is None or drain.state == "EMPTY":
            return refusal
        return drain.cause or "it did not wait for the end of its drain"

    def needed(self, names: Collection[str]) -> None:
        """The job starts again and has no room without these task managers: they are not empty any more."""
        for name in names:
            drain = self.drains[name]
            if drain.state == "EMPTY":
                self._fail(drain, "the job has started again, and the others have no room for its subtasks")

    def _subtasks_on(self, name: str) -> list[SubtaskId]:
        machine = self._job.machine
        statuses = machine.statuses
        return sorted(
            subtask
            for subtask, place in machine.placement.items()
            if place == name and not statuses[subtask].is_terminal
        )

    async def _run(self, drain: Drain) -> None:
        log.info("draining task manager %s", drain.task_manager)
        while drain.state == "DRAINING" and self.drains.get(drain.task_manager) is drain:
            subtasks = self._subtasks_on(drain.task_manager)
            if subtasks:
                await self._move_last_stage(drain, subtasks)
            elif self._rescales.log.current is not None:
                await self._background.sleep(_POLL_S)
            elif (
                await self._pull(drain)
                and await self._settle(drain)
                and not self._subtasks_on(drain.task_manager)
            ):
                drain.state = "EMPTY"
                log.info("task manager %s is empty; it can be stopped", drain.task_manager)

    async def _move_last_stage(self, drain: Drain, subtasks: list[SubtaskId]) -> None:
        sources = [s.stage_index for s in subtasks if self._job.graph.stage(s.stage_index).is_source]
        if sources:
            # All that is there moves with it.
            result = self._rescales.redeploy(sources[0], self.avoided)
        else:
            stage_index = subtasks[-1].stage_index
            result = self._move(stage_index, [s for s in subtasks if s.stage_index == stage_index])
        if isinstance(result, RescaleRefusal):
            if result.kind is RefusalKind.BUSY and self._job.state is JobState.RUNNING:
                await self._background.sleep(_POLL_S)
            elif result.kind is RefusalKind.ENDING:
                # The rest of the stage ends by itself.
                await self._background.sleep(_POLL_S)
            else:
                self._fail(drain, result.message)
            return
        drain.rescales.append(result.rescale_id)
        while not result.phase.is_final:
            await self._background.sleep(_POLL_S)
        if result.phase is not RescalePhase.COMPLETE and self._subtasks_on(drain.task_manager):
            self._fail(drain, result.cause)
        elif sources and self._subtasks_on(drain.task_manager) and self._job.state is JobState.RUNNING:
            self._fail(drain, "the others have no room for its subtasks")

    def _move(self, stage_index: int, leaving: list[SubtaskId]) -> AnyRescale | RescaleRefusal:
        """Replace subtasks of one stage by as many new ones elsewhere."""
        stage = self._job.graph.stage(stage_index)
        gone = {subtask.subtask_index for subtask in leaving}
        first = self._rescales.next_index(stage)
        fresh = range(first, first + len(gone))
        staying = set(stage.subtask_indices) - gone
        return self._rescales.request(stage_index, {*staying, *fresh}, self.avoided)

    async def _pull(self, drain: Drain) -> bool:
        """Let owners elsewhere fetch what is in the store; False: it failed, and the drain with it."""
        job, name = self._job, drain.task_manager
        self._pulling.add(name)
        try:
            while held := job.state_held_at(name):
                if self._job.state is not JobState.RUNNING:
                    return True
                owners = {job.owner(*item) for item in held}
                places = {job.machine.placement[owner] for owner in owners if owner is not None}
                drain.groups_left = await self._ask_to_pull(name, places)
                if drain.groups_left:
                    await self._background.sleep(_PULL_POLL_S)
                    continue
                for stage_index, group in held:
                    job.locations.moved_to_owner(stage_index, group)
        except WeirError as error:
            if job.state is not JobState.RUNNING:
                # An owner is lost: after a restart from a checkpoint nothing is needed from here.
                return True
            self._fail(drain, f"its state could not be fetched: {error}")
            return False
        finally:
            self._pulling.discard(name)
            drain.groups_left = 0
        return True

    async def _settle(self, drain: Drain) -> bool:
        """Let sinks that ran there deliver what they wrote last, by a checkpoint; False: the drain has failed."""
        name = drain.task_manager
        asked: CheckpointRecord | None = None
        while self._checkpoints.unsettled_at(name):
            if self._job.state is not JobState.RUNNING:
                return True
            if not self._checkpoints.is_enabled:
                self._fail(
                    drain,
                    "its sinks deliver what they wrote when the job ends, since there is no checkpoint store: set "
                    "controlPlane.checkpoint_uri",
                )
                return False
            if asked is None or asked.ended_ms is not None:
                # Refused when the job is about to end, whose last checkpoint does as well.
                result = self._checkpoints.request()
                asked = result if isinstance(result, CheckpointRecord) else None
            await self._background.sleep(_POLL_S)
        return True

    async def _ask_to_pull(self, name: str, places: set[str]) -> int:
        request = control_pb2.PullStateRequest(handshake=handshake_to_proto(self._job.identity), address=name)
        replies = await asyncio.gather(
            *(self._task_managers.client(place).pull_state(request) for place in sorted(places))
        )
        return sum(reply.groups_left for reply in replies)

    def _fail(self, drain: Drain, cause: str) -> None:
        drain.state, drain.cause = "FAILED", cause
        log.warning("task manager %s could not be drained: %s", drain.task_manager, cause)
