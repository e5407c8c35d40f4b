"""Who takes part in the checkpoints of a deployment: where subtasks are, which have ended, which have retired. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from weir.protocol.checkpoints.manifest import SubtaskPart
from weir.protocol.job.event_counts import NO_EVENTS, EventCounts
from weir.types import SubtaskId


class CheckpointParties:
    """Used by ``CheckpointMachine``, which decides what follows from a change."""

    def __init__(self) -> None:
        #: Where each subtask of the job is, and each retired one that is not settled.
        self.placement: dict[SubtaskId, str] = {}
        #: What each subtask that has ended delivered as its last part.
        self.last_parts: dict[SubtaskId, SubtaskPart] = {}
        #: By stage: what those have counted that are settled.
        self.settled: dict[int, EventCounts] = {}
        #: Task managers that are gone.
        self.lost: set[str] = set()
        self._sources: frozenset[SubtaskId] = frozenset()
        #: Retired subtasks, with the complete checkpoint that has their last part; None before.
        self._retired: dict[SubtaskId, int | None] = {}

    def begin(self, placement: Mapping[SubtaskId, str], sources: frozenset[SubtaskId]) -> None:
        """A deployment runs; nothing is left of an earlier one."""
        self.placement, self._sources = dict(placement), sources
        self.last_parts, self._retired, self.settled, self.lost = {}, {}, {}, set()

    def retire(self, subtasks: Iterable[SubtaskId]) -> None:
        """A rescale took these out of the job; they count until their sinks have delivered."""
        self._retired |= {s: None for s in subtasks if s in self.placement and s not in self._retired}

    def keep(self, subtasks: Iterable[SubtaskId]) -> None:
        """The job is finishing with these; what retired before and is not settled still counts."""
        kept = {*subtasks, *self._retired}
        self.placement = {s: name for s, name in self.placement.items() if s in kept}
        self.last_parts = {s: part for s, part in self.last_parts.items() if s in kept}

    def include(self, checkpoint_id: int, parts: Mapping[SubtaskId, SubtaskPart]) -> None:
        """A checkpoint with these parts is complete."""
        for subtask, included in self._retired.items():
            # A rescale may have begun while this was being committed: then only an earlier part is in it.
            last = self.last_parts.get(subtask)
            if included is None and last is not None and parts.get(subtask) is last:
                self._retired[subtask] = checkpoint_id

    def settle(
        self, checkpoint_id: int, unreached: Collection[str], undelivered: Collection[SubtaskId]
    ) -> None:
        """Forget who retired before a complete checkpoint, which all but the unreached task managers know of."""
        for subtask, included in list(self._retired.items()):
            was_told = self.placement[subtask] not in (*unreached, *self.lost) and subtask not in undelivered
            if included is not None and included <= checkpoint_id and was_told:
                del self._retired[subtask], self.placement[subtask]
                last = self.last_parts.pop(subtask, None)
                stage = subtask.stage_index
                counts = NO_EVENTS if last is None else last.counts
                self.settled[stage] = self.settled.get(stage, NO_EVENTS) + counts

    def lose(self, task_manager: str) -> bool:
        """A task manager is gone; whether a part was still to come from there, or a retired sink had to deliver."""
        self.lost.add(task_manager)
        return any(
            name == task_manager and (subtask not in self.last_parts or subtask in self._retired)
            for subtask, name in self.placement.items()
        )

    def awaited(self) -> set[SubtaskId]:
        """Subtasks that have not ended."""
        return set(self.placement.keys() - self.last_parts.keys())

    def live_sources(self) -> set[SubtaskId]:
        """Sources that have not ended."""
        return {s for s in self._sources if s in self.placement and s not in self.last_parts}

    def after_ended_sources(self) -> set[SubtaskId]:
        """Subtasks that barriers may not reach: those that are no sources and have not ended, once a source has."""
        has_ended = any(source in self.last_parts for source in self._sources)
        return self.awaited() - self._sources if has_ended else set()

    def task_managers(self) -> set[str]:
        """Return the task managers that have, or had, a subtask; lost ones, too."""
        return set(self.placement.values())

    @property
    def is_anything_unsettled(self) -> bool:
        """Return whether there is a retired subtask whose sinks have not been told to deliver what they wrote last."""
        return bool(self._retired)

    def unsettled_at(self, task_manager: str) -> list[SubtaskId]:
        """Retired subtasks there whose sinks have not been told to deliver what they wrote last."""
        return sorted(s for s in self._retired if self.placement[s] == task_manager)

    def rules(self) -> Mapping[str, bool]:
        """What must hold between events."""
        return {
            "last parts are of the job's subtasks": self.last_parts.keys() <= self.placement.keys(),
            "retired subtasks are known": self._retired.keys() <= self.placement.keys(),
        }
