"""The subtasks of a job: where each one is, what it was last known to do, and which the job can do without. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from weir.protocol.job.job_model import UNFINISHED_ENDS, Assignment, SubtaskStatus
from weir.types import SubtaskId


class JobSubtasks:
    """Used by ``JobMachine``, which decides what follows from a change."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """Begin without subtasks; ``note`` takes what belongs into the history."""
        self._note = note
        self.statuses: dict[SubtaskId, SubtaskStatus] = {}
        #: The task manager of each; empty before the deployment.
        self.placement: dict[SubtaskId, str] = {}
        #: Added by a rescale that may still be taken back: the job goes on without them.
        self.provisional: set[SubtaskId] = set()
        self.retiring: set[SubtaskId] = set()
        #: No longer part of the job; late reports about them have no effect.
        self.removed: set[SubtaskId] = set()

    def begin(self, subtasks: Iterable[SubtaskId]) -> None:
        """A deployment with these is to come; nothing is left of an earlier one."""
        self.statuses = dict.fromkeys(sorted(subtasks), SubtaskStatus.WAITING)
        self.placement = {}
        self.provisional, self.retiring, self.removed = set(), set(), set()

    def add(self, placement: Mapping[SubtaskId, str]) -> None:
        """A rescale adds these; it may still be taken back."""
        self.statuses |= dict.fromkeys(sorted(placement), SubtaskStatus.DEPLOYING)
        self.placement |= placement
        self.provisional |= placement.keys()
        self.removed -= placement.keys()

    def drop_if_expendable(self, subtask: SubtaskId) -> bool:
        """Remove a subtask that has ended and is not needed, while the job runs; whether it was."""
        status = self.statuses[subtask]
        retired = subtask in self.retiring and status is SubtaskStatus.FINISHED
        given_up = subtask in self.provisional and status in UNFINISHED_ENDS
        if not (retired or given_up):
            return False
        del self.statuses[subtask], self.placement[subtask]
        self.provisional.discard(subtask)
        self.retiring.discard(subtask)
        self.removed.add(subtask)
        self._note(f"{subtask}: removed")
        return True

    def end_all_of(
        self,
        task_manager: str,
        status: SubtaskStatus,
        statuses_before: set[SubtaskStatus],
        only: Collection[SubtaskId] | None = None,
    ) -> bool:
        """Set the status of a task manager's subtasks that have one of the given; whether there were any.

        ``only``: of these; None: of all.
        """
        hit = [
            subtask
            for subtask, name in self.placement.items()
            if name == task_manager
            and self.statuses[subtask] in statuses_before
            and (only is None or subtask in only)
        ]
        for subtask in hit:
            self._note(f"{subtask}: {self.statuses[subtask].value} -> {status.value}")
            self.statuses[subtask] = status
        return bool(hit)

    def assignments(self, subtasks: Iterable[SubtaskId], *, last_stage_first: bool) -> tuple[Assignment, ...]:
        """Where these subtasks are, by stage and index."""
        sign = -1 if last_stage_first else 1
        ordered = sorted(subtasks, key=lambda subtask: (sign * subtask.stage_index, subtask.subtask_index))
        return tuple(Assignment(subtask, self.placement[subtask]) for subtask in ordered)
