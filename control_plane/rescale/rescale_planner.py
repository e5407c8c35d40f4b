"""Makes the plans of rescales from the state of the job now; ``weir.protocol.rescale.rescale_plan`` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from control_plane.job.running_job import RunningJob
from control_plane.link.task_managers import TaskManagers
from weir.errors import PlacementError
from weir.plan.graph import Exchange, Stage
from weir.protocol.job.job_machine import SubtaskStatus
from weir.protocol.job.placement import TaskManagerLoad, place
from weir.protocol.rescale.rescale_log import RescaleLog
from weir.protocol.rescale.rescale_plan import (
    RefusalKind,
    RescalePlan,
    RescaleRefusal,
    StageFacts,
    plan_rescale,
    whole_refusal,
)
from weir.types import SubtaskId


class RescalePlanner:
    """The planner of a job's rescales; it changes nothing. All methods are called in the event loop."""

    def __init__(self, job: RunningJob, rescales: RescaleLog, task_managers: TaskManagers) -> None:
        self._job = job
        self._log = rescales
        self._task_managers = task_managers

    def plan(
        self, stage_index: int, target: int | Collection[int] | None, avoid: Collection[str]
    ) -> RescalePlan | RescaleRefusal:
        """Returns the plan of a rescale of a stage, or why there is none.

        Args:
            stage_index: of the stage.
            target: see ``plan_rescale``.
            avoid: task managers that take no new subtask.
        """
        return plan_rescale(
            stage_index,
            {stage.index: self._facts(stage) for stage in self._job.graph.stages},
            self._loads(avoid),
            target,
            last_version=self._log.last_version(stage_index),
        )

    def redeployment(self, stage_index: int, avoid: Collection[str]) -> RescalePlan | RescaleRefusal:
        """Returns a plan that leaves a source its subtasks, which are placed anew, or why there is no room for them.

        Args:
            stage_index: of the source.
            avoid: task managers that take no subtask.
        """
        graph = self._job.graph
        members = self._task_managers.members()
        loads = [TaskManagerLoad(item.name, item.quota) for item in members if item.name not in avoid]
        try:
            place(loads, list(graph.subtasks()))
        except PlacementError as error:
            return RescaleRefusal(RefusalKind.NO_SLOT, str(error))
        indices = tuple(graph.stage(stage_index).subtask_indices)
        return RescalePlan(stage_index, self._log.last_version(stage_index) + 1, indices, indices, {}, ())

    def restoring(self, stage_index: int) -> RescaleRefusal | None:
        """Key groups do not move before their state has come from the checkpoint: their owners would refuse."""
        left = sum(
            report.restoring_groups
            for subtask, report in self._job.reports.items()
            if subtask.stage_index == stage_index
        )
        if not left:
            return None
        return RescaleRefusal(
            RefusalKind.BUSY,
            f"stage {stage_index} is still restoring {left} key groups from its checkpoint; ask again when that is "
            "complete (see /restores)",
        )

    def why_fixed(self, stage: Stage) -> str:
        """Return what ``Rescaler.why_fixed`` does."""
        facts = self._facts(stage)
        refusal = whole_refusal(facts)
        return "" if refusal is None else refusal.message

    def next_index(self, stage: Stage) -> int:
        """Return one more than the highest subtask index that the stage ever had."""
        return max(self._log.next_index(stage.index), max(stage.subtask_indices) + 1)

    def _facts(self, stage: Stage) -> StageFacts:
        graph = self._job.graph
        edges = [*stage.inputs, *graph.output_edges(stage.index)]
        neighbours = {
            edge.producer_stage if edge.consumer_stage == stage.index else edge.consumer_stage
            for edge in edges
            if edge.exchange is Exchange.FORWARD
        }
        upstream = [
            subtask
            for index in sorted({edge.producer_stage for edge in stage.inputs})
            for subtask in graph.stage(index).subtasks()
            if self._is_reachable(subtask)
        ]
        return StageFacts(
            stage.index,
            stage.name,
            stage.is_source,
            stage.subtask_indices,
            next_index=self.next_index(stage),
            finished=tuple(
                subtask.subtask_index
                for subtask in stage.subtasks()
                if self._job.machine.statuses[subtask] is SubtaskStatus.FINISHED
            ),
            upstream=tuple(upstream),
            forward_neighbours=tuple(
                f"stage {index} ({graph.stage(index).name})" for index in sorted(neighbours)
            ),
            table=self._job.routing_tables.get(stage.index),
        )

    def _is_reachable(self, subtask: SubtaskId) -> bool:
        return self._task_managers.is_registered(self._job.machine.placement.get(subtask, ""))

    def _loads(self, avoid: Collection[str]) -> list[TaskManagerLoad]:
        running: dict[str, Counter[int]] = {}
        statuses = self._job.machine.statuses
        for subtask, name in self._job.machine.placement.items():
            if not statuses[subtask].is_terminal:
                running.setdefault(name, Counter())[subtask.stage_index] += 1
        return [
            TaskManagerLoad(member.name, member.quota, running.get(member.name, {}))
            for member in self._task_managers.members()
            if member.name not in avoid
        ]
