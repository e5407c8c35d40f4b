"""Windows that have not fired are told as they would leave the step now, whoever is asked and however."""

import itertools
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import weir
from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.live_reading import LiveReading
from task_manager.queries.state_copies import copy_part
from tests.effort import cases
from weir.author.operator import DividedOperator, OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.queries import pane_runs
from weir.operators.queries import panes as pane_questions
from weir.operators.queries.answering import answer_one, answer_range, asked_state
from weir.operators.queries.reading import StoredReading
from weir.operators.queries.state_format import ABSENT, Cut
from weir.operators.registry import create_operator
from weir.protocol.queries import QueryError, Question
from weir.rows.records import user_columns, with_times
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.state.tables.panes.window_entries import NOTHING_MS
from weir.state.tables.timers.time_first import time_bytes
from weir.types import SubtaskId

GROUPS, STATE = 4, 9
SOURCE = weir.JsonLines("none", schema={"k": str, "v": int})
#: Its rows have a text of their number, too.
TEXT_SOURCE = weir.JsonLines("none", schema={"k": str, "v": int, "t": str})
KEYS = [f"key-{number:02}"[: 3 + number % 4] + str(number) for number in range(12)]
WINDOWS = {
    "tumbling": weir.tumbling("10ms", offset="3ms"),
    "sliding": weir.sliding("40ms", "10ms", offset="2ms"),
    "cumulative": weir.cumulative("40ms", "10ms"),
    "session": weir.session("7ms"),
}
_CACHES = (1 << 12, 1 << 20)
#: Each kind of window with a small cache or a large one; in long runs with both.
KINDS_AND_CACHES = [
    (kind, _CACHES[(number + more) % 2]) for number, kind in enumerate(WINDOWS) for more in range(cases(1, 2))
]
AGGREGATES = {
    "n": weir.count(),
    "total": weir.sum("v"),
    "mean": weir.mean("v"),
    "most": weir.max("v"),
    "last": weir.last("v"),
    "top": weir.largest("v", 2),
    "spread": weir.stddev("v"),
    "some": weir.sum("v").where(pl.col("v") > 50),
}


def table_of(page):
    """The batches of a page, together."""
    return pa.Table.from_batches(list(page.batches()))


class Stored(StoredReading):
    """A store as it is."""

    def __init__(self, backend, numbers=None):
        self._backend, self._numbers, self.watermark_ms = backend, numbers or {}, 0

    def get_many(self, keys):
        return self._backend.get_many(keys)

    def scan(self, start, stop, *, reverse=False):
        return self._backend.scan(start, stop, reverse=reverse)

    def number_of(self, state):
        return self._numbers[state]

    def check(self):
        pass


class Job:
    """One window step, with rows in any order up to 30 ms behind the first."""

    def __init__(
        self, window, aggregates=AGGREGATES, cache_bytes=1 << 20, make=None, source=SOURCE, **updates
    ):
        flow = weir.Dataflow("asked", max_parallelism=GROUPS)
        self.has_texts = source is TEXT_SOURCE
        rows = flow.source("rows", source)
        windowed = rows.key_by("k").window(window, **updates)
        made = windowed.aggregate("step", **aggregates) if make is None else make(windowed)
        made.sink("out", weir.Blackhole())
        self.graph = flow.build()
        node = next(node for node in self.graph.nodes if node.name == "step")
        self.operator = create_operator(node.spec)
        self.backend = MemoryBackend()
        self.numbers = {name: STATE + number for number, name in enumerate(node.states.values())}
        self.backend.ownership = SimpleNamespace(epoch=lambda group: 1)
        self.tables = StateTables(self.backend, cache_bytes, GROUPS)
        names = {name: STATE + number for number, name in enumerate(node.states)}
        context = OperatorContext(
            "asked",
            "step",
            1,
            0,
            1,
            max_parallelism=GROUPS,
            tables=self.tables.of("step", names),
            schema=node.schema,
        )
        self.operator.open(context)
        self.emitted, self.states = [], {}

    def take(self, keys, times, values):
        columns = {"k": keys, "v": pa.array(values, pa.int64())}
        if self.has_texts:
            columns["t"] = pa.array([f"text {value}" for value in values], pa.string())
        batch = pa.RecordBatch.from_pydict(columns)
        self.take_batch(with_times(batch, pa.array(times, pa.int64()), pa.array([0] * len(keys))))

    def take_batch(self, batch):
        self._note(self.operator.process(batch))

    def take_random(self, random, rows, now_ms):
        keys = [KEYS[number] for number in random.integers(len(KEYS), size=rows)]
        self.take(keys, now_ms + random.integers(-30, 60, size=rows), random.integers(100, size=rows))

    def watermark(self, time_ms):
        self._note(self.operator.on_watermark(time_ms))

    def _note(self, given):
        second = self.operator.second if isinstance(self.operator, DividedOperator) else None
        if second is not None:
            due = [item for item in given if isinstance(item, pa.RecordBatch)]
            given = itertools.chain.from_iterable(map(second.process, due))
        for item in given:
            if isinstance(item, pa.RecordBatch):
                self.emitted += item.select(user_columns(item.schema)).to_pylist()

    def results_at_the_end(self):
        """What the step emits when its input ends: each window that was not over."""
        before = len(self.emitted)
        self._note(self.operator.finish())
        return self.emitted[before:]

    # --- questions ---

    def running(self):
        return SimpleNamespace(
            group_state=SimpleNamespace(backend=SimpleNamespace(ownership=self.backend.ownership)),
            store=self.backend,
            chain=SimpleNamespace(tables=list(self.tables)),
            subtask=SimpleNamespace(subtask=SubtaskId(1, 0), progress=SimpleNamespace(watermark_ms=0)),
        )

    def asked(self, question):
        if question.state not in self.states:
            self.states[question.state] = asked_state(self.graph, question)
        return self.states[question.state]

    def one(self, reading, state, key, **given):
        question = Question("step", state, key, **given)
        asked = self.asked(question)
        return answer_one(asked, reading, STATE, asked.group_of(asked.keys.encode(key)), question)

    def page(self, reading, state, **given):
        question = Question("step", state, **given)
        asked = self.asked(question)
        return answer_range(asked, reading, STATE, range(GROUPS), question, lambda: None)

    def pages(self, reading, state, limit, **given):
        rows, after = [], ""
        while True:
            found = self.page(reading, state, limit=limit, after=after, **given)
            rows += found.rows
            if found.after is None:
                return rows
            after = found.after.hex()

    def live(self):
        return LiveReading(next(table for table in self.tables if table.state_id == STATE))

    def live_range(self, group=None):
        return LiveRange(
            [copy_part(self.running(), list(self.numbers.values()), GROUPS, group)], self.numbers
        )

    def stored(self):
        return Stored(self.backend, self.numbers)


def rounded(found):
    """Floats may be added up in another order."""
    if isinstance(found, float):
        return round(found, 9)
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return {key: rounded(each) for key, each in found.items()} if isinstance(found, dict) else found


def expected_of(results, state):
    """By key what is to be told of one aggregate."""
    found = {}
    for row in sorted(results, key=lambda row: (row["window_start"], row["window_end"])):
        window = {"start": row["window_start"], "end": row["window_end"], "value": row[state]}
        found.setdefault(row["k"], []).append(window)
    return found


@pytest.mark.parametrize(("kind", "cache_bytes"), KINDS_AND_CACHES)
def test_open_windows_are_told_as_they_will_be_emitted(kind, cache_bytes, monkeypatch):
    # Sliding windows pack their panes where the cache has them.
    monkeypatch.setattr("weir.state.tables.panes.window_table.PACKED_ENTRIES_MIN", 1)
    random = np.random.default_rng(5)
    job = Job(WINDOWS[kind], cache_bytes=cache_bytes)
    for round_number in range(4):
        job.take_random(random, 60, 1_000 + 40 * round_number)
        if round_number % 2:
            job.tables.flush()
        if round_number:
            job.watermark(1_000 + 40 * round_number - 33)
        # Questions change nothing.
        assert len(job.page(job.live_range(), "n").rows) == sum(
            job.one(job.live(), "n", key) is not ABSENT for key in KEYS
        )
    told = {
        state: {
            "one": {key: job.one(job.live(), state, key) for key in KEYS},
            "range": {row["key"]: row["value"] for row in job.page(job.live_range(), state).rows},
        }
        for state in AGGREGATES
    }
    job.tables.flush()
    stored = Stored(job.backend)
    are_packed = len(job.live()._table._packed)
    in_store = {state: {key: job.one(stored, state, key) for key in KEYS} for state in AGGREGATES}
    pages = {state: job.pages(stored, state, 5) for state in AGGREGATES}
    counts = [job.page(reading, "n", counts=True).count for reading in (stored, job.live_range())]
    results = job.results_at_the_end()
    assert len(results) > 15
    if kind == "sliding" and cache_bytes > 1 << 12:
        assert are_packed, "nothing was packed: the test does not see how it is read"
    for state in AGGREGATES:
        expected = rounded(expected_of(results, state))
        whole = {key: expected.get(key, ABSENT) for key in KEYS}
        assert rounded(told[state]["one"]) == whole, state
        assert rounded(told[state]["range"]) == expected, state
        assert rounded(in_store[state]) == whole, state
        assert rounded(pages[state]) == [{"key": key, "value": expected[key]} for key in sorted(expected)], (
            state
        )
        assert counts == [len(expected)] * 2


@pytest.mark.parametrize("kind", WINDOWS)
def test_parts_of_what_there_is(kind, monkeypatch):
    random = np.random.default_rng(6)
    job = Job(WINDOWS[kind])
    job.take_random(random, 200, 1_000)
    job.watermark(985)
    job.tables.flush()
    job.take_random(random, 50, 1_010)
    stored = job.live_range()
    given = {
        "all": (None, None),
        "some": (1_000, 1_030),
        "one": (1_010, 1_010),
        "none": (2_000, 3_000),
        "early": (None, 1_000),
        "late": (1_020, None),
        "backwards": (1_020, 1_010),
    }
    found = {}
    for name, (first, last) in given.items():
        times = {"time_from_ms": first, "time_to_ms": last}
        one = {"first": None if first is None else str(first), "last": None if last is None else str(last)}
        found[name] = (
            {key: job.one(job.live(), "total", key, **one) for key in KEYS},
            {key: job.one(job.live(), "total", key, **times) for key in KEYS},
            {key: job.one(job.live(), "total", key, reverse=True, **one) for key in KEYS},
            job.page(stored, "total", **times).rows,
            job.page(stored, "total", reverse=True, first=KEYS[3], last=KEYS[9], **times).rows,
            table_of(job.page(stored, "total", arrow=True, prefix="key-0", **times)).to_pylist(),
        )
        # Where there are too many panes to be read side by side.
        monkeypatch.setattr("weir.operators.queries.answering._RUNS_MAX", 1)
        assert job.pages(stored, "total", 3, **times) == found[name][3]
        assert (
            job.page(stored, "total", reverse=True, first=KEYS[3], last=KEYS[9], **times).rows
            == found[name][4]
        )
        monkeypatch.undo()
    expected = expected_of(job.results_at_the_end(), "total")
    is_session = kind == "session"
    for name, (first, last) in given.items():
        low, high = (-(2**62) if first is None else first), (2**62 if last is None else last)
        there = {
            key: [
                each
                for each in windows
                if (each["end"] >= low if is_session else each["start"] >= low) and each["start"] <= high
            ]
            for key, windows in expected.items()
        }
        there = {key: windows for key, windows in sorted(there.items()) if windows}
        whole = {key: there.get(key, ABSENT) for key in KEYS}
        backwards = {key: each if each is ABSENT else each[::-1] for key, each in whole.items()}
        rows = [{"key": key, "value": windows} for key, windows in there.items()]
        low_key, high_key = KEYS[3], KEYS[9]
        assert found[name] == (
            whole,
            whole,
            backwards,
            rows,
            [row for row in rows[::-1] if low_key <= row["key"] <= high_key],
            [row for row in rows if row["key"].startswith("key-0")],
        ), name


def test_windows_that_take_late_rows_or_tell_early():
    for window, updates in (
        (WINDOWS["tumbling"], {"allowed_lateness": "20ms"}),
        (WINDOWS["sliding"], {"allowed_lateness": "20ms"}),
        (WINDOWS["sliding"], {"early": weir.every("1ms", time="event")}),
        (WINDOWS["session"], {"early": weir.every("1ms", time="event")}),
        (WINDOWS["session"], {"allowed_lateness": "20ms"}),
        (WINDOWS["session"], {"allowed_lateness": "20ms", "results": "changelog"}),
    ):
        job = Job(window, {"n": weir.count(), "total": weir.sum("v")}, **updates)
        for time_ms, key in ((1_000, "a"), (1_005, "a"), (1_014, "b"), (1_030, "a")):
            job.take([key], [time_ms], [7])
        job.watermark(1_020)
        told = {key: job.one(job.live(), "total", key) for key in "ab"}
        ranged = {row["key"]: row["value"] for row in job.page(job.live_range(), "total").rows}
        assert ranged == {key: value for key, value in told.items() if value is not ABSENT}
        expected = {}
        for row in job.emitted + job.results_at_the_end():
            late_ms = 20 if "allowed_lateness" in updates else 0
            if row["window_end"] > 1_020 - late_ms:
                window_of = (row["window_start"], row["window_end"])
                expected.setdefault(row["k"], {})[window_of] = row["total"]
        for key, windows in told.items():
            found = (
                {} if windows is ABSENT else {(each["start"], each["end"]): each["value"] for each in windows}
            )
            assert found == expected.get(key, {}), (window.kind, updates, key)


@pytest.mark.parametrize("kind", WINDOWS)
def test_one_row(kind):
    job = Job(WINDOWS[kind])
    job.take(["a"], [1_000], [5])
    job.tables.flush()
    told = {state: job.one(Stored(job.backend), state, "a") for state in AGGREGATES}
    ranged = {state: job.page(Stored(job.backend), state).rows for state in AGGREGATES}
    results = job.results_at_the_end()
    for state in AGGREGATES:
        assert told[state] == expected_of(results, state)["a"]
        assert ranged[state] == [{"key": "a", "value": told[state]}]


def test_global_windows():
    job = Job(weir.global_window(), {"n": weir.count(), "total": weir.sum("v")}, early=weir.every("1h"))
    job.take(["a", "b", "a"], [1_000, 1_500, 2_000], [1, 2, 3])
    whole = [{"start": 1_000, "end": 2_001, "value": 4}]
    assert job.one(job.live(), "total", "a") == job.one(job.live(), "total", "a", first="1500") == whole
    assert job.one(job.live(), "total", "a", first="2001") is ABSENT
    assert job.page(job.live_range(), "n", time_to_ms=1_499).rows == [
        {"key": "a", "value": [{"start": 1_000, "end": 2_001, "value": 2}]}
    ]


def test_windows_of_groups_that_have_just_come():
    job = Job(WINDOWS["sliding"], {"n": weir.count()})
    job.take(["a"], [1_000], [1])
    job.watermark(1_005)
    told = job.one(job.live(), "n", "a")
    assert len(told) == 3
    table = next(iter(job.tables))
    table.flush_groups(range(GROUPS))
    table.release_groups(range(GROUPS))
    table.adopt_groups(range(GROUPS))
    assert table.has_new_groups
    assert job.one(job.live(), "n", "a") == told
    assert job.page(job.live_range(), "n").rows == [{"key": "a", "value": told}]
    # The operator finds out by itself that they are new.
    assert table.has_new_groups


@pytest.mark.parametrize(
    ("kind", "updates"),
    [
        *((kind, {}) for kind in WINDOWS),
        *((kind, {"results": "discarding", "early": weir.every("1h")}) for kind in ("tumbling", "session")),
    ],
)
def test_whoever_gives_a_limit_gets_the_first_windows_of_a_key_in_the_order_asked_for(kind, updates):
    job = Job(WINDOWS[kind], {"n": weir.count()}, **updates)
    job.take(
        ["a", "b"] * 5, [1_000, 1_000, 1_012, 1_012, 1_024, 1_024, 1_060, 1_060, 1_090, 1_090], range(10)
    )
    whole = job.one(job.live(), "n", "a")
    assert len(whole) > 2
    for limit in range(1, len(whole) + 1):
        for ordered, reverse in ((whole, False), (whole[::-1], True)):
            expected = ordered[:limit]
            found = job.one(job.live(), "n", "a", limit=limit, cuts=True, reverse=reverse)
            assert found == (Cut(expected) if limit < len(whole) else expected)


def test_different_values_of_tumbling_windows_and_refusals(monkeypatch):
    job = Job(WINDOWS["tumbling"], {"kinds": weir.count_distinct("v"), "n": weir.count()})
    job.take(["a", "a", "a", "b"], [1_000, 1_001, 1_002, 1_012], [5, 5, 6, 7])
    # In the thread of the subtask: cells say all.
    assert job.one(job.live(), "kinds", "a") == [{"start": 993, "end": 1_003, "value": 2}]
    with pytest.raises(QueryError, match="as_of is for versioned"):
        job.one(job.live(), "n", "a", as_of_ms=5)
    job = Job(WINDOWS["sliding"])
    job.take(["a", "a"], [1_000, 9_000], [1, 2])
    with pytest.raises(QueryError, match="more than 3 windows") as refused:
        job.one(job.live(), "n", "a", limit=3)
    assert refused.value.status == 413
    monkeypatch.setattr(pane_questions, "PANES_MAX", 20)
    with pytest.raises(QueryError, match="consist of 801 panes, at most 20"):
        job.one(job.live(), "n", "a")
    assert len(job.one(job.live(), "n", "a", first="8900", last="9100")) == 4
    monkeypatch.setattr(pane_runs, "GROUP_ENTRIES_MAX", 1)
    monkeypatch.setattr("weir.operators.queries.answering._RUNS_MAX", 1)
    job.take(["a"] * 9, range(1_000, 1_090, 10), [1] * 9)
    with pytest.raises(QueryError, match="more than 1 entries of a key group"):
        job.page(job.live_range(), "n")


def test_open_sessions_of_a_checkpoint_of_before():
    """Entries there are not over because of their last time: the place has no mark."""
    job = Job(weir.session("10ms"), {"n": weir.count()})
    (group,) = weir_keys.key_groups(weir_keys.hash_keys(weir_keys.KeyColumn.from_list([b"a"])), GROUPS)

    def entry(end_ms, key, presence, *cells):
        value = bytes([1, presence]) + b"".join(cell.to_bytes(8, "little") for cell in cells)
        return layout.key_prefix(int(group), STATE) + time_bytes(end_ms) + key, value

    # Fired up to 18: the session of 5 and 12 is open.
    place = entry(NOTHING_MS, int(group).to_bytes(2, "big"), 1, 18, 0, 0)
    job.backend.write([place, entry(10, b"a", 6, 1, 5, 5), entry(20, b"a", 6, 1, 12, 12)])
    whole = [{"start": 5, "end": 22, "value": 2}]
    for reading in (Stored(job.backend), job.live()):
        assert job.one(reading, "n", "a") == whole
    for reading in (Stored(job.backend), job.live_range()):
        assert job.page(reading, "n").rows == [{"key": "a", "value": whole}]
    job.watermark(19)
    job.tables.flush()
    assert job.one(Stored(job.backend), "n", "a") == job.one(job.live(), "n", "a") == whole


def test_nothing_is_there_yet():
    for window in WINDOWS.values():
        job = Job(window)
        assert job.one(job.live(), "n", "a") is ABSENT
        assert job.page(job.live_range(), "n").rows == []
        assert table_of(job.page(Stored(job.backend), "n", arrow=True)).num_rows == 0
