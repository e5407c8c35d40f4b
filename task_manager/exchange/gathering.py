"""How long all subtasks of a task manager let rows gather, by how busy its process is: small batches must not fill it.

What a small batch costs is mostly fixed: threads that wake each other, the GIL, a few Arrow calls. In a job of many
stages a few hundred events a second make thousands of such batches. So the process is watched: as long as it works more
than a bound, subtasks with small batches wait longer for the next one, and less again when it works little. There are
two bounds. Where few rows come to many subtasks, they are to cost a small part of a core; in a job of few stages a row
meets few threads, and is to be quick. Where many rows come, they are to be quick too, and are left alone until the
process comes near the one core that its GIL gives it.

Rows then travel in *waves*. Their sources read at the same moments of the wall clock, and make a watermark then, in all
processes alike. The subtasks after them wait for the first thing that comes, and then until all inputs have brought
their watermark. So each subtask works once in a wave, whatever the number of its inputs, and a row, or a watermark,
waits for long at its source only: where each subtask let rows gather for itself, it waited once for each stage.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass

#: Batches of fewer rows on average are small.
SMALL_ROWS = 512.0
#: A subtask that gets fewer rows a second is a trickle.
TRICKLE_ROWS_PER_S = 400.0
#: With this many subtasks that have inputs a trickle does not gather; with so many it may to the full.
_SUBTASKS_FEW, _SUBTASKS_MANY = 3, 8
_WAIT_S_FIRST, _GROWTH, _DECLINE = 0.002, 3.0, 0.8
_LOOK_INTERVAL_S = 0.2
#: The moments at which sources of a trickle read are so far apart: each period has those of all longer ones.
_TURNS_US = (200_000, 100_000, 50_000, 25_000)
#: The same where many rows come, each about twice as far apart as the one before: so many batches fewer there are.
_MANY_TURNS_US = (0, 6_250, 12_500, 25_000, 50_000)
#: Only with many subtasks rows wait for the longest: elsewhere there are fewer batches, and what costs is their rows.
_MANY_STEP_MAX, _MANY_STEP_MAX_WIDE = 3, 4
#: Cores above which the moments get further apart, with few subtasks; with more a row passes more of them, so that it
#: counts less what it waits at its source, and more what all of them cost: so the bound falls with their number.
_MANY_MORE_ABOVE, _MANY_FALL = 0.7, 1.5
#: They come nearer again below this part of it: with twice as many batches the process is to stay below the bound.
_MANY_LESS_SHARE = 0.42
#: So long a subtask waits for the rest of a wave, at most: where it comes with watermarks, and where it may not.
_WAVE_S_MAX, _WAVE_S_SHORT = 0.05, 0.012


@dataclass(frozen=True, slots=True)
class Bound:
    """Cores that the process may use before batches wait longer, and below which they wait less."""

    less_below: float
    more_above: float
    #: A row never waits longer for others than this, whatever the process does.
    wait_s_max: float

    def next_wait_s(self, wait_s: float, cores: float) -> float:
        """How long to wait from now on, if the process used this many cores with this wait."""
        if cores > self.more_above:
            return min(max(wait_s * _GROWTH, _WAIT_S_FIRST), self.wait_s_max)
        if cores < self.less_below:
            return wait_s * _DECLINE if wait_s > _WAIT_S_FIRST else 0.0
        return wait_s


_TRICKLE = Bound(less_below=0.05, more_above=0.075, wait_s_max=0.1)


class Gathering:
    """The gathering of all subtasks of a job on a task manager; each of their threads may call it."""

    def __init__(
        self,
        now_s: Callable[[], float],
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """``cpu_s``: seconds of processor time of the process so far."""
        self._now_s = now_s
        self._cpu_s = cpu_s
        self._looked_s, self._used_s = now_s(), cpu_s()
        self._trickle_s = 0.0
        #: Index of the turns of many rows.
        self._many = 0
        self._subtasks: weakref.WeakSet[object] = weakref.WeakSet()

    def join(self, subtask: object) -> None:
        """Count a subtask for as long as this object of its own lives."""
        self._subtasks.add(subtask)

    def wait_s(self, rows_per_s: float) -> float:
        """How long a subtask waits from the beginning of one batch to the next, with so many rows a second."""
        now_s = self._now_s()
        # Two threads that look at once do no harm: the second one sees a short time, and the next look mends it.
        if now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._look(now_s)
        return self._trickle_s if rows_per_s < TRICKLE_ROWS_PER_S else 0.0

    def wave_s(self, rows_per_s: float) -> float:
        """How long a subtask with so many rows a second waits for the rest of a wave; 0: it has more than a trickle."""
        if rows_per_s >= TRICKLE_ROWS_PER_S:
            return 0.0
        is_slowest = self._trickle_s >= _TRICKLE.wait_s_max
        return _WAVE_S_MAX if is_slowest else min(self._trickle_s, _WAVE_S_SHORT)

    def turn_us(self, rows_per_s: float) -> int:
        """The time between two moments at which a source with so many rows a second reads; 0: it reads at any time."""
        if rows_per_s >= TRICKLE_ROWS_PER_S or not self._trickle_s:
            return 0
        return next((turn_us for turn_us in _TURNS_US if turn_us <= 2e6 * self._trickle_s), 0)

    @property
    def has_marked_waves(self) -> bool:
        """Return whether many rows travel in waves."""
        return self._many > 0

    def marked_turn_us(self, rows_per_s: float) -> int:
        """Return the :meth:`turn_us` of moments at each of which sources make a watermark: the end of a wave.

        Only as far apart as batches are small then.
        """
        turns_us = _MANY_TURNS_US[1 : self._many + 1]
        return max((turn_us for turn_us in turns_us if rows_per_s * turn_us < SMALL_ROWS * 1e6), default=0)

    def marked_wave_s(self, rows_mean: float, rows_per_s: float) -> float:
        """How long a subtask with such batches waits for the rest of such a wave; 0: there are none."""
        if not self._many or rows_mean >= SMALL_ROWS:
            return 0.0
        return max(self.marked_turn_us(rows_per_s), _MANY_TURNS_US[1]) / 1e6

    def _look(self, now_s: float) -> None:
        used_s = self._cpu_s()
        cores = (used_s - self._used_s) / (now_s - self._looked_s)
        self._looked_s, self._used_s = now_s, used_s
        wideness = (len(self._subtasks) - _SUBTASKS_FEW) / (_SUBTASKS_MANY - _SUBTASKS_FEW)
        wideness = min(max(wideness, 0.0), 1.0)
        longest_s = _TRICKLE.wait_s_max * wideness
        self._trickle_s = min(_TRICKLE.next_wait_s(self._trickle_s, cores), longest_s)
        self._many = _next_many(self._many, cores, len(self._subtasks))


def _next_many(many: int, cores: float, subtasks: int) -> int:
    """Index of the turns of many rows from now on, if the process used so many cores with this one."""
    is_few = subtasks <= _SUBTASKS_FEW
    more_above = _MANY_MORE_ABOVE * (1.0 if is_few else (_SUBTASKS_FEW / subtasks) ** _MANY_FALL)
    if cores > more_above:
        return min(many + 1, _MANY_STEP_MAX_WIDE if subtasks >= _SUBTASKS_MANY else _MANY_STEP_MAX)
    return max(many - 1, 0) if cores < _MANY_LESS_SHARE * more_above else many
