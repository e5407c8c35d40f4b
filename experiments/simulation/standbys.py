"""Watches whose standbys take over in a simulated run: production decides, and this module compares."""

from __future__ import annotations

from collections.abc import Callable

from control_plane.job.standbys import Standbys
from experiments.simulation.world import Violation
from weir.protocol.job.job_machine import JobState
from weir.types import SubtaskId

#: Later than the placement that asked.
_AFTER_MS = 0.0


class WatchedStandbys(Standbys):
    """Checks what was chosen, and that the subtasks of one task manager that is lost are placed at its standby."""

    quota: int
    #: Does something after a time.
    later: Callable[[float, Callable[[], None]], None]
    #: Called with each takeover by a standby.
    took_over: Callable[[], None]

    def by_owner(self) -> dict[str, tuple[str, ...]]:
        """See the base class."""
        found = super().by_owner()
        self._check_choice(found)
        if self._avoided():
            return found
        members = {member.name for member in self._task_managers.members()}
        preferred, generation = dict(self._job.preferred), self._job.identity.generation
        lost = set(preferred.values()) - members
        names = [name for home in lost for name in found.get(home, ()) if name in members]
        here = [subtask for subtask in self._job.graph.subtasks() if subtask in preferred]
        at_best = sum(preferred[subtask] in (*names[:1], *lost) for subtask in here)
        if len(lost) == 1 and names and at_best <= self.quota:
            moved = [subtask for subtask in here if preferred[subtask] in lost]
            self.later(_AFTER_MS, lambda: self._check_placement(generation, moved, names[0]))
        return found

    def _check_choice(self, chosen: dict[str, tuple[str, ...]]) -> None:
        for owner, names in chosen.items():
            if owner in names or len(set(names)) != len(names) or len(names) > self._config.standby_replicas:
                raise Violation(f"{owner} has the standbys {names}")

    def _check_placement(self, generation: int, moved: list[SubtaskId], name: str) -> None:
        job = self._job
        if job.identity.generation != generation or job.state is not JobState.DEPLOYING:
            return
        elsewhere = [str(subtask) for subtask in moved if job.machine.placement.get(subtask) != name]
        if elsewhere:
            raise Violation(f"{', '.join(elsewhere)} did not go to the standby {name}")
        self.took_over()
