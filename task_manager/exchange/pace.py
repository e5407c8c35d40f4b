"""How many waiting rows a subtask takes at once, and how long it, and all of its task manager, let more of them gather.

A batch costs about the same with one row as with a hundred. Behind a fan-out batches are tiny, and on a busy machine
their cost decides. So a subtask whose batches are small rests a few times as long as the last one took, before it
takes what has come meanwhile as one batch: on an idle machine that is a fraction of a millisecond, and never more
than ``batch_timeout_ms``; more only where the whole process is busy with small batches (:class:`Gathering`).

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
#: A subtask with small batches works at most one part in this many.
_REST_FACTOR = 3.0
#: Rows are taken together as long as processing them takes about this: commands and barriers wait for it.
_TOGETHER_S = 0.01
#: So many are always taken together. On a busy machine a batch of any size may take long, and smaller ones would make
#: it worse; what a slow step gets at once is bounded by its senders' credit.
_ROWS_MIN = 256
#: Of the time that rows wait for a store elsewhere, what more rows would share.
_STORED_SHARED = 0.9
#: How far back the share of busy time looks.
_SHARE_S = 0.1
#: And how far the rate of rows.
_RATE_S = 1.0
#: Weight of the last batch in the mean of their rows.
_MEAN_WEIGHT = 0.05


#: So long a small batch waits for those of other inputs that come at the same time; not if batches are this far apart,
#: where it hardly counts, and only now and then as long as it does not pay.
_WINDOW_S, _WINDOW_PERIOD_S_MAX = 0.0006, 0.04
_WINDOW_WEIGHT, _WINDOW_PAYS, _WINDOW_TRIES = 0.1, 0.4, 32
#: Where windows mostly pay and batches come this often, all of a round is waited for at once, but now and then.
_ROUND_PAYS, _ROUND_PERIOD_S_MAX, _ROUND_SAMPLES = 0.8, 0.03, 16
#: Rounds that are so far apart are looked at less often, and their consumer reads from links itself: where they follow
#: each other closely, rows are to be quick.
_LONG_ROUND_S, _LONG_ROUND_PAYS, _LONG_ROUND_SAMPLES = 0.006, 0.7, 32
_PERIOD_WEIGHT = 0.1
#: Long rounds are at least so far apart. All of one may come later than the mean by this part of the period, by a
#: window at least.
_ROUND_S_MIN, _ROUND_LATE, _LATE_S_MAX = 0.0012, 0.1, 0.0015
#: The least time to wait for the rest of a wave.
_WAVE_S_MIN = 0.012


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


class Pace:
    """Called by the subtask's thread."""

    def __init__(self, batch_rows_max: int, rest_ms_max: float, gathering: Gathering | None = None) -> None:
        """A subtask that has had no rows.

        Args:
            batch_rows_max: rows of the largest batch.
            rest_ms_max: how long a row may wait for others while the process has time.
            gathering: how long where it has not; None: no longer.
        """
        self._gathering = gathering
        if gathering is not None:
            gathering.join(self)
        self._rows_mean = SMALL_ROWS
        self._rows_per_s = 0.0
        self._batch_rows_max = batch_rows_max
        self._rest_s_max = rest_ms_max / 1e3
        #: Waiting batches are taken together up to this many rows.
        self.rows_max = min(_ROWS_MIN, batch_rows_max)
        #: Monotonic second before which no more rows are taken.
        self.next_s = 0.0
        #: Part of the last tenth of a second that went into rows (0 to 1), waiting for credit included. Of waiting for
        #: a store elsewhere only a part counts: with more rows in flight it would hardly take longer.
        self.busy_share = 0.0
        self._ended_s = 0.0
        #: Part of the windows in which another element came, and how many were left out since the last one.
        self._window_gain, self._windows_left_out = 1.0, 0
        self._wave_s_max = float("inf")
        #: Whether :meth:`turn_s` told a moment at which all sources read: what they read travels as a wave.
        self.has_turns = False
        #: Whether each of these is to have a watermark, and the monotonic second of the next one.
        self.marks_turns, self._turn_s = False, 0.0
        #: When the last round began, the mean time from one to the next, and rounds since one was looked at closely.
        self._began_s, self._period_s, self._rounds = 0.0, 1.0, 0
        #: Whether what comes at a time comes so rarely that a row may wait a ms longer for the others.
        self.has_long_rounds = True
        #: How much later than expected, or than the first of it, all of a round may be there.
        self.late_s = _LATE_S_MAX

    def round_s(self, now_s: float) -> float:
        """How long what comes first may wait for the others without a look, because all come at a time; 0: not at all.

        A look wakes the subtask for the first of them, which costs about as much as a small batch. It is what tells
        whether the others still come with it: so every now and then there is one.
        """
        pays, samples = _ROUND_PAYS, _ROUND_SAMPLES
        if self.has_long_rounds:
            pays, samples = _LONG_ROUND_PAYS, _LONG_ROUND_SAMPLES
        if self._window_gain < pays or self._period_s > _ROUND_PERIOD_S_MAX:
            return 0.0
        if self._rows_mean >= SMALL_ROWS:
            return 0.0
        self._rounds += 1
        if self._rounds >= samples:
            self._rounds = 0
            return 0.0
        return self._began_s + self._period_s + self.late_s - now_s

    def window_s(self, now_s: float) -> float:
        """How long the first small batch of some waits for the others; 0: not at all."""
        if now_s - self._ended_s > _WINDOW_PERIOD_S_MAX or self._rows_mean >= SMALL_ROWS:
            return 0.0
        if self._window_gain < _WINDOW_PAYS and self._windows_left_out < _WINDOW_TRIES:
            self._windows_left_out += 1
            return 0.0
        self._windows_left_out = 0
        return self.late_s

    @property
    def wave_s(self) -> float:
        """How long whatever comes first waits for the rest of a wave (see above); 0: rows are no trickle."""
        gathering = self._gathering
        if gathering is None:
            return 0.0
        if self._rows_per_s < TRICKLE_ROWS_PER_S:
            wave_s = min(gathering.wave_s(self._rows_per_s), self._wave_s_max)
            if wave_s > 0:
                return wave_s
        return self._marked_wave_s if gathering.has_marked_waves else 0.0

    @property
    def wave_apart_s(self) -> float:
        """Within how long all watermarks of a wave come; infinity: what has come counts until it was waited for."""
        return self._marked_wave_s / 2 or float("inf")

    @property
    def _marked_wave_s(self) -> float:
        """Return the :attr:`wave_s` of waves of many rows; 0: there are none, or rows are a trickle with its own."""
        if self._gathering is None or self._gathering.wave_s(self._rows_per_s) > 0:
            return 0.0
        return self._gathering.marked_wave_s(self._rows_mean, self._rows_per_s)

    def saw_wave(self, *, whole: bool) -> None:
        """Note whether all of a wave came before :attr:`wave_s` was over; if not, something may come with some only."""
        self._wave_s_max = float("inf") if whole else max(self.wave_s / 2, _WAVE_S_MIN)

    def turn_s(self, now_s: float, now_us: int) -> float:
        """The monotonic second at which a source reads next, now being that and epoch µs; the past: at any time."""
        turn_us = marked_us = 0
        if self._gathering is not None:
            turn_us = self._gathering.turn_us(self._rows_per_s)
            marked_us = 0 if turn_us else self._gathering.marked_turn_us(self._rows_per_s)
        self.marks_turns, turn_us = marked_us > 0, turn_us or marked_us
        self.has_turns = turn_us > 0
        self._turn_s = now_s + (turn_us - now_us % turn_us) / 1e6 if turn_us else self.next_s
        return self._turn_s

    def take_turn(self, now_s: float) -> bool:
        """Whether a moment has come at which all sources read and make a watermark; True once for each of them."""
        if not self.marks_turns or now_s < self._turn_s:
            return False
        self._turn_s = float("inf")
        return True

    @property
    def has_marked_waves(self) -> bool:
        """Whether what this subtask sends is to have a watermark each time: the waves of its process end with them."""
        return self._gathering is not None and self._gathering.has_marked_waves and self._marked_wave_s > 0

    def gathered(self, elements: int) -> None:
        """So many were there after such a wait."""
        self._window_gain += _WINDOW_WEIGHT * ((elements > 1) - self._window_gain)

    def processed(
        self, rows: int, began_s: float, elapsed_s: float, waited_s: float = 0.0, stored_s: float = 0.0
    ) -> None:
        """Note what the last rows took; ``waited_s``: for credit, besides; ``stored_s``: for a store, of that."""
        # Sooner comes only the rest of a round that was torn: it would make the next one seem overdue.
        if began_s - self._began_s >= _ROUND_S_MIN or not self.has_long_rounds:
            self._note_round(began_s)
        taken_s = elapsed_s + waited_s
        ended_s = began_s + taken_s
        period_s = max(ended_s - self._ended_s, taken_s, 1e-9)
        share = period_s / _SHARE_S if period_s < _SHARE_S else 1.0
        shared_s = stored_s * _STORED_SHARED
        self.busy_share += share * ((taken_s - shared_s) / period_s - self.busy_share)
        share = period_s / _RATE_S if period_s < _RATE_S else 1.0
        self._rows_per_s += share * (rows / period_s - self._rows_per_s)
        self._ended_s = ended_s
        worked_s = elapsed_s - shared_s
        if worked_s <= _TOGETHER_S:
            if rows * 2 >= self.rows_max:
                self.rows_max = min(self.rows_max * 2, self._batch_rows_max)
        else:
            wanted = max(_ROWS_MIN, int(rows * _TOGETHER_S / worked_s))
            self.rows_max = min(self.rows_max, wanted)
        self._rows_mean += _MEAN_WEIGHT * (rows - self._rows_mean)
        rest_s = min(elapsed_s * _REST_FACTOR, self._rest_s_max)
        if self._gathering is not None:
            rest_s = max(rest_s, self._gathering.wait_s(self._rows_per_s))
        is_small = rows < SMALL_ROWS and rows < self.rows_max
        self.next_s = began_s + rest_s if is_small else 0.0

    def held_up(self, now_s: float, waited_s: float) -> None:
        """Note a wait for credit after the last rows, which has just ended."""
        period_s = max(now_s - self._ended_s, waited_s, 1e-9)
        share = min(period_s / _SHARE_S, 1.0)
        self.busy_share += share * (waited_s / period_s - self.busy_share)
        self._rows_per_s -= min(period_s / _RATE_S, 1.0) * self._rows_per_s
        self._ended_s = now_s

    def _note_round(self, began_s: float) -> None:
        self._period_s += _PERIOD_WEIGHT * (min(began_s - self._began_s, 1.0) - self._period_s)
        self._began_s = began_s
        self.has_long_rounds = self._period_s > _LONG_ROUND_S
        self.late_s = min(max(_WINDOW_S, _ROUND_LATE * self._period_s), _LATE_S_MAX)

    def looked(self, at_s: float) -> None:
        """Note that a control element was taken: in a busy process the next ones gather too, or come in waves."""
        if self._gathering is not None and not self.wave_s:
            self.next_s = max(self.next_s, at_s + self._gathering.wait_s(self._rows_per_s))
