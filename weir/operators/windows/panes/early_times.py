"""When windows tell what they have at certain times, although they are not complete."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.specs.window_updates import Trigger


class EarlyTimes:
    """Multiples of a trigger's interval, by the clock or by watermarks. No other trigger has any."""

    def __init__(self, trigger: Trigger | None) -> None:
        self._interval_ms = None if trigger is None else trigger.interval_ms
        self._by_events = trigger is not None and trigger.time == "event"
        #: By the clock: the next one, epoch ms; None: there is none before rows come.
        self._next_ms: int | None = None

    def plan(self, now_us: int) -> None:
        """There may be something to tell: it is told at the next multiple that the clock comes to."""
        if self._next_ms is None and self._interval_ms is not None and not self._by_events:
            self._next_ms = (now_us // 1000 // self._interval_ms + 1) * self._interval_ms

    def due_us(self, other_us: int) -> int:
        """When the operator is due by the clock that is due for other reasons at ``other_us``; epoch µs."""
        return other_us if self._next_ms is None else min(other_us, self._next_ms * 1000)

    def is_due(self, now_us: int) -> bool:
        """Return whether to tell now by the clock; says so once."""
        if self._next_ms is None or now_us < self._next_ms * 1000:
            return False
        self._next_ms = None
        return True

    def due_ms(self, watermark_ms: int) -> int:
        """The first watermark after this one at which to tell."""
        interval_ms = self._interval_ms if self._by_events else None
        if interval_ms is None:
            return WATERMARK_MAX_MS
        if watermark_ms == WATERMARK_MIN_MS:
            return watermark_ms
        return (watermark_ms // interval_ms + 1) * interval_ms

    def moments(self, before_ms: np.ndarray, watermark_ms: int) -> Iterator[tuple[int, np.ndarray]]:
        """When to tell because watermarks have come from some times to another, and of which key groups.

        A watermark may pass several multiples at once, and the ends of windows: what it passes first comes first. No
        row came in between, so that each group tells at the first one only.

        Args:
            before_ms: of each key group; int64.
            watermark_ms: to which all have come.
        """
        if self._interval_ms is None or not self._by_events:
            return
        last = watermark_ms // self._interval_ms
        passed = before_ms // self._interval_ms < last
        if passed.any():
            firsts = np.where(before_ms == WATERMARK_MIN_MS, last, before_ms // self._interval_ms + 1)
            for first in np.unique(firsts[passed]).tolist():
                yield first * self._interval_ms, np.flatnonzero(passed & (firsts == first))
