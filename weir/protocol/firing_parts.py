"""How much of what one watermark makes due fires at once, so that barriers never wait long for a slow function. Pure.

What is due fires in the order of time: so a part is all that is due up to a time, or some of what is due at one time.
How far that time may lie ahead, and how many may fire together, follows from how long the latest parts took.
"""

from __future__ import annotations

from weir.protocol.part_rows import PART_S, PartRows

#: How much one part may raise the span of the next.
_GROWTH_MAX = 4
_SPAN_MS_MAX = 1 << 60


class FiringParts:
    """Keeps the parts of an operator that fires in parts, called by its subtask's thread."""

    def __init__(self, count_max: int, *, is_timed: bool = True) -> None:
        """``count_max``: of what fires in one part; ``is_timed``: a part is bounded by its time, too."""
        self._count_max, self._is_timed = count_max, is_timed
        self._counts = PartRows(count_max)
        self._span_ms = 0 if is_timed else _SPAN_MS_MAX

    @property
    def count(self) -> int:
        """Fire at most so many."""
        return self._counts.rows if self._is_timed else self._count_max

    @property
    def longest_s(self) -> float:
        """Seconds after which a part ends, though more was to fire in it."""
        return PART_S

    def until_ms(self, first_ms: int, last_ms: int) -> int:
        """The time up to which the next part fires, if the first is due at ``first_ms`` and all up to ``last_ms``."""
        return min(first_ms + self._span_ms, last_ms)

    def narrowed_ms(self, first_ms: int, until_ms: int) -> int:
        """More than :attr:`count` is due up to ``until_ms``: an earlier time, at the earliest the first one."""
        self._span_ms = (until_ms - first_ms) // _GROWTH_MAX
        return first_ms + self._span_ms

    def took(self, count: int, elapsed_s: float) -> None:
        """Note that so many fired, in so many seconds."""
        if not self._is_timed:
            elapsed_s = 0.0
        self._counts.took(max(count, 1), elapsed_s)
        if elapsed_s * _GROWTH_MAX <= PART_S and count < self.count:
            self._span_ms = min(max(self._span_ms * _GROWTH_MAX, 1), _SPAN_MS_MAX)
