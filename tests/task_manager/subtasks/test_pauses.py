"""Timers that take long: barriers pass between two of them, and a restart there changes nothing of what is said."""

from __future__ import annotations

import random
from collections import defaultdict

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from tests.task_manager.subtasks.paused_job import ALIGNMENT_MS, Job, ended
from weir.dataflow.keyed_steps import process_states
from weir.operators.keyed.process_operator import KeyedProcessOperator
from weir.rows import row_watermarks
from weir.rows.records import WATERMARK_MAX_MS, Barrier, Watermark
from weir.rows.row_watermarks import RowWatermarks
from weir.specs import KeyedProcessSpec

KEYS = pa.schema({"k": pa.int64()})
SCHEMA = pa.schema({"k": pa.int64(), "at": pa.int64(), "n": pa.int64()})
BOUND_MS, DELAY_MS = 20, 100
SLOW_MS = 700


class Timed(weir.KeyedProcess):
    """Counts rows and timers of its key; some timers register another one."""

    n = weir.ValueState(pl.Int64, default=0)
    passes, registers_more = None, True

    def process(self, key, row, context):
        self.n.value += 1
        context.timers.register(context.event_time_ms + DELAY_MS)
        yield {"k": key[0], "at": None, "n": self.n.value}

    def on_timer(self, key, time_ms, context):
        self.passes(lasts_ms(key[0], time_ms))
        self.n.value += 1000
        if self.registers_more and time_ms % 3 == 0:
            context.timers.register(time_ms + 7)
        yield {"k": key[0], "at": time_ms, "n": self.n.value}


class TimedTogether(Timed):
    """Many timers at once, of several times: what they register comes after all of them, so these register none."""

    registers_more = False

    def on_timers(self, batch, context):
        times = batch["_event_time_ms"].to_pylist()
        keys = context.keys(batch)
        made = []
        order = defaultdict(list)
        for row, position in enumerate(keys.inverse.tolist()):
            order[position].append(row)
        for position in context.visit(keys):
            for row in order[position]:
                key = batch["k"][row].as_py()
                made += list(self.on_timer((key,), times[row], context))
        yield pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def lasts_ms(key, time_ms):
    """Virtual time of a timer: some are as fast as the clock can tell, some are slow."""
    return (0, 1, SLOW_MS)[(key * 31 + time_ms) % 3]


def made(kind):
    states = process_states("slow", kind)

    def make(passes):
        bound = type(kind.__name__, (kind,), {"passes": staticmethod(passes)})
        return KeyedProcessOperator(KeyedProcessSpec(("k",), bound, SCHEMA, states, KEYS))

    return make, {state.name: number for number, state in enumerate(states)}


def batch_of(rows, highest_ms):
    """Rows of keys and times, after others up to a time, as a source gives them."""
    keys, times = zip(*rows, strict=True)
    times_ms = np.array(times, dtype=np.int64)
    highest = np.maximum(np.maximum.accumulate(times_ms), highest_ms)
    column = row_watermarks.of_split(times_ms, highest, BOUND_MS, WATERMARK_MAX_MS, RowWatermarks.ALL)
    plain = weir.with_times(pa.record_batch({"k": pa.array(keys, pa.int64())}), times_ms, 0)
    return row_watermarks.with_column(plain, column)


def elements_of(rng, rows):
    """Rows in random batches, watermarks and barriers among them."""
    elements, first, highest_ms = [], 0, -(2**62)
    while first < len(rows):
        stop = first + rng.choice((1, 2, 5, 40, 200))
        part = rows[first:stop]
        elements.append(batch_of(part, highest_ms))
        highest_ms = max(highest_ms, *(time_ms for _, time_ms in part))
        first = stop
        if rng.random() < 0.3:
            elements.append(Watermark(highest_ms - BOUND_MS))
        if rng.random() < 0.5:
            elements.append(Barrier(sum(isinstance(element, Barrier) for element in elements) + 1))
    return ended(elements)


def said(rows, registers_more):
    """By key, in order: rows and timers as (time of the timer or None, count)."""
    found, counts, timers = defaultdict(list), defaultdict(int), set()
    highest_ms = -(2**62)

    def fire(until_ms):
        while due := min((timer for timer in timers if timer[0] <= until_ms), default=None):
            timers.discard(due)
            time_ms, key = due
            counts[key] += 1000
            if registers_more and time_ms % 3 == 0:
                timers.add((time_ms + 7, key))
            found[key].append((time_ms, counts[key]))

    for key, time_ms in rows:
        highest_ms = max(highest_ms, time_ms)
        fire(highest_ms - BOUND_MS)
        counts[key] += 1
        timers.add((time_ms + DELAY_MS, key))
        found[key].append((None, counts[key]))
    fire(2**62)
    return dict(found)


def by_key(told):
    found = defaultdict(list)
    for row in told:
        found[row["k"]].append((row["at"], row["n"]))
    return dict(found)


def rows_of(rng):
    """Keys and times: bursts of many keys at about one time, then a leap that makes the timers of all due."""
    rows, now_ms = [], 1000
    for _ in range(rng.randrange(2, 6)):
        for _ in range(rng.choice((3, 30, 90))):
            now_ms += rng.choice((0, 0, 1, 3))
            rows.append((rng.randrange(25), now_ms - rng.randrange(BOUND_MS)))
        now_ms += rng.choice((50, 1000))
    return rows


@pytest.mark.parametrize(
    ("kind", "seed"), [(TimedTogether if seed % 2 else Timed, seed) for seed in range(cases(6))]
)
def test_restarts_between_timers_change_nothing(kind, seed):
    rng = random.Random(seed)
    rows = rows_of(rng)
    make, states = made(kind)
    job = Job(make, states, elements_of(rng, rows))
    expected = said(rows, kind.registers_more)
    assert by_key(job.run()) == expected
    for checkpoint in list(job.checkpoints.values()):
        assert by_key(job.run(checkpoint)) == expected


def test_a_checkpoint_takes_hardly_longer_than_one_timer_and_the_time_for_alignment():
    """500 keys, whose timers one row makes due, and others the end of the input."""
    rows = [(key, 1000) for key in range(300)] + [(1, 5000)]
    make, states = made(Slow)
    barriers = [Barrier(number) for number in range(1, 40)]
    job = Job(make, states, ended([batch_of(rows, -(2**62)), *barriers]), apart_ms=5000)
    assert sum(row["at"] is not None for row in job.run()) == 301
    assert len(job.checkpoints) == 39
    # Of a step of which nothing is known more is done at once.
    assert max(job.durations_s[3:]) * 1e3 <= ALIGNMENT_MS + 2 * SLOW_MS


class ByTheClock(Timed):
    """A row registers a timer of its own."""

    def process(self, key, row, context):
        context.timers.register_processing(context.timers.now_ms + DELAY_MS)
        yield {"k": key[0], "at": None, "n": context.event_time_ms}

    def on_timer(self, key, time_ms, context):
        self.passes(SLOW_MS)
        yield {"k": key[0], "at": time_ms, "n": 0}


def test_rows_do_not_wait_for_all_timers_that_are_due_by_the_clock():
    """After a restart rows waited for all timers that had been due since the checkpoint: 12 s for those of 11 s."""
    early, late = range(100), range(100, 110)
    make, states = made(ByTheClock)
    first = [batch_of([(key, 1000) for key in early], -(2**62)), Barrier(1)]
    elements = ended([*first, *(batch_of([(key, 1000)], 1000) for key in late), Barrier(2)])
    job = Job(make, states, elements, apart_ms=200)
    told = job.run()
    rows = [at for at, row in enumerate(told) if row["at"] is None]
    fired = [(row["at"], row["k"]) for row in told if row["at"] is not None]
    assert len(rows) == len(early) + len(late)
    # Each row waits for a part.
    assert sum(row["at"] is not None for row in told[: rows[-1]]) < 40
    # At the end those fire that were due before, and no others.
    assert [time_ms for time_ms, _ in fired] == sorted(time_ms for time_ms, _ in fired)
    assert len(set(fired)) == len(fired)
    assert {key for _, key in fired} >= set(early)


class Slow(Timed):
    def on_timer(self, key, time_ms, context):
        self.passes(SLOW_MS)
        yield {"k": key[0], "at": time_ms, "n": 0}
