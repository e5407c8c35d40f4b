"""How much of the processor a step gets on this machine, now: the demo's paced load goes by that."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

_MEASURED_S = 0.7
_BURN = (
    f"import time; until_s = time.monotonic() + {_MEASURED_S}; before_s = time.process_time()\n"
    "while time.monotonic() < until_s: pass\n"
    "print(time.process_time() - before_s)"
)
#: A second subtask makes a difference that one can see from here on.
_HELPS = 1.3


@dataclass(frozen=True)
class FreeCores:
    """Cores that one busy process gets, and two together."""

    one: float
    two: float

    @property
    def second_helps(self) -> bool:
        """Whether two processes get more than one, so that counts that are too much for one are not for two."""
        return self.two >= _HELPS * self.one

    def load_ms(self, rows_per_second: float, excess: float) -> float:
        """Return the CPU per row that is too much for one subtask, by the factor ``excess``; ms."""
        return 1e3 * excess * self.one / rows_per_second


def measure_free_cores() -> FreeCores:
    """Let one process, then two, use as much of the processor as they get, for less than a second each."""
    return FreeCores(_cores_of(1), _cores_of(2))


def _cores_of(processes: int) -> float:
    running = [
        subprocess.Popen([sys.executable, "-c", _BURN], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    return sum(float(each.communicate()[0]) for each in running) / _MEASURED_S
