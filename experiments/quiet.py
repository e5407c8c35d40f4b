"""Whether the machine is quiet enough to measure latencies, and how much others used of it meanwhile."""

from __future__ import annotations

import time

import psutil

#: Busy share of all processors up to which the machine counts as idle, and for how long it must be.
_IDLE_SHARE = 0.1
_LOOK_S = 2.0


def wait_for_idle(timeout_s: float) -> bool:
    """Wait until the machine has been idle for two seconds; False: it was not within ``timeout_s``."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        before = busy_s()
        began_s = time.monotonic()
        time.sleep(_LOOK_S)
        if (busy_s() - before) / _processors() / (time.monotonic() - began_s) <= _IDLE_SHARE:
            return True
    return False


def busy_s() -> float:
    """CPU seconds that all processes of the machine have used since its start."""
    times = psutil.cpu_times()
    return float(
        times.user + times.nice + times.system + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0)
    )


class OthersShare:
    """Share of the machine that processes other than some given ones use, from when it is made."""

    def __init__(self, own_cpu_s: float = 0.0) -> None:
        """``own_cpu_s``: CPU seconds that those processes have used so far."""
        self._began_s = time.monotonic()
        self._busy_s, self._own_s = busy_s(), own_cpu_s

    def share(self, own_cpu_s: float) -> float:
        """From 0 to 1; ``own_cpu_s`` as above, by now."""
        others_s = busy_s() - self._busy_s - (own_cpu_s - self._own_s)
        return max(0.0, others_s / _processors() / (time.monotonic() - self._began_s))


def _processors() -> int:
    return psutil.cpu_count() or 1
