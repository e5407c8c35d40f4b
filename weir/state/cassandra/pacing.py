"""How much a job's changes may cost it: rests between chunks that are written, and after the last one. Pure.

A chunk costs this process and the database CPU, and where both share a machine the job has what they leave. A rest of
19 times as long as a chunk took leaves it 19 twentieths. Resting has a bound for all chunks together, since a change is
part of every checkpoint until it is written; chunks that are left by then follow each other with short rests.
"""

from __future__ import annotations

#: Rests, as multiples of what writing took: while the bound allows, and after it.
_REST_TIMES, _SHORT_REST_TIMES = 19, 2


class Pace:
    """The pace of a pass over all changes that a checkpoint covers; times in seconds.

    Args:
        rest_s_max: how long all rests may be together; 0: there are none.
    """

    def __init__(self, rest_s_max: float) -> None:
        self._rest_s_max = rest_s_max
        self._worked_s = self._rested_s = 0.0

    def worked(self, took_s: float) -> float:
        """A chunk has been written in this time; returns how long to rest before the next one."""
        if not self._rest_s_max:
            return 0.0
        self._worked_s += took_s
        left_s = max(self._rest_s_max - self._rested_s, 0.0)
        return max(min(_REST_TIMES * took_s, left_s), _SHORT_REST_TIMES * took_s)

    def rested(self, took_s: float) -> None:
        """What a rest took, which may have been cut short."""
        self._rested_s += took_s

    def last_rest_s(self) -> float:
        """How long to rest after the last chunk, before changes of a later checkpoint are written."""
        return max(min(_REST_TIMES * self._worked_s, self._rest_s_max) - self._rested_s, 0.0)
