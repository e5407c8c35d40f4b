"""What the autoscaler decides from: what subtasks and task managers did in the last seconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class SubtaskMeasure:
    """A subtask of late; shares are of the time, 0 to 1."""

    subtask_index: int
    #: Name of the task manager that runs it.
    task_manager: str
    rows_in_per_s: float = 0.0
    rows_out_per_s: float = 0.0
    busy: float = 0.0
    #: Waiting until those after it take more.
    blocked: float = 0.0
    #: Processors that its thread used; None: not known, then it counts as computing while it is busy.
    processors: float | None = None
    #: The key group of which most of its rows were, and its share of them; 0: not known.
    hot_group: int = 0
    hot_group_share: float = 0.0
    #: The fullest of its input channels, as a share of what a channel holds.
    queue_share: float = 0.0
    #: False: its figures are missing, and nothing is decided.
    is_known: bool = True

    @property
    def computing(self) -> float:
        """Processors that it uses."""
        return self.busy if self.processors is None else min(self.processors, max(self.busy, 0.0))


@dataclass(frozen=True)
class StageMeasure:
    """A stage of late; its sums over subtasks are asked for again and again."""

    stage: int
    name: str
    subtasks: Sequence[SubtaskMeasure]
    #: Stages whose rows come to it; a source has none.
    producers: Sequence[int] = ()
    #: Key groups that its subtasks share; 0: it has none.
    group_count: int = 0
    #: Of a source: partitions, of which each is read by one subtask; 0: not known.
    partitions: int = 0
    #: Of a source: rows that should have been read by now, and how many more there are each second; None: not known.
    waiting: float | None = None
    waiting_more_per_s: float = 0.0
    #: Why the stage cannot be scaled; empty: it can.
    fixed: str = ""
    #: Rows in the channels before it, and how many more there are each second.
    queued: float = 0.0
    queued_more_per_s: float = 0.0

    @property
    def parallelism(self) -> int:
        """Number of subtasks."""
        return len(self.subtasks)

    @property
    def is_source(self) -> bool:
        """Return whether no stage is before it."""
        return not self.producers

    @property
    def title(self) -> str:
        """What reasons call it."""
        return f"{'source' if self.is_source else f'stage {self.stage}'} `{self.name}`"

    @cached_property
    def rows_in_per_s(self) -> float:
        """Rows that come to all subtasks."""
        return sum(each.rows_in_per_s for each in self.subtasks)

    @cached_property
    def rows_out_per_s(self) -> float:
        """Rows that leave all subtasks."""
        return sum(each.rows_out_per_s for each in self.subtasks)

    @cached_property
    def busy(self) -> float:
        """Subtasks that were busy, on average: 1.5 of 2 with 75 % each."""
        return sum(each.busy for each in self.subtasks)

    @cached_property
    def blocked(self) -> float:
        """Share of the subtask that is held back most."""
        return max((each.blocked for each in self.subtasks), default=0.0)

    @cached_property
    def queue_share(self) -> float:
        """The fullest input channel, as a share of what it holds."""
        return max((each.queue_share for each in self.subtasks), default=0.0)

    @property
    def hot_group(self) -> tuple[int, float]:
        """The key group with most rows, and its share of the rows of the stage; (0, 0.0): not known."""
        rate = self.rows_in_per_s
        if rate <= 0 or not self.group_count:
            return 0, 0.0
        share, group = max(
            (each.hot_group_share * each.rows_in_per_s / rate, each.hot_group) for each in self.subtasks
        )
        return (group, share) if share > 0 else (0, 0.0)


@dataclass(frozen=True, slots=True)
class TaskManagerMeasure:
    """A task manager of late."""

    name: str
    #: Task managers of one host share its processors and its memory.
    host: str
    #: Subtasks that it still takes, and those that it runs.
    free_slots: int = 0
    subtasks: int = 0
    #: Processors of the host, and those that this process used; 0 and None: not known.
    processors: int = 0
    processors_used: float | None = None
    #: Memory that the process has in use, and that the host has; 0: not known.
    resident_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobMeasure:
    """A job of late; stages are in topological order, ``stages[i].stage == i``."""

    stages: Sequence[StageMeasure]
    task_managers: Sequence[TaskManagerMeasure] = ()

    @property
    def free_slots(self) -> int:
        """Subtasks that all task managers together still take."""
        return sum(each.free_slots for each in self.task_managers)
