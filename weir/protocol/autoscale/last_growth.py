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
class Recent:
    """Busy subtasks and rows of a stage of late: later looks count more. A batch may take longer than a window."""

    busy: float
    rows_per_s: float
    begin_s: float
    at_s: float

    @classmethod
    def of(cls, at_s: float, stage: StageMeasure) -> Recent:
        """Begin with one look."""
        return cls(stage.busy, stage.rows_in_per_s, at_s, at_s)

    def add(self, at_s: float, stage: StageMeasure, span_s: float) -> None:
        """Take in a look; those of more than ``span_s`` ago count little."""
        weight, self.at_s = min((at_s - self.at_s) / span_s, 1.0), at_s
        self.busy += weight * (stage.busy - self.busy)
        self.rows_per_s += weight * (stage.rows_in_per_s - self.rows_per_s)


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
    #: As :meth:`judge` found it.
    brought_rows: bool = True
    _is_judged: bool = False

    def judge(self, recent: Recent, *, is_over: bool, is_last: bool) -> None:
        """Note what the growth has brought, once: rows that take longer some minutes later say nothing about it.

        Args:
            recent: the stage since the growth.
            is_over: the stage is overloaded all the same.
            is_last: there is no more time for more rows.
        """
        if self._is_judged or (is_over and not is_last):
            return
        self._is_judged = True
        # Without an overload it was enough.
        self.brought_rows = not is_over or self._has_more(recent)

    def has_fewer_rows(self, recent: Recent) -> bool:
        """Whether there are fewer rows than before the growth."""
        return recent.rows_per_s < _SAME_MIN * self.rows_per_s

    def in_vain(self, stage: StageMeasure, recent: Recent) -> str:
        """Why the stage gets no more, in words; empty: the growth helped, or nobody can tell.

        Two things tell. Subtasks that were added have no work: it is in a few keys. Or they have, and all of them
        together process no more rows than before: what each of them waits for, or computes on, does not grow with them.
        """
        fullest = max((each.busy for each in stage.subtasks), default=0.0)
        if stage.parallelism != self.after or fullest < _FULL:
            return ""
        begun = f"the growth from {self.before} to {self.after} subtasks helped little, so it gets no more: "
        if recent.busy - self.busy < _USED_MIN * (self.after - self.before):
            return begun + (
                f"one is busy all the time, but of all {self.after} on average {recent.busy:.1f}; a few keys may have "
                "most of the rows"
            )
        if self.brought_rows or self._has_more(recent):
            return ""
        if self.has_fewer_rows(recent) and not self.had_fewer_rows:
            # The first time, each takes longer for another reason, as far as anybody can tell.
            return ""
        return begun + (
            f"{self.rows_per_s:,.0f} rows a second came through before it, and {recent.rows_per_s:,.0f} do now, "
            "though all are busy; what they wait for may be the limit"
        )

    def _has_more(self, recent: Recent) -> bool:
        """Whether subtasks that were added process their part of what each did before."""
        return recent.rows_per_s >= self.rows_per_s * (
            1 + _USED_MIN * (self.after - self.before) / self.before
        )
