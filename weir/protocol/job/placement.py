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


def place(
    task_managers: Sequence[TaskManagerLoad],
    subtasks: Iterable[SubtaskId],
    preferred: Mapping[SubtaskId, str] | None = None,
    standbys: Mapping[str, Sequence[str]] | None = None,
) -> dict[SubtaskId, str]:
    """Choose a task manager for every subtask; the result is in deployment order, sinks first.

    Each subtask goes, among task managers with a free slot, to the one that runs the fewest of its stage
    (so a stage spreads before it doubles up), then the fewest altogether, then the first by name.

    Args:
        task_managers: who is here.
        subtasks: what is to be placed.
        preferred: at a recovery, where subtasks were. They stay there if that task manager is here and has room,
            for their state is there. Those of one that is gone move together to the one with the fewest subtasks
            that has room for all of them, so that its state image can be opened as a whole there; if there is
            none, as many as possible at a time.
        standbys: by task manager: those that have copies of its state (``standbys.choose_standbys``), the best one
            first. As many of its subtasks as have room go there before others are considered.

    Raises:
        PlacementError: fewer free slots than subtasks; nothing is placed.
    """
    ordered = sorted(set(subtasks), key=lambda subtask: (-subtask.stage_index, subtask.subtask_index))
    _check_slots(task_managers, len(ordered))
    slots = _Slots(task_managers)
    placement: dict[SubtaskId, str] = {}
    homeless: dict[str, list[SubtaskId]] = {}
    for subtask in ordered:
        home = (preferred or {}).get(subtask)
        if home is None:
            continue
        if slots.free.get(home, 0) > 0:
            placement[subtask] = slots.take(home, subtask)
        else:
            homeless.setdefault(home, []).append(subtask)
    for home, group in sorted(homeless.items(), key=lambda item: (-len(item[1]), item[0])):
        left = group
        for name in (standbys or {}).get(home, ()):
            room = slots.free.get(name, 0)
            placement |= {subtask: slots.take(name, subtask) for subtask in left[:room]}
            left = left[room:]
        while left:
            name = slots.roomiest(len(left))
            room = slots.free[name]
            placement |= {subtask: slots.take(name, subtask) for subtask in left[:room]}
            left = left[room:]
    for subtask in ordered:
        if subtask not in placement:
            placement[subtask] = slots.take(slots.least_loaded(subtask.stage_index), subtask)
    return {subtask: placement[subtask] for subtask in ordered}


class _Slots:
    """Free slots while subtasks are being placed."""

    def __init__(self, task_managers: Sequence[TaskManagerLoad]) -> None:
        self.free = {manager.name: manager.free_slots for manager in task_managers}
        self._total = {manager.name: sum(manager.running.values()) for manager in task_managers}
        self._of_stage = Counter(
            {
                (manager.name, stage): count
                for manager in task_managers
                for stage, count in manager.running.items()
            }
        )

    def take(self, name: str, subtask: SubtaskId) -> str:
        """Use one slot; returns the name back."""
        self.free[name] -= 1
        self._total[name] += 1
        self._of_stage[name, subtask.stage_index] += 1
        return name

    def least_loaded(self, stage: int) -> str:
        """Where a subtask of this stage goes."""
        return min(
            (self._of_stage[name, stage], self._total[name], name)
            for name, slots in self.free.items()
            if slots > 0
        )[2]

    def roomiest(self, count: int) -> str:
        """Where this many subtasks go together: the fewest subtasks, else the most room."""
        fitting = [(self._total[name], name) for name, slots in self.free.items() if slots >= count]
        if fitting:
            return min(fitting)[1]
        return min((-slots, name) for name, slots in self.free.items())[1]


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
