"""When a subtask passes its watermark on: at once when it rises, but not too often. Pure; one per subtask."""

from __future__ import annotations

_MIN_MS = -(2**63)
#: Watermarks that a subtask sends in one interval of its sources, at most.
_PER_INTERVAL_MAX = 3


class WatermarkForward:
    """Sources send their watermarks at the same moments, so that the combined one rises once for each of them.

    Where it rises more often, the first is passed on at once and the next ones are gathered for a third of the
    interval. So the delays of all stages together are far below one interval.
    """

    def __init__(self, interval_ms: float) -> None:
        """``interval_ms``: between two watermarks of a source."""
        self._spacing_s = interval_ms / 1e3 / _PER_INTERVAL_MAX
        self._sent_ms = _MIN_MS
        self._sent_s = float("-inf")
        #: Monotonic second at which :meth:`take` has something; infinity: nothing waits.
        self.due_s = float("inf")

    def take(self, visible_ms: int, now_s: float) -> bool:
        """Whether ``visible_ms`` is to be sent now; the caller does so then."""
        if visible_ms <= self._sent_ms:
            self.due_s = float("inf")
            return False
        self.due_s = self._sent_s + self._spacing_s
        if now_s < self.due_s:
            return False
        self._sent_ms, self._sent_s, self.due_s = visible_ms, now_s, float("inf")
        return True

    def again(self) -> None:
        """Consumers were told of idleness, which is over: they need the watermark, also if it has not risen."""
        self._sent_ms = _MIN_MS
