"""How late this machine wakes a sleeping process: the reference of latency figures, so that a noisy machine shows.

``python -m benchmarks.jitter SECONDS`` sleeps 1 ms in a loop and prints one JSON object.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import Any

_SLEEP_S = 0.001
#: Sleeps that last so much too long are listed one by one.
_STALL_S = 0.02


class JitterProcess:
    """The loop in a process of its own, for so many seconds; :meth:`result` waits for it."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._popen = subprocess.Popen(
            [sys.executable, "-S", __file__, str(seconds)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )

    def result(self) -> dict[str, Any]:
        """``p50_ms``, ``p99_ms`` and ``max_ms`` by which a sleep of 1 ms lasted too long."""
        facts = self._facts()
        del facts["stalls"]
        return facts

    def _facts(self) -> dict[str, Any]:
        out, _ = self._popen.communicate(timeout=self._seconds + 30)
        facts: dict[str, Any] = json.loads(out)
        return facts

    def finish(self) -> dict[str, Any]:
        """As :meth:`result`, but ends the loop now; ``stalls`` lists ``[end, ms]`` of long ones, end in epoch µs."""
        self._popen.send_signal(signal.SIGTERM)
        return self._facts()

    def close(self) -> None:
        """End it early; safe after the end."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.communicate()


def main(seconds: float) -> None:
    """The loop, until the time is over or SIGTERM comes."""
    late_s: list[float] = []
    stalls: list[tuple[int, float]] = []
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: terminated.append(number))
    now_s = time.perf_counter()
    stop_s = now_s + seconds
    while now_s < stop_s and not terminated:
        time.sleep(_SLEEP_S)
        woken_s = time.perf_counter()
        late_s.append(woken_s - now_s - _SLEEP_S)
        if late_s[-1] >= _STALL_S:
            stalls.append((time.time_ns() // 1000, round(late_s[-1] * 1e3, 1)))
        now_s = woken_s
    late_s.sort()

    def percentile_ms(percent: float) -> float:
        return round(late_s[min(len(late_s) - 1, int(len(late_s) * percent / 100))] * 1e3, 4)

    figures = {"p50_ms": percentile_ms(50), "p99_ms": percentile_ms(99), "max_ms": percentile_ms(100)}
    print(json.dumps({"sleeps": len(late_s), **figures, "stalls": stalls}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
