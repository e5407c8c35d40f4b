"""How many rows are taken, or timers fire, at once: barriers and commands never wait long for a slow function. Pure.

What a batch takes is a fixed part and a part for each row. Both are estimated from the latest batches: where the fixed
part decides, as with a read from a database, smaller batches would make everything slower and nothing sooner.

What one watermark makes due fires in the order of time: so a part is all that is due up to a time, or some of what is
due at one time. How far that time may lie ahead, and how many may fire together, follows from how long the latest parts
took.
"""

from __future__ import annotations

#: Rows of the first batch of a step of which nothing is known, and how much one batch may raise the number, or one part
#: the span of the next.
ROWS_AT_FIRST, _GROWTH_MAX = 16, 4
#: Rows are to take so long, or as long as the fixed part of a batch if that is more; seconds.
PART_S = 0.2
#: And so long where all of it is waiting for a store elsewhere, which reads for many rows in about the same time.
WAITED_PART_S = 1.0
#: Weight of what was known, at each batch.
_KEPT = 0.8
#: Numbers of rows that differ by less say nothing about the fixed part; of their mean.
_SPREAD_MIN = 0.1
_SPAN_MS_MAX = 1 << 60


class PartRows:
    """The rows that a subtask takes at a time; its thread calls the methods."""

    def __init__(self, rows_max: int) -> None:
        """``rows_max``: rows of the largest batch."""
        self._rows_max = rows_max
        #: Take at most so many.
        self.rows = min(ROWS_AT_FIRST, rows_max)
        self._weight = self._n = self._t = self._nn = self._nt = self._waited = 0.0

    @property
    def is_limited(self) -> bool:
        """Return whether larger batches than :attr:`rows` are to be cut: no step is slow else, whatever a batch has."""
        return self.rows < self._rows_max

    def took(self, rows: int, elapsed_s: float, waited_s: float = 0.0) -> None:
        """Note that rows were processed in so many seconds, of which so many went by waiting for a store elsewhere."""
        if elapsed_s * _GROWTH_MAX <= PART_S:
            if self.rows < self._rows_max and rows * 2 >= self.rows:
                self.rows = min(self.rows * _GROWTH_MAX, self._rows_max)
            self._weight = 0.0
            return
        kept = _KEPT if self._weight else 0.0
        self._weight = self._weight * kept + 1
        self._n, self._t = self._n * kept + rows, self._t * kept + elapsed_s
        self._waited = self._waited * kept + waited_s
        self._nn, self._nt = self._nn * kept + rows * rows, self._nt * kept + rows * elapsed_s
        wanted = self._wanted()
        grown = min(max(wanted, 1.0), self.rows * _GROWTH_MAX, self._rows_max)
        # Few rows say little of what many would take.
        if grown <= self.rows or rows * 2 >= self.rows:
            self.rows = int(grown)

    def _wanted(self) -> float:
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        spread = self._nn / self._weight - mean_n * mean_n
        row_s, fixed_s = mean_t / mean_n, 0.0
        if spread > (_SPREAD_MIN * mean_n) ** 2:
            row_s = (self._nt / self._weight - mean_n * mean_t) / spread
            fixed_s = mean_t - row_s * mean_n
        if row_s <= 0:
            # Fewer rows took longer: something else does.
            return float(self.rows)
        part_s = PART_S + (WAITED_PART_S - PART_S) * min(self._waited / self._t, 1.0)
        return max(part_s, fixed_s) / row_s


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
