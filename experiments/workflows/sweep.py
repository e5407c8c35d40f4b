"""Timers as a range scan with deletes: what measures a store, as the state benchmark's section D has it.

There the scan holds up all rows until it is through, for 1 to 5 s. Here it goes in slices of some milliseconds, each of
them a timer of its own with rows between them, and begins where it was: what is deleted is not walked over again (the
same benchmark, section K).
"""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import override

import weir
from experiments.workflows.windows import Tally

#: Timers of a slice: at first, and the bounds. Each slice costs about a ms of a processor, and each timer one µs:
#: smaller slices made the sweep twice as long, and rows wait longer.
_SLICE, _SLICE_MIN, _SLICE_MAX = 500, 500, 20_000
#: A slice is at most so many times as long as the one before.
_GROWTH_MAX = 2.0
#: What a slice deletes is written after it: with that it is about so many times as long. Then at least as long as it
#: took by the clock is for rows, and so many times as long as it took of the processor: they need the GIL and a
#: processor on their way here.
_WRITTEN_FACTOR, _REST_FACTOR = 1.75, 4.0
#: Slices since the last rows that are remembered.
_SLICES_KEPT = 1_000
#: As large as the payload of a timer there.
_PAYLOAD = b"timer"
#: Before all timers of a time.
_NO_TASK = -(2**63)
#: Of the thread that opens it: ns on a processor, ns of waiting for one, and how often.
_SCHEDULED, _SCHEDULED_BYTES = Path("/proc/thread-self/schedstat"), 100


@dataclass(frozen=True)
class SweepSettings:
    """Of the step.

    Attributes:
        every_ms: from one sweep to the next.
        slice_ms: how long a slice takes of the processor, without what is written after it (``_WRITTEN_FACTOR``).
        timer_delay_ms: of the engine, from the start of a task to its timer.
        window_ms: length of the windows of metrics.
    """

    every_ms: int = 40_000
    slice_ms: float = 1.25
    timer_delay_ms: int = 10_000
    window_ms: int = 30_000


class Sweep(weir.KeyedProcess):
    """Keeps the timers of each subtask of the engine in the order of their times, and takes those that are due."""

    #: The key is the subtask: each key once at a time would be each row.
    timer_time = "processing"
    #: By time, workflow and task.
    timers = weir.MapState((int, str, int), bytes)
    #: No timer is earlier: where the next scan begins, ms since 1970.
    place_ms = weir.ValueState(int, 0)
    #: When the first sweep was to come; each arranges the next one. 0: none is to come.
    next_ms = weir.ValueState(int, 0)
    #: Up to when the sweep that is under way takes timers; 0: none is.
    until_ms = weir.ValueState(int, 0)
    #: Timers that were taken and are not told to the windows yet.
    fired = weir.ValueState(int, 0)

    def __init__(self, settings: SweepSettings) -> None:
        self._settings = settings
        self._count = _SLICE
        #: By subtask, the timer that was taken last: many have the same time, and those before it are not walked over.
        self._last: dict[int, tuple[int, str, int]] = {}
        #: By the clock, when slices since the last rows began and ended, with what they wrote.
        self._slices: deque[tuple[float, float]] = deque(maxlen=_SLICES_KEPT)
        #: When the last slice began, and how long the longest one had the step: known afterwards, and not told yet.
        self._began_ms: float | None = None
        self._longest_ms = 0.0
        self._times = _ThreadTimes()
        #: By subtask, what was not told yet of its window: a row for each slice took as long as the slice, here and in
        #: the windows' step, and the threads between needed the GIL.
        self._tallies: dict[int, Tally] = {}

    @override
    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[Any]:
        keys, due_ms = context.keys(batch), batch["due_ms"].to_pylist()
        now_ms = context.timers.now_ms
        items = list(zip(due_ms, batch["workflow"].to_pylist(), batch["task"].to_pylist(), strict=True))
        self.timers.put(keys, items, [_PAYLOAD] * len(items))
        earliest_ms = min(due_ms)
        for _ in context.visit(keys):
            if earliest_ms <= self.place_ms.value:
                # A clock that was put back, or rows that were long on their way.
                self.place_ms.value = earliest_ms
                self._last.clear()
            if not self.next_ms.value:
                self.next_ms.value = now_ms + self._settings.every_ms
                context.timers.register_processing(self.next_ms.value)
        tally, told = self._tally_at(batch["subtask"][0].as_py(), now_ms)
        yield from told
        self._end_slice(context)
        self._tell_longest(tally)
        tally.highest("sweep_row_age_ms_max", now_ms - int(batch["_ingest_time_us"].to_numpy().min()) // 1000)
        # When the engine made the rows, which is when they began to wait for this step.
        made_ms = earliest_ms - self._settings.timer_delay_ms
        held_ms = sum(max(0.0, end_ms - max(begin_ms, made_ms)) for begin_ms, end_ms in self._slices)
        self._slices.clear()
        tally.highest("sweep_held_ms_max", max(0, math.ceil(min(held_ms, now_ms - made_ms))))

    @override
    def on_timers(self, batch: pa.RecordBatch, context: weir.KeyContext) -> list[pa.RecordBatch]:
        keys = context.keys(batch)
        subtasks = batch["subtask"].to_numpy()[keys.first_rows].tolist()
        self._end_slice(context)
        self._began_ms = context.timers.now_ms
        return [told for at in context.visit(keys) for told in self._take_slice(subtasks[at], context)]

    def _tally_at(self, subtask: int, now_ms: int) -> tuple[Tally, list[pa.RecordBatch]]:
        """Counts of the window of this moment, and what is to be told of the one before."""
        tally, told = Tally(subtask, now_ms, self._settings.window_ms), []
        before = self._tallies.get(subtask)
        if before is not None and before.row["window_ms"] == tally.row["window_ms"]:
            return before, []
        if before is not None:
            told.append(before.batch(now_ms, now_ms * 1000))
        self._tallies[subtask] = tally
        return tally, told

    def _take_slice(self, subtask: int, context: weir.KeyContext) -> list[pa.RecordBatch]:
        """Take the first timers that are due of the current key."""
        began, now_ms = self._times.now(), context.timers.now_ms
        before = self._tallies.get(subtask)
        window_ms = now_ms - now_ms % self._settings.window_ms
        if before is not None and before.row["window_ms"] != window_ms:
            self._tell_fired(before)
        tally, told = self._tally_at(subtask, now_ms)
        self._tell_longest(tally)
        until_ms = self.until_ms.value
        if not until_ms:
            tally.add("sweeps")
            until_ms = self.until_ms.value = now_ms
        place_ms = self.place_ms.value
        first, last = self._last.get(subtask), (until_ms + 1, "", _NO_TASK)
        if first is None or first[0] != place_ms:
            first = (place_ms, "", _NO_TASK)
        due = self.timers.pop_frame(first, last, limit=self._count)
        if len(due):
            times_ms = due["key_0"].to_numpy()
            self.fired.value += len(due)
            tally.add("timer_delay_ms", now_ms * len(due) - int(times_ms.sum()))
            tally.highest("timer_delay_ms_max", now_ms - int(times_ms[0]))
        took = self._times.now() - began
        if len(due) == self._count:
            time_ms, workflow, task, _ = due.row(-1)
            self._last[subtask] = time_ms, workflow, task
            self.place_ms.value = time_ms
            # Rows come between: what is due later than now is not due in this turn.
            rest_ms = max(took.clock_ms, _REST_FACTOR * took.processor_ms)
            next_ms = now_ms + math.ceil(_WRITTEN_FACTOR * took.clock_ms + rest_ms)
        else:
            self.place_ms.value, self.until_ms.value = until_ms + 1, 0
            tally.highest("sweep_took_ms_max", now_ms + math.ceil(took.clock_ms) - until_ms)
            next_ms = max(now_ms + 1, until_ms + self._settings.every_ms)
        context.timers.register_processing(next_ms)
        # By the clock a slice takes longer where others have the GIL or the processor. More of them would not help.
        self._adapt(len(due), took.processor_ms)
        tally.add("sweep_slices")
        tally.add("sweep_us", round(took.clock_ms * 1000))
        tally.add("sweep_processor_us", round(took.processor_ms * 1000))
        tally.add("sweep_queued_us", round(took.queued_ms * 1000))
        if not self.until_ms.value:
            # The sweep is over.
            self._tell_fired(tally)
            told.append(self._tallies.pop(subtask).batch(now_ms, now_ms * 1000))
        return told

    def _tell_fired(self, tally: Tally) -> None:
        """Add what was taken since the last time: of the state, so that a failure loses none and tells none twice."""
        tally.add("timers_fired", self.fired.value)
        self.fired.value = 0

    def _end_slice(self, context: weir.KeyContext) -> None:
        """Note how long the last slice had the step, which it did not know: what it deletes is written after it."""
        if self._began_ms is not None:
            took_ms = context.timers.took_s * 1000
            self._slices.append((self._began_ms, self._began_ms + took_ms))
            self._began_ms, self._longest_ms = None, max(self._longest_ms, took_ms)

    def _tell_longest(self, tally: Tally) -> None:
        tally.highest("sweep_slice_ms_max", math.ceil(self._longest_ms))
        self._longest_ms = 0.0

    def _adapt(self, count: int, took_ms: float) -> None:
        """Choose how many timers the next slice has, so that it takes about ``slice_ms`` of the processor."""
        if count < self._count:
            return
        factor = min(_GROWTH_MAX, self._settings.slice_ms / max(took_ms, 0.1))
        self._count = min(_SLICE_MAX, max(_SLICE_MIN, int(self._count * factor)))


@dataclass(frozen=True)
class _Times:
    """By the clock, of a processor, and of waiting for one, which tells who is slow: the slice, or the machine."""

    clock_ms: float
    processor_ms: float
    queued_ms: float

    def __sub__(self, before: _Times) -> _Times:
        return _Times(
            self.clock_ms - before.clock_ms,
            self.processor_ms - before.processor_ms,
            self.queued_ms - before.queued_ms,
        )


class _ThreadTimes:
    """Reads the times of the thread that calls it."""

    def __init__(self) -> None:
        self._thread = 0
        self._scheduled: int | None = None

    def now(self) -> _Times:
        """Return the times so far; where the kernel does not say, the thread has never waited."""
        if self._thread != threading.get_ident():
            self._thread, self._scheduled = threading.get_ident(), self._opened()
        queued_ns = 0
        if self._scheduled is not None:
            queued_ns = int(os.pread(self._scheduled, _SCHEDULED_BYTES, 0).split()[1])
        return _Times(time.monotonic() * 1000, time.thread_time() * 1000, queued_ns / 1e6)

    def _opened(self) -> int | None:
        # It stays open: with each call of the system other threads take the GIL, and a slice waits for it again.
        try:
            opened = os.open(_SCHEDULED, os.O_RDONLY)
        except OSError:
            return None
        weakref.finalize(self, os.close, opened)
        return opened
