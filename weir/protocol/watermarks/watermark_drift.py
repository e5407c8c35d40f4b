"""Sources that do not run ahead of each other (``weir.watermark_alignment``). Pure.

The control plane, or a job in one process, knows the watermarks of all and tells the lowest one of each group; a
subtask of a source whose watermark is too far above it reads nothing until the lowest one has followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_MIN_MS = -(2**63)
#: How soon those that others wait for tell again how far they are: a report costs about 2 ms of CPU.
_SOONEST_S = 0.05


@dataclass(frozen=True)
class AlignedSource:
    """A subtask of a source that belongs to a group, and has not ended."""

    group: str
    #: ms since the epoch; the smallest int64 before the first one.
    watermark_ms: int
    is_idle: bool


def lowest_watermarks_ms(sources: Iterable[AlignedSource]) -> dict[str, int]:
    """Return by group the lowest watermark of those not idle; if all are, the highest: nobody is waited for."""
    active: dict[str, int] = {}
    idle: dict[str, int] = {}
    for source in sources:
        if source.is_idle:
            idle[source.group] = max(idle.get(source.group, _MIN_MS), source.watermark_ms)
        else:
            active[source.group] = min(active.get(source.group, source.watermark_ms), source.watermark_ms)
    return idle | active


class WatermarkDrift:
    """Whether one subtask may read on."""

    def __init__(self, group: str, max_drift_ms: int) -> None:
        self.group = group
        self._max_drift_ms = max_drift_ms
        #: The lowest watermark of the group, as far as is known.
        self._lowest_ms = _MIN_MS

    def told(self, lowest_ms: int) -> bool:
        """Note the lowest watermark of the group; returns whether it has risen.

        It falls when a source that was idle has rows again, which are behind. That somebody has no watermark yet
        counts at the beginning only: later it says that a new control plane has not heard of all.
        """
        if lowest_ms == _MIN_MS:
            return False
        before_ms, self._lowest_ms = self._lowest_ms, lowest_ms
        return lowest_ms > before_ms

    def may_read(self, watermark_ms: int) -> bool:
        """Return whether a subtask with this watermark is not too far ahead; one that has none yet never is."""
        return watermark_ms == _MIN_MS or (
            self._lowest_ms != _MIN_MS and watermark_ms - self._lowest_ms <= self._max_drift_ms
        )


class ReportPace:
    """When a task manager reports its sources again while some wait: soon, and less often while nothing moves."""

    def __init__(self) -> None:
        self._lowest_ms: dict[str, int] = {}
        self._interval_s = _SOONEST_S

    def interval_s(self, lowest_ms: Mapping[str, int], interval_s: float) -> float:
        """Return the seconds to the next report, after a reply with these lowest watermarks; at most ``interval_s``."""
        moved = self._lowest_ms != lowest_ms
        self._lowest_ms = dict(lowest_ms)
        self._interval_s = _SOONEST_S if moved else min(2 * self._interval_s, interval_s)
        return min(self._interval_s, interval_s)
