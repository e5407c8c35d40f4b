"""What the autoscaler remembers of a stage from one look to the next. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from weir.protocol.autoscale.last_growth import LastGrowth, Recent
from weir.protocol.autoscale.load_history import LoadHistory
from weir.protocol.autoscale.measures import StageMeasure


@dataclass(slots=True)
class StageMemory:
    """What is remembered of a stage."""

    history: LoadHistory
    #: When its overload, and the chance to shrink, began; None: there is none.
    over_since_s: float | None = None
    may_shrink_since_s: float | None = None
    #: When it began to grow last.
    grown_s: float | None = None
    #: What it does since its overload began, or the last change; the growth since which nothing else was changed.
    recent: Recent | None = None
    last_growth: LastGrowth | None = None
    #: The share of the hottest key group, and when it was looked at.
    hot_share: float = 0.0
    hot_at_s: float | None = None
    has_shrunk: bool = False
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

    def hot_share_at(self, at_s: float, stage: StageMeasure, span_s: float) -> float:
        """Take in a measurement; returns the share of the hottest key group as a mean over about so many seconds."""
        share = stage.hot_group[1]
        if self.hot_at_s is None:
            self.hot_share = share
        elif stage.rows_in_per_s > 0:
            self.hot_share += min((at_s - self.hot_at_s) / span_s, 1.0) * (share - self.hot_share)
        self.hot_at_s = at_s
        return self.hot_share
