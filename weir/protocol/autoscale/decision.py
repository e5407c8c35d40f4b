"""What an autoscaler says: which stages are to have how many subtasks, why, and what stands in the way. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Another number of subtasks for one stage."""

    stage: int
    #: What reasons call it: "stage 3 `score`".
    title: str
    before: int
    after: int
    reason: str
    #: It is for more than the present load, which is expected to rise.
    is_ahead: bool = False

    @property
    def is_growth(self) -> bool:
        """Return whether it gets more."""
        return self.after > self.before

    @property
    def text(self) -> str:
        """The change and its reason, one line."""
        return f"{self.title} from {self.before} to {self.after} subtasks: {self.reason}"


@dataclass(frozen=True, slots=True)
class Decision:
    """Changes, those that add subtasks first; without any, ``waits`` or ``remarks`` say why."""

    changes: tuple[Change, ...] = ()
    #: Why nothing is decided now; empty: it was looked at, and nothing is to be done.
    waits: str = ""
    #: Stages that cannot have what they need, and why.
    remarks: tuple[str, ...] = ()
    #: Subtasks that were to be added and for which no task manager has a free slot.
    slots_missing: int = 0

    @property
    def line(self) -> str:
        """Return all of it in one line."""
        parts = [change.text for change in self.changes] or ([self.waits] if self.waits else [])
        parts += self.remarks
        return "; ".join(parts) or "no stage needs more or fewer subtasks"
