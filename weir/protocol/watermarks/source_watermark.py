"""The watermark that a subtask of a source, or a step that assigns event times, makes. Pure."""

from __future__ import annotations

_MIN_MS = -(2**63)


class SourceWatermark:
    """Follows the highest event time at a distance, or what a generator says; never goes back."""

    def __init__(self, behind_ms: int) -> None:
        """``behind_ms``: how far the watermark stays behind the highest event time."""
        self.behind_ms = behind_ms
        #: ms since the epoch; the smallest int64 before the first one.
        self.time_ms = _MIN_MS

    def follow(self, event_time_ms_max: int) -> bool:
        """Note the highest event time so far; returns whether the watermark rises."""
        return event_time_ms_max != _MIN_MS and self.raise_to(event_time_ms_max - self.behind_ms)

    def raise_to(self, time_ms: int | None) -> bool:
        """Note a watermark that was made elsewhere, None: none; returns whether it is higher than before."""
        if time_ms is None or time_ms <= self.time_ms:
            return False
        self.time_ms = time_ms
        return True
