"""The open-loop schedule of a paced source: when events are due, and when a subtask polls.

Open loop: event ``k`` of subtask ``i`` of ``p`` is due at ``job_start + (k * p + i) / rate`` whatever the
engine does; if it falls behind, the events carry their scheduled time, so that the delay shows in the latency.
"""

from __future__ import annotations

import math

import numpy as np

#: A poll gives at least this much of the schedule at once, if events are due more often.
COALESCE_US = 2_750
#: And more, until so many rows are due, but no more than ``gather_ms``: a poll of one row costs as much.
_ROWS_WORTH_A_POLL = 13
#: Where so many come in ``COALESCE_US``, a poll decodes what is due and gives it out as it is, as without a rate: what
#: makes small polls cheap (rows that are looked at before, due times as lists) costs more for each row than it saves.
#: And polls gather longer, the more the higher the rate, up to this: the machine is busy with rows.
_STREAM_ROWS, CROWD_US_MAX = 1_024, 10_000


class Schedule:
    """Due times of one subtask's events; ``skipped`` events of the source come before its event 0."""

    def __init__(
        self,
        rate: float,
        start_us: int,
        subtask_index: int,
        parallelism: int,
        skipped: int = 0,
        gather_us_max: int = 0,
    ) -> None:
        """``gather_us_max``: how long an event may wait for the next ones, if that is more than usual."""
        self._start_us = start_us
        self._subtask_index = subtask_index + skipped
        self._parallelism = parallelism
        self._us_per_event = 1e6 / rate
        self._turn_us = _turn_us(parallelism * self._us_per_event, gather_us_max)

    def due_us(self, number: int) -> int:
        """Epoch µs at which the subtask's event of this number (from 0) is due."""
        return self._start_us + int((number * self._parallelism + self._subtask_index) * self._us_per_event)

    def due_times_us(self, first: int, count: int) -> np.ndarray:
        """Due times, int64, of ``count`` events from number ``first``."""
        numbers = np.arange(first, first + count, dtype=np.float64)
        offsets = (numbers * self._parallelism + self._subtask_index) * self._us_per_event
        return offsets.astype(np.int64) + self._start_us

    def next_turn_us(self, now_us: int) -> int:
        """The next moment at which this subtask polls; the same for all subtasks.

        A consumer then takes what they send as one batch: half of the work of two, where they took turns.
        """
        return self._start_us + ((now_us - self._start_us) // self._turn_us + 1) * self._turn_us

    def last_turn_us(self, now_us: int) -> int:
        """The latest such moment that is not after now."""
        return self.next_turn_us(now_us) - self._turn_us

    def due_count(self, now_us: int) -> int:
        """How many events of the subtask are due by now."""
        if now_us < self._start_us:
            return 0
        # The estimate may be off by one, as due times are cut to whole µs.
        slot = (now_us - self._start_us) / self._us_per_event
        count = max(0, math.floor((slot - self._subtask_index) / self._parallelism) + 1)
        while count and self.due_us(count - 1) > now_us:
            count -= 1
        while self.due_us(count) <= now_us:
            count += 1
        return count


def is_trickle(rate: float) -> bool:
    """Return whether so few events a second make polls give out few rows, for which many are decoded at a time."""
    return rate * COALESCE_US < _STREAM_ROWS * 1e6


def _turn_us(period_us: float, gather_us_max: int) -> int:
    """Return the time from one poll to the next, where an event is due every ``period_us`` of a subtask."""
    if 2 * period_us >= gather_us_max:
        # An event would wait for one more at most, which saves little.
        return COALESCE_US
    few_us = min(int(_ROWS_WORTH_A_POLL * period_us), gather_us_max)
    crowd_us = min(int(COALESCE_US * COALESCE_US / period_us / _STREAM_ROWS), gather_us_max, CROWD_US_MAX)
    return max(COALESCE_US, few_us, crowd_us)
