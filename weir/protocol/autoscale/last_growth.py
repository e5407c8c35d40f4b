"""Whether the subtasks that a stage got last are of use: without that it gets no more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from weir.protocol.autoscale.measures import StageMeasure

#: Subtasks that were added are to take over at least this part of the work, and of the rows, that they could do.
_USED_MIN = 0.25
#: With fewer rows than this part of those before, something else than the growth has changed.
_SAME_MIN = 0.8
#: A subtask that is busy for so much of its time limits the stage.
_FULL = 0.9


@dataclass(slots=True)
class LastGrowth:
    """The growth with which a stage got the subtasks that it has."""

    before: int
    after: int
    #: Subtasks that were busy before it, on average, as ``StageMeasure.busy``, and rows that came to them.
    busy: float
    rows_per_s: float
    #: After the growth before this one there were fewer rows than before it.
    had_fewer_rows: bool = False
    #: As :meth:`judge` found it: that there are more rows, or fewer.
    brought_rows: bool = True
    has_fewer_rows: bool = False
    _is_judged: bool = False

    def judge(self, stage: StageMeasure, *, is_over: bool) -> None:
        """Note what the growth has brought, once: rows that take longer some minutes later say nothing about it.

        Args:
            stage: the first measurement of a whole window after the growth; later ones change nothing.
            is_over: the stage is overloaded all the same.
        """
        if self._is_judged or stage.parallelism != self.after:
            return
        self._is_judged = True
        rows_per_s = stage.rows_in_per_s
        if not is_over or self._has_more(rows_per_s):
            return
        self.has_fewer_rows = rows_per_s < _SAME_MIN * self.rows_per_s
        # The first time that there are fewer, each takes longer for another reason. More subtasks are of use then.
        self.brought_rows = self.has_fewer_rows and not self.had_fewer_rows

    def in_vain(self, stage: StageMeasure) -> str:
        """Why the stage gets no more, in words; empty: the growth helped, or nobody can tell.

        Two things tell. Subtasks that were added have no work: it is in a few keys. Or they have, and all of them
        together process no more rows than before: what each of them waits for, or computes on, does not grow with them.
        """
        fullest = max((each.busy for each in stage.subtasks), default=0.0)
        if stage.parallelism != self.after or fullest < _FULL:
            return ""
        begun = f"the growth from {self.before} to {self.after} subtasks helped little, so it gets no more: "
        if stage.busy - self.busy < _USED_MIN * (self.after - self.before):
            return begun + (
                f"one is busy all the time, but of all {self.after} on average {stage.busy:.1f}; a few keys may have "
                "most of the rows"
            )
        if self.brought_rows or self._has_more(stage.rows_in_per_s):
            return ""
        return begun + (
            f"{self.rows_per_s:,.0f} rows a second came through before it, and {stage.rows_in_per_s:,.0f} do now, "
            "though all are busy; what they wait for may be the limit"
        )

    def _has_more(self, rows_per_s: float) -> bool:
        """Whether subtasks that were added process their part of what each did before."""
        return rows_per_s >= self.rows_per_s * (1 + _USED_MIN * (self.after - self.before) / self.before)
