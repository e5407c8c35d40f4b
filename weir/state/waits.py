"""How long a thread has waited for a store that is elsewhere: time that rows which are read for together share."""

from __future__ import annotations

import threading


class _Waits(threading.local):
    seconds = 0.0


_waits = _Waits()


def note(seconds: float) -> None:
    """Add to what this thread has waited; called by stores elsewhere."""
    _waits.seconds += seconds


def total_s() -> float:
    """Return how long this thread has waited since it began, in seconds."""
    return _waits.seconds
