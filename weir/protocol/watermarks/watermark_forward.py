"""When a subtask sends its watermark: at once when it rises, but not too often. Pure; one per subtask."""

from __future__ import annotations

_MIN_MS = -(2**63)
#: Watermarks that a subtask sends in one interval of its sources, at most; and where rows go with them.
_PER_INTERVAL_MAX, _BUSY_PER_INTERVAL_MAX = 3, 12
#: With so many rows since the last one a watermark costs little beside them, and there is something to wait for it.
_BUSY_ROWS = 32
#: Moments in an interval at which a source may send one sooner.
_SOON_PER_INTERVAL = 8


class WatermarkForward:
    """Sources send their watermarks at the same moments, so that the combined one rises once for each of them.

    Where it rises more often, the first is passed on at once and the next ones are gathered for a third of the
    interval, or less where many rows pass. So the delays of all stages together are far below one interval.
    """

    def __init__(self, interval_ms: float, *, soon: bool = True) -> None:
        """``interval_ms``: between two watermarks of a source; ``soon``: some step of the job waits for them."""
        self._soon = soon
        self._interval_s = interval_ms / 1e3
        self._sent_ms = _MIN_MS
        self._sent_rows = 0
        self._sent_s = float("-inf")
        #: Monotonic second at which :meth:`take` has something; infinity: nothing waits.
        self.due_s = float("inf")

    def take(self, visible_ms: int, now_s: float, rows: int = 0, *, ends_wave: bool = False) -> bool:
        """Return whether ``visible_ms`` is to be sent now; the caller does so then.

        Args:
            visible_ms: the watermark.
            now_s: monotonic seconds.
            rows: passed so far.
            ends_wave: it ends what has just been sent, and consumers wait for it.
        """
        if visible_ms <= self._sent_ms:
            self.due_s = float("inf")
            return False
        is_busy = self._soon and rows - self._sent_rows >= _BUSY_ROWS
        self.due_s = self._sent_s + self._interval_s / (
            _BUSY_PER_INTERVAL_MAX if is_busy else _PER_INTERVAL_MAX
        )
        if now_s < self.due_s and not ends_wave:
            return False
        self._sent_ms, self._sent_s, self.due_s = visible_ms, now_s, float("inf")
        self._sent_rows = rows
        return True

    def take_before_idleness(self, visible_ms: int) -> bool:
        """Whether consumers, whom the caller tells of idleness, were not told of this watermark; nothing waits then."""
        self.due_s = float("inf")
        return visible_ms > self._sent_ms

    def again(self) -> None:
        """Consumers were told of idleness, which is over: they need the watermark, also if it has not risen."""
        self._sent_ms = _MIN_MS


class WatermarkTimes:
    """When a source sends its watermark: at the same moments in all sources, so that combined ones rise once.

    That is once in an interval. A source that has nothing to read for a moment, and has read many rows since the last
    watermark, sends one sooner: somebody waits for it, and beside the rows it costs little. One that reads as fast as
    it can does not: what it reads is old anyway.
    """

    def __init__(self, interval_ms: float, *, soon: bool = True) -> None:
        """``interval_ms``: between two watermarks; ``soon``: some step of the job waits for them."""
        self._soon = soon
        self._interval_us = int(interval_ms * 1e3)
        self._soon_us = max(self._interval_us // _SOON_PER_INTERVAL, 1)
        #: Monotonic second of the next regular one.
        self.next_s = 0.0
        self._soon_s = 0.0
        self._sent_rows = 0

    def take(self, now_s: float, wall_us: int, rows: int, *, is_calm: bool, ends_wave: bool = False) -> bool:
        """Return whether it is time now; the caller sends it then.

        Args:
            now_s: monotonic seconds.
            wall_us: the same moment by the wall clock, epoch µs.
            rows: read so far.
            is_calm: there is nothing to read for a moment.
            ends_wave: it ends what all sources read at this moment.
        """
        is_soon = self._soon and is_calm and rows - self._sent_rows >= _BUSY_ROWS and now_s >= self._soon_s
        if now_s < self.next_s and not is_soon and not ends_wave:
            return False
        self.next_s = now_s + (self._interval_us - wall_us % self._interval_us) / 1e6
        self._soon_s = now_s + (self._soon_us - wall_us % self._soon_us) / 1e6
        self._sent_rows = rows
        return True
