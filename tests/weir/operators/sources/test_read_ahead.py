"""A user's source that runs in a thread of its own: what it yields one by one is gathered, and nothing is held back."""

from __future__ import annotations

import itertools
import json
import queue
import random
import threading

import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.clock import SystemClock
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader

SCHEMA = {"id": int}
#: For what comes at once, however busy the machine is.
PATIENCE_S = 60


class Run:
    """One subtask: it polls when something is due, and sleeps until then, or until it is woken."""

    def __init__(self, factory, restored=None, dead=None, subtasks=1, **settings):
        self.woken = threading.Event()
        self.reader = create_reader(weir.UserSource(factory, schema=SCHEMA, **settings).to_spec())
        self.letters = None if dead is None else DeadLetterFile(dead, "job", "source", 0)
        self.clock = SystemClock()
        self.batches = []
        self.finished = False
        self.reader.open(
            OperatorContext(
                "job",
                "source",
                0,
                0,
                subtasks,
                job_start_us=self.clock.now_us(),
                dead_letters=self.letters,
                restored=restored or {},
                subtask_indices=tuple(range(subtasks)),
                wake=self.woken.set,
            )
        )

    def poll(self, rows_max=1_000):
        polled = self.reader.poll(rows_max)
        self.finished = polled.finished
        if polled.batch is not None:
            self.batches.append(polled.batch["id"].to_pylist())
        wait_s = (polled.next_poll_us - self.clock.now_us()) / 1e6 if polled.next_poll_us else 0
        if wait_s > 0 and not polled.finished:
            self.woken.wait(wait_s)
        self.woken.clear()
        return polled

    def read(self, rows=None, rows_max=1_000):
        """Until so many rows are there, or to the end."""
        deadline_s = self.clock.monotonic_s() + PATIENCE_S
        while not self.finished and (rows is None or len(self.ids) < rows):
            assert self.clock.monotonic_s() < deadline_s, self.ids
            self.poll(rows_max)
        return self.ids

    @property
    def ids(self):
        return list(itertools.chain.from_iterable(self.batches))

    def stop(self):
        snapshot = json.loads(json.dumps(self.reader.snapshot()))
        self.reader.close()
        if self.letters is not None:
            self.letters.close()
        return {0: snapshot}


def singles(position, count=5_000):
    for number in range(position or 0, count):
        yield [{"id": number}], number + 1


@pytest.mark.parametrize("settings", [{}, {"rate": 50_000}])
def test_single_rows_are_gathered(settings):
    run = Run(singles, **settings)
    assert run.read() == list(range(5_000))
    run.stop()
    # The paced ones come for a tenth of a second, at least 2.75 ms apart.
    assert len(run.batches) < 300


class Waits(weir.Source):
    """Its iterator waits for rows in ``next``; every method is called in one thread, not the test's."""

    def __init__(self, given):
        self._given = given
        self.threads = set()
        self.closed = threading.Event()

    def open(self, context):
        self.threads.add(threading.current_thread())

    def splits(self):
        self.threads.add(threading.current_thread())
        return [None]

    def read(self, split, position):
        self.threads.add(threading.current_thread())
        while (number := self._given.get(timeout=PATIENCE_S)) is not None:
            yield [{"id": number}], number

    def close(self):
        self.threads.add(threading.current_thread())
        self.closed.set()


@pytest.mark.parametrize("rate", [None, 1_000])
def test_no_row_waits_for_the_next_one(rate):
    given = queue.SimpleQueue()
    source = Waits(given)
    run = Run(lambda: source, rate=rate)
    for number in range(10):
        for again in range(number):
            given.put(100 * number + again)
        # The iterator waits now, and will until this row has come.
        given.put(number)
        run.read(sum(range(1, number + 2)))
    given.put(None)
    run.read()
    run.stop()
    assert source.closed.is_set()
    [thread] = source.threads
    assert thread is not threading.current_thread()


def test_the_end_does_not_wait_for_an_iterator_that_waits():
    given = queue.SimpleQueue()
    source = Waits(given)
    run = Run(lambda: source)
    given.put(7)
    run.read(1)
    run.stop()
    assert not source.closed.is_set()
    given.put(8)
    assert source.closed.wait(PATIENCE_S)


def test_a_split_that_waits_is_idle_after_a_while():
    given = queue.SimpleQueue()
    run = Run(lambda: Waits(given))
    given.put(7)
    run.read(1)
    [split] = run.reader._open_splits
    while split.empty_since_s is None:
        run.poll()
    given.put(8)
    run.read(2)
    assert split.empty_since_s is None
    given.put(None)
    run.read()
    run.stop()


@pytest.mark.parametrize("rate", [None, 100_000])
def test_the_position_is_that_of_the_rows_that_were_given_out(rate):
    run = Run(singles, rate=rate)
    for rows_max in (1, 3, 50, 7):
        run.poll(rows_max)
        given = len(run.ids)
        [split] = run.reader.snapshot()["splits"]
        _, _, position, rows, skip, _, _ = split
        assert (position or 0, rows, skip) == (given, given, 0)
    run.stop()


class Mixed(weir.Source):
    """Pieces of none to three rows, tables, nothing, bad rows and letters."""

    def open(self, context):
        self._letters = context.dead_letters

    def splits(self):
        return [0, 1]

    def read(self, split, position):
        dice = random.Random(split)
        at = 0
        while at < 300:
            count = dice.choice((0, 1, 1, 1, 2, 3))
            what = dice.random()
            numbers = [2 * n + split for n in range(at, at + count)]
            at += count
            if (position or 0) >= at or not count:
                continue
            if what < 0.1:
                yield None
            if what > 0.95:
                self._letters.reject(f"mine {split}", at, "bad", b"")
            rows = [{"id": number if number % 10 else None} for number in numbers]
            yield (
                (
                    pa.table({"id": [r["id"] for r in rows]}, pa.schema([("id", pa.int64())]))
                    if 0.2 < what < 0.3
                    else rows
                ),
                at,
            )


@pytest.mark.parametrize("seed", range(cases(2)))
def test_rows_come_once_over_restarts(tmp_path, seed):
    dice = random.Random(seed)
    restored, ids = None, []
    for polls in (dice.randrange(40), dice.randrange(40), None):
        run = Run(Mixed, restored, tmp_path)
        if polls is None:
            run.read()
        for _ in range(polls or 0):
            if not run.finished:
                run.poll(dice.choice((1, 2, 5, 100)))
        ids += run.ids
        restored = run.stop()
    assert sorted(ids) == [n for n in range(600) if n % 10]
    lines = [line for path in (tmp_path / "job").iterdir() for line in path.read_text().splitlines()]
    entries = [(entry["source"], entry["position"]) for entry in map(json.loads, lines)]
    assert len(set(entries)) == len(entries) >= 60


class Found(weir.Source):
    """Splits that come one after the other; the first one waits for its second row for ever."""

    def __init__(self, listed, waits):
        self._listed, self._waits = listed, waits

    def splits(self):
        return list(self._listed)

    def read(self, split, position):
        if position is None:
            yield [{"id": split}], 1
        if split == 0 and position != 2:
            yield [{"id": self._waits.get(timeout=PATIENCE_S)}], 2


def test_splits_that_are_found_later_are_read_too():
    listed, waits = [0, 1], queue.SimpleQueue()
    run = Run(lambda: Found(listed, waits), discover_ms=5)
    assert sorted(run.read(2)) == [0, 1]
    # The list waits for the iterator, which is in the same thread; what came before does not.
    listed.append(2)
    waits.put(9)
    assert sorted(run.read(4)) == [0, 1, 2, 9]
    restored = run.stop()
    listed.append(3)
    again = Run(lambda: Found(listed, waits), restored, discover_ms=5)
    assert again.read(1) == [3]
    again.stop()


def test_an_error_comes_after_the_rows_before_it():
    def breaks(position):
        yield from ((item, at) for item, at in singles(position, 40))
        raise ConnectionError("away")

    run = Run(breaks)
    with pytest.raises(ConnectionError, match="away"):
        run.read()
    assert run.ids == list(range(40))
    run.reader.close()


def test_wide_rows_are_not_read_far_ahead():
    read = []

    def wide(position):
        for number in range(200):
            read.append(number)
            yield [{"id": number, "text": "x" * (1 << 20)}], number

    spec = weir.UserSource(wide, schema={"id": int, "text": str}).to_spec()
    woken = threading.Event()
    reader = create_reader(spec)
    reader.open(OperatorContext("job", "source", 0, 0, 1, wake=woken.set))
    given = 0
    while given < 150:
        polled = reader.poll(1_000)
        given += 0 if polled.batch is None else polled.batch.num_rows
        if polled.batch is None:
            woken.wait(0.1)
            woken.clear()
        # 64 until their size is known; 4 MiB then.
        assert len(read) - given <= 64 + 2
        assert given < 70 or len(read) - given <= 8
    reader.close()


class Reusing(weir.Source):
    """Fills the same list, the same dict and the same position again and again, also that which it is given."""

    def __init__(self, size=200, chunk=7):
        self._size, self._chunk = size, chunk

    def read(self, split, position):
        """See the base class."""
        at = {"next": [0]} if position is None else position
        row, rows = {}, []
        while at["next"][0] < self._size:
            rows.clear()
            for number in range(at["next"][0], min(at["next"][0] + self._chunk, self._size)):
                row["id"] = number
                rows.append(dict(row) if self._chunk > 1 else row)
            at["next"][0] += len(rows)
            yield rows, at


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("seed", range(3))
def test_a_source_may_fill_the_same_objects_again(seed, chunk):
    dice, restored, ids = random.Random(seed), None, []
    for last in (False, False, True):
        run = Run(lambda: Reusing(chunk=chunk), restored)
        ids += run.read(None if last else dice.randrange(20, 60), rows_max=3)
        restored = run.stop()
        kept = json.dumps(restored)
    assert ids == list(range(200))
    assert json.dumps(restored) == kept
