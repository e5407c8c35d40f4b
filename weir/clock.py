"""Time as a constructor argument, so that tests move it by hand (see ``weir.testing``)."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time. Wall time stamps events; monotonic time measures intervals and time-outs."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary origin; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch."""
        return time.time_ns() // 1000

    #: Seconds from an arbitrary origin; never goes back. Not a method of its own: subtasks ask at every step.
    monotonic_s = staticmethod(time.monotonic)


def monotonic_ms(clock: Clock) -> int:
    """Milliseconds from an arbitrary origin, as the state machines take them."""
    return int(clock.monotonic_s() * 1000)


def wall_ms(clock: Clock) -> int:
    """Wall clock, milliseconds since the epoch."""
    return clock.now_us() // 1000
