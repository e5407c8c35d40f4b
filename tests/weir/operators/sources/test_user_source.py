"""A user's source gives all rows once, whatever the cut and the number of subtasks; times, limits and bad rows too."""

from __future__ import annotations

import datetime
import json
import random

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.effort import cases
from weir.author.operator import OperatorContext, Poll
from weir.errors import GraphError, InputError
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.registry import create_reader
from weir.rows.records import WATERMARK_MIN_MS, with_system_columns
from weir.testing.manual_clock import ManualClock

SCHEMA = {"id": int, "name": weir.Nullable(str)}
START_US = 1_700_000_000_000_000


class Numbers(weir.Source):
    """``splits`` splits of ``size`` numbers each; some at a time, and now and then nothing; every tenth row is bad."""

    def __init__(self, splits=3, size=40, chunk=7, open_max=None):
        self._splits, self._size, self._chunk = splits, size, chunk
        self.open_splits_max = open_max

    def splits(self):
        return [{"first": number * self._size} for number in range(self._splits)]

    def read(self, split, position):
        at = position or 0
        while at < self._size:
            numbers = range(at, min(at + self._chunk, self._size))
            at = numbers.stop
            rows = [{"id": n + split["first"] if n % 10 else None, "name": str(n)} for n in numbers]
            yield rows, at
            yield None


class Run:
    """All subtasks of a source in one process."""

    def __init__(self, spec, parallelism=1, restored=None, clock=None, dead=None):
        self.clock = clock or ManualClock(START_US)
        self.rows, self.times, self.letters = [], [], []
        self.readers = []
        for index in range(parallelism):
            reader = create_reader(spec)
            if dead is not None:
                self.letters.append(DeadLetterFile(dead, "job", "source", index))
            reader.open(
                OperatorContext(
                    "job",
                    "source",
                    0,
                    index,
                    parallelism,
                    job_start_us=START_US,
                    clock=self.clock,
                    dead_letters=self.letters[index] if dead is not None else None,
                    restored=restored or {},
                    subtask_indices=tuple(range(parallelism)),
                )
            )
            self.readers.append(reader)

    def poll(self, index=0, rows_max=1000):
        poll = self.readers[index].poll(rows_max)
        if poll.batch is not None:
            self.rows += poll.batch.to_pylist()
        self.times.append(poll.event_time_ms_max)
        return poll

    def read(self, polls_max=10_000, rows_max=1000, seed=0):
        """Polls of subtasks in turn, until there were so many or all have ended."""
        dice = random.Random(seed)
        live = list(range(len(self.readers)))
        while live and polls_max:
            polls_max -= 1
            index = dice.choice(live)
            poll = self.poll(index, rows_max)
            if poll.finished:
                live.remove(index)
            elif poll.next_poll_us > self.clock.now_us():
                self.clock.advance_ms((poll.next_poll_us - self.clock.now_us() + 1) / 1000)
        self.live = live
        return self

    def stop(self):
        snapshots = {index: reader.snapshot() for index, reader in enumerate(self.readers)}
        for closable in (*self.readers, *self.letters):
            closable.close()
        return {index: json.loads(json.dumps(snapshot)) for index, snapshot in snapshots.items()}

    @property
    def ids(self):
        return [row["id"] for row in self.rows]


def spec(factory, schema=None, **settings):
    return weir.UserSource(factory, schema=schema or SCHEMA, **settings).to_spec()


GOOD = [n for n in range(120) if n % 10]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_every_split_is_read_once(parallelism):
    run = Run(spec(Numbers), parallelism).read()
    assert sorted(run.ids) == GOOD
    assert run.live == []


@pytest.mark.parametrize("seed", range(cases(12)))
@pytest.mark.parametrize("after", [2, 3])
def test_rows_come_once_over_restarts_with_other_subtasks(tmp_path, seed, after):
    dice = random.Random(seed)
    first = Run(spec(Numbers), 2, dead=tmp_path)
    first.read(dice.randrange(30), rows_max=3, seed=seed)
    second = Run(spec(Numbers), 2, first.stop(), dead=tmp_path)
    second.read(dice.randrange(20), rows_max=2, seed=seed)
    third = Run(spec(Numbers), after, second.stop(), dead=tmp_path).read(seed=seed)
    third.stop()
    assert sorted(first.ids + second.ids + third.ids) == GOOD
    lines = [line for path in (tmp_path / "job").iterdir() for line in path.read_text().splitlines()]
    letters = [(entry["source"], entry["position"]) for entry in map(json.loads, lines)]
    assert len(set(letters)) == len(letters) == 12
    assert sum(reader.rejected for reader in third.readers) == 12


def test_a_bad_row_is_told_with_its_number_and_reason(tmp_path):
    def read(position):
        yield [{"id": 1}, {"id": "x"}, {"name": "y"}, 7], "behind"

    run = Run(spec(read), dead=tmp_path).read()
    run.stop()
    assert run.ids == [1]
    entries = [json.loads(line) for line in (tmp_path / "job/source.0.jsonl").read_text().splitlines()]
    assert [(entry["source"], entry["position"]) for entry in entries] == [
        ("source:null", 1),
        ("source:null", 2),
        ("source:null", 3),
    ]
    assert entries[0]["reason"].startswith("field id: ")
    assert entries[1]["reason"] == "field id is null"
    assert entries[1]["raw"] == '{"name":"y"}'
    with pytest.raises(InputError, match=r'source:null row 1: field id: .*on_bad_record="dead_letter"'):
        Run(spec(read, on_bad_record="fail")).read()


@pytest.mark.parametrize(
    "table", [pa.table({"x": [0], "name": ["a"], "id": [3]}), pl.DataFrame({"id": [3], "name": ["a"]})]
)
def test_tables_are_rows_too(table):
    def read(position):
        yield table, 1

    assert [row["id"] for row in Run(spec(read)).read().rows] == [3]


def test_a_generator_function_is_a_source_with_one_split():
    def read(position):
        for number in range(position or 0, 5):
            yield [{"id": number}], number + 1

    run = Run(spec(read), 2)
    run.poll(0)
    assert run.ids == [0]
    assert Run(spec(read), 1, run.stop()).read().ids == [1, 2, 3, 4]


def test_one_split_at_a_time_keeps_their_order():
    run = Run(spec(lambda: Numbers(open_max=1))).read()
    assert run.ids == GOOD
    cut = Run(spec(lambda: Numbers(splits=12, open_max=1)))
    cut.read(9)
    rest = Run(spec(lambda: Numbers(splits=12, open_max=1)), 1, cut.stop()).read()
    assert cut.ids + rest.ids == [n for n in range(480) if n % 10]


def test_limit_and_rate():
    run = Run(spec(Numbers, events=50), 2).read()
    assert len(run.ids) == 50
    paced = Run(spec(Numbers, rate=1000))
    paced.read()
    assert sorted(paced.ids) == GOOD
    assert paced.clock.now_us() - START_US >= 107_000
    assert [row["_ingest_time_us"] for row in paced.rows] == [START_US + 1000 * n for n in range(108)]


class Timed(weir.Source):
    """Split "slow" has an early time, then nothing; "quick" has later and later ones."""

    def __init__(self, ends):
        self._ends = ends

    def splits(self):
        return ["slow", "quick"]

    def read(self, split, position):
        if split == "slow":
            yield [{"id": 5}], 1
            while not self._ends:
                yield None
            return
        for number in range(position or 100, 200):
            yield [{"id": number}], number + 1


def test_the_watermark_follows_the_split_that_is_behind_until_it_is_idle():
    run = Run(spec(lambda: Timed(False), event_time="id"))
    times = [run.poll().event_time_ms_max for _ in range(6)]
    assert times[0] == WATERMARK_MIN_MS
    assert times[1:] == [5] * 5
    run.clock.advance_ms(1001)
    assert run.poll().event_time_ms_max == 105
    again = Run(spec(lambda: Timed(False), event_time="id"), 1, run.stop(), run.clock)
    # Also after a restart, although that split counts again: what was told is not taken back.
    assert again.poll().event_time_ms_max == 105


def test_a_split_that_has_ended_does_not_hold_back_the_watermark():
    run = Run(spec(lambda: Timed(True), event_time="id"))
    times = [run.poll().event_time_ms_max for _ in range(4)]
    assert times == [WATERMARK_MIN_MS, 5, 101, 102]


class Mailbox(weir.Source):
    listed = ("a", "b")

    def splits(self):
        return list(self.listed)

    def read(self, split, position):
        yield [{"id": ord(split)}], 1


@pytest.mark.parametrize("after", [1, 2, 3])
def test_new_splits_are_taken_in_once_also_after_a_restart(monkeypatch, after):
    described = spec(Mailbox, discover_ms=20)
    run = Run(described, 2).read(20)
    assert sorted(run.ids) == [97, 98]
    monkeypatch.setattr(Mailbox, "listed", ("a", "b", "c", "d", "e"))
    run.read(20)
    assert sorted(run.ids) == [97, 98, 99, 100, 101]
    assert run.live == [0, 1]
    monkeypatch.setattr(Mailbox, "listed", ("b", "c", "d", "e", "f", "g"))
    again = Run(described, after, run.stop()).read(40)
    assert sorted(again.ids) == [102, 103]
    assert '"a"' not in again.readers[0].snapshot()["done"]


def test_a_split_that_has_nothing_is_asked_later_and_later():
    def read(position):
        while True:
            yield None

    run = Run(spec(read))
    waits = []
    for _ in range(9):
        waits.append(run.poll().next_poll_us - run.clock.now_us())
        run.clock.advance_ms(waits[-1] / 1000)
    assert waits == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 500_000, 500_000]


class Own(weir.SourceReader):
    def open(self, context):
        self._left = 2

    def poll(self, rows_max):
        self._left -= 1
        batch = pa.record_batch({"id": [self._left], "name": ["n"]})
        return Poll(finished=True) if self._left < 0 else Poll(batch=with_system_columns(batch, 1, 2))


def test_a_reader_of_ones_own_is_taken_as_it_is():
    assert Run(spec(Own)).read().ids == [1, 0]


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        (3, {}, "expected a class, or a function that makes a weir.Source, got int"),
        (
            Numbers,
            {"discover_ms": 0},
            "discover_ms is 0; it must be a number of milliseconds above 0, or None",
        ),
        (Numbers, {"on_bad_record": "x"}, "on_bad_record is 'x'"),
    ],
)
def test_wrong_settings_are_refused(source, settings, message):
    with pytest.raises(GraphError, match=message):
        spec(source, **settings)


def test_mistakes_of_the_author_are_told():
    with pytest.raises(GraphError, match=r"factory returned int, not a weir\.Source"):
        create_reader(spec(lambda: 3))

    class Twice(Numbers):
        def splits(self):
            return [1, 2, 1]

    with pytest.raises(GraphError, match="source source: split 1 is listed twice"):
        Run(spec(Twice))

    for wrong in ("a.db", {"a": 1}, None, 3):

        class NoList(Numbers):
            def splits(self, wrong=wrong):
                return wrong

        with pytest.raises(GraphError, match=rf"source source: splits returned {wrong!r}; return a list"):
            Run(spec(NoList))

    async def waits(position):
        yield [{"id": 1}], 1

    with pytest.raises(GraphError, match=r"its function is async; read\(position\) is a plain generator"):
        create_reader(spec(waits))

    def bare(position):
        yield [{"id": 1}]

    with pytest.raises(GraphError, match="source source: read yields \\(rows, position\\) or None, not list"):
        Run(spec(bare)).read()

    def strange(position):
        yield [{"id": 1}], object()

    with pytest.raises(InputError, match="splits and positions must be JSON values"):
        Run(spec(strange)).read(1).stop()

    def lacking(position):
        yield pa.table({"name": ["a"]}), 1

    with pytest.raises(GraphError, match="source source: the rows have no column 'id', only name"):
        Run(spec(lacking)).read()


class Backlog(weir.Source):
    """Two splits; one has twenty times as many rows an hour."""

    def splits(self):
        return ["dense", "sparse"]

    def read(self, split, position):
        step = 1 if split == "dense" else 20
        for at in range(position or 0, 2_000, 10 * step):
            yield [{"id": at + n * step} for n in range(10)], at + 10 * step


def test_the_split_that_is_behind_is_read_first():
    run = Run(spec(Backlog, event_time="id"))
    furthest = {}
    apart = 0
    while not (polled := run.poll()).finished:
        if polled.batch is not None:
            times = polled.batch["id"].to_pylist()
            furthest["sparse" if times[1] - times[0] == 20 else "dense"] = times[-1]
        if len(furthest) == 2 and run.times[-1] < 1_500:
            apart = max(apart, abs(furthest["sparse"] - furthest["dense"]))
    assert apart <= 800, "in turn the sparse split would be at its end when the dense one is at its beginning"


def test_a_split_that_stays_behind_does_not_stop_the_others():
    def read_all():
        class Stuck(weir.Source):
            def splits(self):
                return ["stuck", "goes on"]

            def read(self, split, position):
                for number in range(1_000):
                    yield [{"id": 1 if split == "stuck" else 10 + number}], number

        run = Run(spec(Stuck, event_time="id"))
        for _ in range(400):
            run.poll()
        return run.ids

    assert max(read_all()) >= 15


def test_a_position_that_the_source_goes_on_changing_stays_in_a_snapshot():
    class Moving(weir.Source):
        """One position, which moves."""

        def read(self, split, position):
            at = position or {"next": 0}
            while at["next"] < 40:
                rows = [{"id": n, "name": None} for n in range(at["next"], at["next"] + 8)]
                at["next"] += 8
                yield rows, at

    first = Run(spec(Moving)).read(3, rows_max=6)
    second = Run(spec(Moving), restored=first.stop()).read(2, rows_max=5)
    third = Run(spec(Moving), restored=second.stop()).read()
    assert first.ids + second.ids + third.ids == list(range(40))


US = datetime.datetime(2026, 1, 1, 0, 0, 0, 123456)
MS = datetime.datetime(2026, 1, 1, 0, 0, 0, 123000)
#: Declared type, a value with more digits and one without, and the path of the time.
TIMES = [
    (pl.Datetime("ms"), US, MS, "at"),
    (pl.List(pl.Datetime("ms")), [MS, US], [MS], "at"),
    (pl.Array(pl.Datetime("ms"), 2), [MS, US], [MS, MS], "at"),
    (pl.Struct({"when": pl.Datetime("ms")}), {"when": US}, {"when": MS}, "at.when"),
    (pl.Duration("ms"), US - MS, MS - MS, "at"),
]


@pytest.mark.parametrize(("dtype", "long", "short", "path"), TIMES)
@pytest.mark.parametrize("form", ["dicts", "polars", "arrow"])
def test_times_with_more_digits_than_their_column(dtype, long, short, path, form):
    values = [short, None, long, short, short]
    rows = [{"at": value} for value in values]
    fixed = {"at": pl.Array(pl.Datetime("us"), 2)} if isinstance(dtype, pl.Array) else None
    if form == "polars":
        rows = pl.DataFrame({"at": values}, schema_overrides=fixed)
    elif form == "arrow":
        rows = pa.table({"at": pa.array(values, pa.list_(pa.timestamp("us"), 2) if fixed else None)})

    def read(position):
        if position is None:
            yield rows, 1

    flow = weir.Dataflow("digits")
    source = weir.UserSource(read, schema={"at": weir.Nullable(dtype)})
    flow.source("rows", source).sink("out", weir.Blackhole())
    result = weir.run(flow, collect="rows")
    assert [row["at"] for row in result["rows"]] == [short, None, short, short]
    (letter,) = result.dead_letters
    assert letter.position == 2
    assert letter.reason.startswith(f"field {path} has more digits than ms: ")
