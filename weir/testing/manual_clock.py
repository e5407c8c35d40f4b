"""A clock that only moves when told to."""

from __future__ import annotations


class ManualClock:
    """Implements ``weir.clock.Clock``; starts at ``now_us`` and moves with :meth:`advance_ms`."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = now_us
        self._monotonic_us = 0

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch."""
        return self._now_us

    def monotonic_s(self) -> float:
        """Seconds since this clock was made."""
        return self._monotonic_us / 1e6

    def advance_ms(self, delta_ms: float) -> None:
        """Move both clocks forward."""
        self._now_us += int(delta_ms * 1000)
        self._monotonic_us += int(delta_ms * 1000)
