"""What the reports of task managers say about the restores of subtasks: begun, how far, ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from control_plane.web.views import RestoreView
from weir.rpc import control_pb2
from weir.types import SubtaskId

#: Older ones are forgotten.
_RESTORES_MAX = 256


@dataclass
class _Restore:
    generation: int
    subtask: SubtaskId
    task_manager: str
    report: control_pb2.SubtaskReport
    state: str = "RESTORING"


class RestoreLog:
    """The restores of a job's subtasks that were restored; all methods are called in the event loop."""

    def __init__(self, generation: int) -> None:
        self._generation = generation
        #: By generation and subtask, oldest first.
        self._restores: dict[tuple[int, SubtaskId], _Restore] = {}
        self._ended: Counter[str] = Counter()

    @property
    def under_way(self) -> int:
        """Subtasks whose restore has not ended."""
        return sum(restore.state == "RESTORING" for restore in self._restores.values())

    def ended(self) -> Mapping[str, int]:
        """How many restores were COMPLETE and how many GIVEN_UP since this process began."""
        return {state: self._ended[state] for state in ("COMPLETE", "GIVEN_UP")}

    def begin_generation(self, generation: int) -> None:
        """Reports are about this deployment from now on."""
        self.give_up()
        self._generation = generation

    def give_up(self) -> None:
        """The job was stopped: what is not complete will not be."""
        for restore in self._restores.values():
            if restore.state == "RESTORING":
                self._end(restore, "GIVEN_UP")

    def reported(self, subtask: SubtaskId, task_manager: str, report: control_pb2.SubtaskReport) -> None:
        """Take in a report of the deployment in force."""
        if not report.restore_groups:
            return
        key = (self._generation, subtask)
        restore = self._restores.get(key)
        if restore is None:
            restore = self._restores[key] = _Restore(self._generation, subtask, task_manager, report)
            if len(self._restores) > _RESTORES_MAX:
                del self._restores[next(iter(self._restores))]
        elif restore.state != "RESTORING":
            return
        restore.report = report
        if not report.restoring_groups:
            self._end(restore, "COMPLETE")

    def views(self) -> list[RestoreView]:
        """The latest ones, newest first."""
        return [_view(restore) for restore in reversed(self._restores.values())]

    def _end(self, restore: _Restore, state: str) -> None:
        restore.state = state
        self._ended[state] += 1


def _view(restore: _Restore) -> RestoreView:
    report = restore.report
    started_ms, duration_ms = report.restore_started_us // 1000, report.restore_us // 1000
    return RestoreView(
        generation=restore.generation,
        stage=restore.subtask.stage_index,
        subtask_index=restore.subtask.subtask_index,
        task_manager=restore.task_manager,
        state=restore.state,
        groups_total=report.restore_groups,
        groups_left=report.restoring_groups,
        started_ms=started_ms,
        ended_ms=None if restore.state == "RESTORING" else started_ms + duration_ms,
        duration_ms=duration_ms,
    )
