"""When ``weir log start`` starts a process again that has ended, and what it says of it. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

#: A process that ends so soon after its start has something wrong.
SETTLED_S = 10.0
#: Before the third start in a row; twice as long before each further one, up to the maximum.
_PAUSE_S, _PAUSE_S_MAX = 1.0, 30.0


@dataclass
class Restarts:
    """Of one process."""

    #: It has run for long, so that what is wrong may pass.
    has_settled: bool = False
    #: Starts in a row after which it has ended at once.
    failures: int = 0

    def ended(self, code: int, ran_s: float) -> float | None:
        """Return after how many seconds it is started again; None: not at all, and the log ends.

        Args:
            code: negative if a signal ended it.
            ran_s: so long after its start.
        """
        if ran_s >= SETTLED_S:
            self.has_settled, self.failures = True, 0
            return 0.0
        if code >= 0 and not self.has_settled:
            # It says what is wrong, and that stays wrong.
            return None
        self.failures += 1
        # One kill says nothing of the next start.
        return 0.0 if self.failures == 1 else min(_PAUSE_S * 2 ** (self.failures - 2), _PAUSE_S_MAX)

    def told(self, name: str, code: int, ran_s: float, pause_s: float | None) -> str:
        """Return the line that says so, after :meth:`ended`."""
        how = f"was killed ({_signal_name(-code)})" if code < 0 else f"ended (code {code})"
        if pause_s is None:
            return f"{name} {how} {ran_s:.1f} s after its start; mend what it says above, and start the log again"
        again = f"it is started again in {pause_s:g} s" if pause_s else "it is started again"
        if self.failures < 2:
            return f"{name} {how}; {again}"
        # Nobody else says who sent it.
        cause = "; look into dmesg: the machine may have no memory left" if code == -signal.SIGKILL else ""
        return f"{name} {how} {ran_s:.1f} s after its start, {self.failures} times in a row{cause}; {again}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
