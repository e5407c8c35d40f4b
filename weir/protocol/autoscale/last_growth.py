"""Whether the subtasks that a stage got last are of use: without that it gets no more. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from weir.protocol.autoscale.measures import StageMeasure

#: Subtasks that were added are to take over at least this part of the work that they could do.
_USED_MIN = 0.25
#: A subtask that is busy for so much of its time limits the stage.
_FULL = 0.9


@dataclass(frozen=True, slots=True)
class LastGrowth:
    """The growth with which a stage got the subtasks that it has."""

    before: int
    after: int
    #: Subtasks that were busy before it, on average, as ``StageMeasure.busy``.
    busy: float

    def in_vain(self, stage: StageMeasure) -> str:
        """Why the stage gets no more, in words; empty: the growth helped, or nobody can tell.

        Rows alone would not tell: each may take longer than before the growth. So what counts is the busy time, which
        is rows times what each takes.
        """
        fullest = max((each.busy for each in stage.subtasks), default=0.0)
        gained = stage.busy - self.busy
        if stage.parallelism != self.after or fullest < _FULL:
            return ""
        if gained >= _USED_MIN * (self.after - self.before):
            return ""
        return (
            f"the growth from {self.before} to {self.after} subtasks helped little, so it gets no more: one is busy "
            f"all the time, but of all {self.after} on average {stage.busy:.1f}; a few keys may have most of the rows"
        )
