"""Combine the watermarks of several inputs: the minimum over those that are neither idle nor ended."""

from __future__ import annotations

from dataclasses import dataclass, field

_MIN_MS = -(2**63)
_MAX_MS = 2**63 - 1


@dataclass
class WatermarkTracker:
    """State of one subtask's inputs, by input index. Pure; called by the subtask's loop.

    The combined watermark never falls: an input that wakes up behind it holds it where it is.
    """

    input_count: int
    #: The combined watermark, ms since the epoch.
    combined_ms: int = _MIN_MS
    _watermarks_ms: list[int] = field(init=False)
    _idle: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._watermarks_ms = [_MIN_MS] * self.input_count
        self._idle = [False] * self.input_count

    @property
    def all_idle(self) -> bool:
        """Whether every input is idle or ended, and at least one has not ended."""
        waiting = [idle for idle, at in zip(self._idle, self._watermarks_ms, strict=True) if at != _MAX_MS]
        return bool(waiting) and all(waiting)

    def advance(self, input_index: int, time_ms: int) -> int | None:
        """Note a watermark; gives the new combined one if that rises, else None."""
        self._idle[input_index] = False
        self._watermarks_ms[input_index] = max(self._watermarks_ms[input_index], time_ms)
        return self._raise()

    def mark_active(self, input_index: int) -> None:
        """Note data on an input: it holds the watermark back again."""
        self._idle[input_index] = False

    def mark_idle(self, input_index: int) -> int | None:
        """Note that an input has nothing for now; gives the new combined watermark if that rises."""
        self._idle[input_index] = True
        return self._raise()

    def end(self, input_index: int) -> int | None:
        """Note that an input has ended; gives the new combined watermark if that rises."""
        return self.advance(input_index, _MAX_MS)

    def _raise(self) -> int | None:
        active = [at for idle, at in zip(self._idle, self._watermarks_ms, strict=True) if not idle]
        if not active or min(active) <= self.combined_ms:
            return None
        self.combined_ms = min(active)
        return self.combined_ms
