"""Empty a task manager so that it can be stopped: move its subtasks elsewhere, one stage after the other."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir.protocol.rescale_coordinator import RescaleMachine
from weir.protocol.rescale_model import RescalePhase
from weir.protocol.rescale_plan import RefusalKind, RescaleRefusal
from weir.types import SubtaskId

if TYPE_CHECKING:
    from control_plane.coordinator import Coordinator

log = logging.getLogger("control_plane")

_POLL_S = 0.02


@dataclass
class Drain:
    """The progress of one drain; shown by ``/drains``."""

    task_manager: str
    #: ``DRAINING``, ``EMPTY`` or ``FAILED``.
    state: str = "DRAINING"
    cause: str = ""
    rescales: list[int] = field(default_factory=list)


class Drainer:
    """One per job; all methods are called in the event loop."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.drains: dict[str, Drain] = {}

    @property
    def avoided(self) -> set[str]:
        """Task managers that take no new subtask, because they are being emptied."""
        return {name for name, drain in self.drains.items() if drain.state != "FAILED"}

    def request(self, name: str) -> Drain | RescaleRefusal:
        """Begin to empty a task manager, or say why not; repeating a request shows the drain that runs."""
        known = [member.name for member in self._coordinator.membership.members()]
        if name not in known:
            listed = ", ".join(known) or "none"
            return RescaleRefusal(
                RefusalKind.UNKNOWN_STAGE, f"no task manager {name} is registered; there are {listed}"
            )
        running = self.drains.get(name)
        if running is not None and running.state == "DRAINING":
            return running
        graph = self._coordinator.graph
        for subtask in self._subtasks_on(name):
            stage = graph.stage(subtask.stage_index)
            if stage.is_source:
                return RescaleRefusal(
                    RefusalKind.SOURCE,
                    f"source subtask {subtask} ({stage.name}) runs on {name}, and sources cannot be moved yet; "
                    "drain another task manager, or let the job end",
                )
        drain = Drain(name)
        self.drains[name] = drain
        self._coordinator.spawn(self._run(drain))
        return drain

    def _subtasks_on(self, name: str) -> list[SubtaskId]:
        machine = self._coordinator.machine
        statuses = machine.statuses
        return sorted(
            subtask
            for subtask, place in machine.placement.items()
            if place == name and not statuses[subtask].is_terminal
        )

    async def _run(self, drain: Drain) -> None:
        log.info("draining task manager %s", drain.task_manager)
        while subtasks := self._subtasks_on(drain.task_manager):
            stage_index = subtasks[-1].stage_index
            result = self._move(stage_index, [s for s in subtasks if s.stage_index == stage_index])
            if isinstance(result, RescaleRefusal):
                if result.kind is RefusalKind.BUSY and self._coordinator.rescaler.log.current is not None:
                    await asyncio.sleep(_POLL_S)
                    continue
                self._fail(drain, result.message)
                return
            drain.rescales.append(result.rescale_id)
            while not result.phase.is_final:
                await asyncio.sleep(_POLL_S)
            if result.phase is not RescalePhase.COMPLETE:
                self._fail(drain, result.cause)
                return
        drain.state = "EMPTY"
        log.info("task manager %s is empty; it can be stopped", drain.task_manager)

    def _move(self, stage_index: int, leaving: list[SubtaskId]) -> RescaleMachine | RescaleRefusal:
        """Replace subtasks of one stage by as many new ones elsewhere."""
        stage = self._coordinator.graph.stage(stage_index)
        gone = {subtask.subtask_index for subtask in leaving}
        first = self._coordinator.rescaler.next_index(stage)
        fresh = range(first, first + len(gone))
        staying = set(stage.subtask_indices) - gone
        return self._coordinator.rescaler.request(stage_index, {*staying, *fresh}, self.avoided)

    def _fail(self, drain: Drain, cause: str) -> None:
        drain.state, drain.cause = "FAILED", cause
        log.warning("task manager %s could not be drained: %s", drain.task_manager, cause)
