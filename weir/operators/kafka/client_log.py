"""The log of the client library, which tells of each attempt to reach a broker that is away, several times a second."""

from __future__ import annotations

import logging
import re

from weir.clock import Clock, SystemClock

#: A line that differs from an earlier one in numbers only is told again after so long.
_AGAIN_S = 10.0
#: Kinds of lines that are remembered.
_KINDS_MAX = 200
_NUMBER = re.compile(r"\d+")


class OncePerWhile(logging.Filter):
    """Lets the first line of a kind through, and then one every ten seconds, with the number of those between.

    Called by whichever thread logs.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        #: By kind: when a line was told, monotonic s, and how many were not since.
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is told."""
        kind, now_s = _NUMBER.sub("", record.getMessage()), self._clock.monotonic_s()
        told_s, left_out = self._kinds.get(kind, (-_AGAIN_S, 0))
        if now_s - told_s < _AGAIN_S:
            self._kinds[kind] = told_s, left_out + 1
            return False
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = now_s, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} times before)", ()
        return True


#: For clients: ``Consumer(settings, logger=client_log)``.
client_log = logging.getLogger(__name__)
client_log.addFilter(OncePerWhile(SystemClock()))
