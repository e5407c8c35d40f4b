"""What was rejected, and whether a job may go on with it. Pure: reports in, totals and verdicts out.

Sources *reject records* that they cannot read. Steps have *rows put aside* that make them raise (poison). Both fail a
job when it is too large a share of what they were given, and if it is strict the first one does.

A deployment that ends before a checkpoint is complete is taken back, and so is what its steps put aside: their rows
come again. Sources count on over restarts by themselves: the count is in their snapshots.
Their share is that of the deployment, since what was read before is not counted on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weir.types import SubtaskId

#: At the end of a job no more may have been rejected than this share, however few rows that are.
SHARE_AT_END = 0.5


@dataclass(frozen=True, slots=True)
class FirstReject:
    """The first record or row that was rejected."""

    #: One line.
    reason: str
    #: Input file, and byte offset or row number there; "" and -1 where a step put a row aside.
    source: str
    position: int
    #: The dead-letter file, on the machine of its task manager; "": it does not last.
    dead_letters: str

    def __str__(self) -> str:
        place = f"{self.source} at {self.position}: " if self.position >= 0 else ""
        where = f"; dead letters: {self.dead_letters}" if self.dead_letters else ""
        return f"{place}{self.reason}{where}"


@dataclass(frozen=True, slots=True)
class Rejects:
    """What a step rejected: in one subtask as it reports them, or in all."""

    step: str
    is_source: bool
    #: Rows that came to a step, with those put aside, in the deployments that count; records of a source in the latest.
    rows_in: int
    rejected: int
    first: FirstReject | None = None
    #: Of ``rejected``, those of a source in the latest deployment.
    rejected_here: int = 0

    @property
    def judged(self) -> int:
        """Rejected ones among ``rows_in``."""
        return self.rejected_here if self.is_source else self.rejected

    @property
    def share(self) -> float:
        """Rejected ones among all, 0 to 1."""
        return self.judged / self.rows_in if self.rows_in else float(self.judged > 0)

    @property
    def told(self) -> str:
        """Return a line for logs: how many, why, and where they are."""
        text = (
            f"source {self.step!r} rejected {self.rejected:,} record{'s' if self.rejected > 1 else ''}"
            if self.is_source
            else f"step {self.step!r} had {self.rejected:,} of {self.rows_in:,} rows put aside"
        )
        return f"{text}; the first: {self.first}" if self.first is not None else text


def _sum(parts: Iterable[Rejects], first: FirstReject | None) -> Rejects:
    items = list(parts)
    firsts = [first, *(item.first for item in items)]
    return Rejects(
        items[0].step,
        items[0].is_source,
        sum(item.rows_in for item in items),
        sum(item.rejected for item in items),
        next((item for item in firsts if item is not None), None),
        sum(item.rejected_here for item in items),
    )


class RejectLedger:
    """The rejected rows of one job; the control plane feeds every report to it."""

    def __init__(self, share_max: float, grace: int, *, strict: bool) -> None:
        """The settings ``dead_letter_share_max``, ``dead_letter_grace`` (rows) and ``strict``.

        Raises:
            ValueError: they make no sense.
        """
        if not 0 <= share_max <= 1 or grace < 0:
            raise ValueError(f"share_max {share_max} is from 0 to 1, grace {grace} at least 0")
        self._share_max = share_max
        self._grace = grace
        self._strict = strict
        #: Of this deployment, as reported last.
        self._now: dict[tuple[SubtaskId, str], Rejects] = {}
        #: Of subtasks and deployments that have ended.
        self._before: dict[str, Rejects] = {}
        self._firsts: dict[str, FirstReject] = {}

    def take(self, subtask: SubtaskId, items: Iterable[Rejects]) -> None:
        """A subtask's report, which replaces its earlier one of this deployment."""
        for item in items:
            self._now[subtask, item.step] = item
            if item.first is not None:
                self._firsts.setdefault(item.step, item.first)

    def retired(self, subtask: SubtaskId) -> None:
        """A rescale has ended a subtask; its index can be in use again."""
        for key in [key for key in self._now if key[0] == subtask]:
            self._keep(self._now.pop(key))

    def begin_generation(self, *, keeps: bool) -> None:
        """The job is deployed anew; ``keeps``: from a checkpoint of the deployment that has ended."""
        ended, self._now = self._now, {}
        for item in ended.values():
            if keeps and not item.is_source:
                self._keep(item)

    def _keep(self, item: Rejects) -> None:
        known = [self._before[item.step]] if item.step in self._before else []
        self._before[item.step] = _sum([*known, replace(item, first=None)], None)

    @property
    def totals(self) -> list[Rejects]:
        """Return the rejects of each step that has some, in the order of their names."""
        by_step: dict[str, list[Rejects]] = {}
        items = (*self._before.values(), *self._now.values())
        # With every report of every subtask, and mostly there are none.
        if not any(item.rejected for item in items):
            return []
        for item in items:
            by_step.setdefault(item.step, []).append(item)
        sums = [_sum(parts, self._firsts.get(step)) for step, parts in sorted(by_step.items())]
        return [item for item in sums if item.rejected]

    def verdict(self, *, at_end: bool = False) -> str:
        """Why the job must fail, one line; empty if it may go on.

        Args:
            at_end: all subtasks have finished: few rows are judged too.
        """
        for item in self.totals:
            if self._strict:
                return f"{item.told}; a strict job takes none: mend it, or run without --strict (controlPlane.strict)"
            if limit := self._limit(item, at_end=at_end):
                mend = "the schema or the input" if item.is_source else "the step"
                return (
                    f"{item.told}; that is {item.share:.1%}, {limit}: mend {mend}, or raise "
                    "controlPlane.dead_letter_share_max"
                )
        return ""

    def _limit(self, item: Rejects, *, at_end: bool) -> str:
        """The limit that is passed, in words."""
        if item.judged > self._grace and item.share > self._share_max:
            return (
                f"and at most {self._share_max:.1%} may be once it is more than {self._grace:,} rows "
                "(dead_letter_grace)"
            )
        if at_end and item.is_source and item.judged and item.share >= 1:
            return "and none was good"
        share_at_end = max(self._share_max, SHARE_AT_END)
        if at_end and item.share > share_at_end:
            return f"and at the end of a job at most {share_at_end:.1%} may be, however few"
        return ""
