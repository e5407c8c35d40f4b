"""How loaded the subtasks of a job were of late, as the headline and the page are made from. Pure.

All shares are of the time of a window of some seconds, 0 to 1, not since the start: a step that is slow now must not
hide behind an hour in which it was fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Hot groups and keys of a stage that are told of.
_HOT_PARTS_MAX = 5


@dataclass(frozen=True, slots=True)
class HotPart:
    """A key group, or one key of it, and its share of the rows of late of a subtask or of a stage, 0 to 1."""

    group: int
    share: float
    #: As text; empty: the whole group is meant.
    key: str = ""


@dataclass(frozen=True, slots=True)
class SubtaskLoad:
    """Load of a subtask of late."""

    subtask_index: int
    busy: float = 0.0
    #: Waiting until those after it take more.
    blocked: float = 0.0
    rows_in_per_s: float = 0.0
    rows_out_per_s: float = 0.0
    #: How long the oldest row in its input has waited.
    queued_age_ms: float = 0.0
    #: Rows that wait in its input, and how many more there are each second.
    queued_rows: int = 0
    queued_more_per_s: float = 0.0
    #: The key group of which most of its rows were, and its share of them; 0: not known.
    hot_group: int = 0
    hot_group_share: float = 0.0
    #: Event time behind the clock; None: it has none.
    watermark_lag_ms: int | None = None
    #: Of a source: records that wait to be read where they come from, and how many more there are each second; 0: none,
    #: or the source cannot tell.
    behind: int = 0
    behind_more_per_s: float = 0.0
    has_ended: bool = False
    #: There were reports over the whole window.
    is_known: bool = True
    #: Processors that its thread used; None: not known.
    processors: float | None = None
    #: Batches that wait in its input.
    queue_depth: int = 0
    #: Records of a source by partition are known, or rows that a rate says were due.
    knows_waiting: bool = False
    partitions: int = 0
    #: Rows of a source with a rate that were due and have not been read, and how many more there are each second.
    overdue: int = 0
    overdue_more_per_s: float = 0.0
    #: Its key groups and keys with most rows, the hottest first.
    hot_groups: tuple[HotPart, ...] = ()
    hot_keys: tuple[HotPart, ...] = ()


@dataclass(frozen=True, slots=True)
class StageLoad:
    """Load of a stage of late."""

    stage: int
    name: str
    subtasks: Sequence[SubtaskLoad]
    #: Stages whose rows come to it; a source has none.
    producers: Sequence[int] = ()

    @property
    def busy(self) -> float:
        """Share of its busiest subtask: the others wait for it."""
        return max((each.busy for each in self.subtasks if not each.has_ended), default=0.0)

    @property
    def blocked(self) -> float:
        """Share of the subtask that is held back most."""
        return max((each.blocked for each in self.subtasks if not each.has_ended), default=0.0)

    @property
    def rows_in_per_s(self) -> float:
        """Rows that come to all subtasks."""
        return sum(each.rows_in_per_s for each in self.subtasks)

    @property
    def rows_out_per_s(self) -> float:
        """Rows that leave all subtasks."""
        return sum(each.rows_out_per_s for each in self.subtasks)

    @property
    def behind(self) -> int:
        """Records that wait to be read by all subtasks of a source."""
        return sum(each.behind for each in self.subtasks)

    @property
    def behind_more_per_s(self) -> float:
        """Records by which a source falls behind each second."""
        return sum(each.behind_more_per_s for each in self.subtasks)

    @property
    def queued_age_ms(self) -> float:
        """How long the oldest row before it has waited."""
        return max((each.queued_age_ms for each in self.subtasks), default=0.0)

    @property
    def watermark_lag_ms(self) -> int | None:
        """Lag of the subtask that is farthest behind; None: no subtask has event time."""
        lags = [each.watermark_lag_ms for each in self.subtasks if not each.has_ended]
        return max((lag for lag in lags if lag is not None), default=None)

    @property
    def hot_groups(self) -> list[HotPart]:
        """The key groups with most rows, and their shares of the rows of the stage, the hottest first."""
        return self._hottest([(each, each.hot_groups) for each in self.subtasks])

    @property
    def hot_keys(self) -> list[HotPart]:
        """The keys with most rows, and their shares of the rows of the stage, the hottest first."""
        return self._hottest([(each, each.hot_keys) for each in self.subtasks])

    def _hottest(self, found: Sequence[tuple[SubtaskLoad, Sequence[HotPart]]]) -> list[HotPart]:
        rate = self.rows_in_per_s
        if rate <= 0:
            return []
        shares: dict[tuple[int, str], float] = {}
        # A group that has just moved is told of by both.
        for subtask, parts in found:
            for part in parts:
                share = part.share * subtask.rows_in_per_s / rate
                shares[part.group, part.key] = shares.get((part.group, part.key), 0.0) + share
        hottest = [HotPart(group, share, key) for (group, key), share in shares.items() if share > 0]
        return sorted(hottest, key=lambda part: (-part.share, part.group, part.key))[:_HOT_PARTS_MAX]

    @property
    def hot_group(self) -> tuple[int, float]:
        """The key group with most rows, and its share of the rows of the stage; (0, 0.0): not known."""
        rate = self.rows_in_per_s
        if rate <= 0:
            return 0, 0.0
        shares = (
            (each.hot_group_share * each.rows_in_per_s / rate, each.hot_group) for each in self.subtasks
        )
        share, group = max(shares)
        return (group, share) if share > 0 else (0, 0.0)


@dataclass(frozen=True, slots=True)
class JobLoad:
    """A job of late."""

    #: As of ``JobState``.
    state: str
    stages: Sequence[StageLoad]
    #: What the state needs or why it is so, one line; empty: nothing.
    cause: str = ""
    #: What rows wait for outside of the job.
    waits_for: str = ""
    #: Rows that all sources read per second.
    rows_per_s: float = 0.0
    #: Rows that sources have read since the job began.
    rows_in: int = 0
    #: From when a row was read to when a last stage had taken it; None: no row came of late.
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    #: There were looks enough to tell rates.
    is_measured: bool = True


#: Before the first look.
NOTHING_MEASURED = JobLoad("", (), is_measured=False)
