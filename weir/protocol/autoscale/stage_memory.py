"""What the autoscaler remembers of a stage from one look to the next. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weir.protocol.autoscale.last_growth import LastGrowth, Recent
from weir.protocol.autoscale.load_history import LoadHistory
from weir.protocol.autoscale.measures import StageMeasure

#: The highest load of late has to leave a stage as few subtasks for this part of ``scale_down_after_s``: at the end of
#: an overload each moment that passes leaves it fewer. Where it may lose many, the load must not move meanwhile.
_SETTLED_SHARE = 1 / 9
#: A stage that may lose many subtasks does so unless its load moves by more than so many standard errors.
_ERRORS = 2.0
#: A stage whose load still moves, but does not rise, is left as it is for at most so many times ``scale_down_after_s``.
_MOVING_MAX = 12


@dataclass(slots=True)
class StageMemory:
    """What is remembered of a stage."""

    history: LoadHistory
    #: When its overload, and the chance to shrink, began; None: there is none.
    over_since_s: float | None = None
    may_shrink_since_s: float | None = None
    #: The fewest subtasks that it might have had since then, and since when.
    _shrinks_to: int = 0
    _shrinks_to_since_s: float = -math.inf
    #: When it began to grow last.
    grown_s: float | None = None
    #: What it does since its overload began, or the last change; the growth since which nothing else was changed.
    recent: Recent | None = None
    last_growth: LastGrowth | None = None
    #: The share of the hottest key group, and when it was looked at.
    hot_share: float = 0.0
    hot_at_s: float | None = None
    has_shrunk: bool = False
    #: When it shrank last, if it has not grown since.
    shrunk_s: float = -math.inf
    #: It got fewer than it needs, because a step is bounded.
    is_cut: bool = False
    #: The time after which its load came back; 0: it did not.
    period_s: float = 0.0
    kept_until_s: float = -math.inf

    def period_at(self, at_s: float, longest_s: float) -> float:
        """The time after which the load comes back, if the stage grows now; 0: it has not grown and shrunk before."""
        if self.has_shrunk and self.grown_s is not None:
            return min(at_s - self.grown_s, longest_s)
        return self.period_s

    def has_settled(self, at_s: float, after: int, down_s: float, moving_s: float, *, is_large: bool) -> bool:
        """Note that the stage might have so few subtasks; returns whether waiting would leave it no fewer, or more.

        Args:
            at_s: now.
            after: the subtasks that it might have.
            down_s: ``scale_down_after_s``.
            moving_s: a load that has been falling, or rising, over so long goes on.
            is_large: it loses many, so a load that differs by chance, as on a busy machine, does not keep them.
        """
        if self.may_shrink_since_s is None:
            self.may_shrink_since_s = self._shrinks_to_since_s = at_s
            self._shrinks_to = after
        elif after < self._shrinks_to:
            self._shrinks_to, self._shrinks_to_since_s = after, at_s
        slope = self.history.slope(moving_s)
        if slope <= 0 and at_s - self.may_shrink_since_s >= _MOVING_MAX * down_s:
            return True
        is_moving = slope != 0 or self.history.is_moving(down_s, errors=_ERRORS if is_large else 0.0)
        if is_moving and is_large:
            self._shrinks_to_since_s = at_s
        return not is_moving and at_s - self._shrinks_to_since_s >= _SETTLED_SHARE * down_s

    def hot_share_at(self, at_s: float, stage: StageMeasure, span_s: float) -> float:
        """Take in a measurement; returns the share of the hottest key group as a mean over about so many seconds."""
        share = stage.hot_group[1]
        if self.hot_at_s is None:
            self.hot_share = share
        elif stage.rows_in_per_s > 0:
            self.hot_share += min((at_s - self.hot_at_s) / span_s, 1.0) * (share - self.hot_share)
        self.hot_at_s = at_s
        return self.hot_share
