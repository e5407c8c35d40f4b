"""Which task manager runs which subtask. Pure: the control plane calls it before it deploys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weir.errors import PlacementError
from weir.types import SubtaskId


@dataclass(frozen=True)
class TaskManagerLoad:
    """A registered task manager and what runs there."""

    name: str
    #: ``operator_quota``: subtasks that it takes at most.
    quota: int
    #: Running subtasks by stage index.
    running: Mapping[int, int] = field(default_factory=dict)

    @property
    def free_slots(self) -> int:
        """Subtasks that it still takes."""
        return max(0, self.quota - sum(self.running.values()))


def place(task_managers: Sequence[TaskManagerLoad], subtasks: Iterable[SubtaskId]) -> dict[SubtaskId, str]:
    """Choose a task manager for every subtask; the result is in deployment order, sinks first.

    Each subtask goes, among task managers with a free slot, to the one that runs the fewest of its stage
    (so a stage spreads before it doubles up), then the fewest altogether, then the first by name.

    Raises:
        PlacementError: fewer free slots than subtasks; nothing is placed.
    """
    ordered = sorted(set(subtasks), key=lambda subtask: (-subtask.stage_index, subtask.subtask_index))
    _check_slots(task_managers, len(ordered))
    free = {manager.name: manager.free_slots for manager in task_managers}
    total = {manager.name: sum(manager.running.values()) for manager in task_managers}
    of_stage = Counter(
        {
            (manager.name, stage): count
            for manager in task_managers
            for stage, count in manager.running.items()
        }
    )
    placement = {}
    for subtask in ordered:
        stage = subtask.stage_index
        candidates = [(of_stage[name, stage], total[name], name) for name, slots in free.items() if slots > 0]
        chosen = min(candidates)[2]
        placement[subtask] = chosen
        free[chosen] -= 1
        total[chosen] += 1
        of_stage[chosen, stage] += 1
    return placement


def _check_slots(task_managers: Sequence[TaskManagerLoad], needed: int) -> None:
    names = Counter(manager.name for manager in task_managers)
    for name, count in names.items():
        if count > 1:
            raise ValueError(f"task manager {name} is listed {count} times")
    free = sum(manager.free_slots for manager in task_managers)
    if free >= needed:
        return
    listed = ", ".join(
        f"{manager.name}: {manager.free_slots} of {manager.quota} free"
        for manager in sorted(task_managers, key=lambda manager: manager.name)
    )
    raise PlacementError(
        f"the job needs {needed} slots, but {free} are free ({listed or 'no task manager is registered'}); "
        "start another task manager, raise taskManager.operator_quota or lower the parallelism"
    )
