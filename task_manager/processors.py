"""The processors that threads run on which work on rows: all, or one for all together while that has room.

A small batch costs little work and many caches: what the last batch left in those of one processor is of no use to a
thread that runs on another one. So threads that together take less than a third of a processor stay on one, each task
manager's on the least busy one. All other threads (checkpoints, compactions, answers) go where the kernel puts them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random

from weir import threads
from weir.clock import Clock

log = logging.getLogger(__name__)

#: Seconds between two looks.
_LOOK_S = 0.25
#: A processor is taken while it would be busy for less than this with the rows, and left where it is busy for more.
_ROOM, _FULL = 0.6, 0.75
#: Rows that take more gain more from two processors: at 100,000 events/s a p99 was 15 ms on one and 11 ms on two.
_ROWS_MAX = 0.3
#: Weight of a look beside those before it.
_WEIGHT = 0.3
#: Another one is better if it is so much less busy with other work.
_BETTER = 0.15
#: So many looks in a row must find room, and that or another processor better; by chance, so that two task managers
#: do not go to the same one, or leave it, at the same moment.
_LOOKS_MIN, _LOOKS_MAX = 3, 8
#: So many more after a processor was full.
_LOOKS_AFTER_FULL = 40
_STATISTICS = Path("/proc/stat")
_THREADS = Path("/proc/self/task")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


@dataclass(frozen=True)
class Load:
    """Time of the processors that was used between two looks."""

    #: Share of the time that each processor was busy, 0 to 1, with whatever; by number.
    busy: Mapping[int, float]
    #: Processors' time that our threads took which work on rows, as a share of one processor.
    rows: float
    #: Some of these threads have begun or ended: what is to come may be much.
    is_new: bool = False

    def mixed(self, before: Load) -> Load:
        """Return the load mixed with what was before: a single look may find a checkpoint, or none."""
        busy = {each: _mix(busy, before.busy.get(each, busy)) for each, busy in self.busy.items()}
        return Load(busy, _mix(self.rows, before.rows))


def _mix(now: float, before: float) -> float:
    return before + _WEIGHT * (now - before)


def least_busy(load: Load, current: int | None) -> int | None:
    """Returns the processor on which the rows run best; None: none has room for them.

    They run on ``current`` now; None: on all.

    ``current`` stays the best until another one is clearly better.
    """
    spread = load.rows / len(load.busy)
    ours = {
        each: load.rows if each == current else 0.0 if current is not None else spread for each in load.busy
    }
    others = {each: busy - ours[each] for each, busy in load.busy.items()}
    best = min(others, key=lambda each: (others[each], each))
    if load.rows > _ROWS_MAX or others[best] + load.rows >= _ROOM:
        return None
    return current if current is not None and others[current] - others[best] < _BETTER else best


class Placement:
    """The decision from look to look; does nothing itself."""

    def __init__(self, chance: Random) -> None:
        #: Where the rows' threads run; None: on all.
        self.processor: int | None = None
        self._mean: Load | None = None
        self._chance = chance
        self._looks_left = self._draw()

    def look(self, load: Load) -> int | None:
        """Returns the processor for the rows' threads from now on; None: all processors."""
        if load.is_new:
            self.processor, self._looks_left = None, max(self._looks_left, self._draw())
        elif self.processor is not None and load.busy[self.processor] > _FULL:
            self.processor, self._looks_left = None, _LOOKS_AFTER_FULL + self._draw()
        else:
            self._mean = load if self._mean is None else load.mixed(self._mean)
            self._choose(least_busy(self._mean, self.processor))
            return self.processor
        # What was before says nothing of what comes.
        self._mean = None
        return self.processor

    def _choose(self, best: int | None) -> None:
        if best is None or best == self.processor:
            self._looks_left = max(self._looks_left, self._draw())
            return
        self._looks_left -= 1
        if self._looks_left <= 0:
            self.processor, self._looks_left, self._mean = best, self._draw(), None

    def _draw(self) -> int:
        return self._chance.randint(_LOOKS_MIN, _LOOKS_MAX)


def keep_rows_together(clock: Clock) -> None:
    """Begin to look, in a thread of its own, until the process ends; without effect where there is one processor."""
    # Elsewhere a thread cannot be placed.
    if sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1:
        threading.Thread(target=_keep, args=(clock,), name="processors", daemon=True).start()


def _keep(clock: Clock) -> None:
    processors = Processors(clock)
    try:
        processors.run()
    except OSError as error:
        log.info("the threads that work on rows run on all processors: %s", error)
        # A processor may have been taken away from the process while they were on it.
        with contextlib.suppress(OSError):
            processors.place(None)


class Processors:
    """Puts the threads of this process that work on rows (``threads.works_on_rows``) where :class:`Placement` says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = frozenset(os.sched_getaffinity(0))
        self._placement = Placement(Random())
        self._processor: int | None = None
        #: Those of the rows, and those that may run anywhere; of threads that live.
        self._placed: Set[int] = set()
        self._others: Set[int] = set()

    def run(self) -> None:
        """Look from now on.

        Raises:
            OSError: this machine does not tell what is to be known, or does not let threads be placed.
        """
        before = Times.at(self._clock.monotonic_s(), self._all)
        while True:
            time.sleep(_LOOK_S)
            now = Times.at(self._clock.monotonic_s(), self._all)
            self.place(self._placement.look(now.since(before)))
            before = now

    def place(self, processor: int | None) -> None:
        """Let the rows' threads run there, or on all that the process may use; all other threads on these."""
        if processor is None and not self._placed:
            return
        rows = threads.that_work_on_rows() if processor is not None else set()
        for each in rows if processor != self._processor else rows - self._placed:
            _let_run(each, self._all if processor is None else {processor})
        # Who is started by a thread of the rows begins where that one runs.
        others = {int(each) for each in os.listdir(_THREADS)} - rows
        for each in others - self._others:
            _let_run(each, self._all)
        self._processor, self._placed, self._others = processor, rows, others if rows else set()


@dataclass(frozen=True)
class Times:
    """Counters of the kernel; only Linux has them."""

    now_s: float
    #: Of each processor, seconds without work.
    idle_s: Mapping[int, float]
    #: Seconds that each thread took that works on rows.
    rows_s: Mapping[int, float]

    @classmethod
    def at(cls, now_s: float, processors: Set[int]) -> Times:
        """Returns the times of these processors as the kernel tells them at this monotonic second.

        Raises:
            OSError: this machine does not tell.
        """
        idle_s = {}
        for line in _STATISTICS.read_text().splitlines()[1:]:
            name, *counters = line.split()
            if not name.startswith("cpu"):
                break
            idle_s[int(name[3:])] = (int(counters[3]) + int(counters[4])) * _TICK_S
        rows_s = {}
        for each in threads.that_work_on_rows():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                rows_s[each] = int((_THREADS / str(each) / "schedstat").read_text().split()[0]) / 1e9
        return cls(now_s, {each: idle_s[each] for each in processors & idle_s.keys()}, rows_s)

    def since(self, before: Times) -> Load:
        """Returns the load from ``before`` to now."""
        elapsed_s = self.now_s - before.now_s
        busy = {
            each: min(max(1 - (idle_s - before.idle_s.get(each, 0.0)) / elapsed_s, 0.0), 1.0)
            for each, idle_s in self.idle_s.items()
        }
        rows = sum(taken_s - before.rows_s.get(each, taken_s) for each, taken_s in self.rows_s.items())
        return Load(busy, rows / elapsed_s, self.rows_s.keys() != before.rows_s.keys())


def _let_run(thread_id: int, processors: Set[int]) -> None:
    # Otherwise it has ended.
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread_id, processors)
