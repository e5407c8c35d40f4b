"""Versioned, window and session states over every store: what they take, return and give back."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import weir
from tests.weir.state.retained_steps import Step
from weir.clock import SystemClock
from weir.errors import StateError, StateMismatchError
from weir.state.api import StateBackend
from weir.state.handles.declarations import NOT_PUT, OPEN, Session, Version
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.retained import GroupClock, clock_key, pack_clock

GOLDEN = Path(__file__).parents[2] / "golden/states"
VERSIONS = [(0, 8), (4, 10), (17, 12), (38, 11), (53, 9)]
#: Each has these versions.
KEYS = "abcdef"


def versioned(backend: StateBackend, groups: int = 1) -> tuple[Step, object]:
    step = Step(backend, {"v": weir.VersionedState(pl.Int64, retention="30ms")}, groups)
    return step, step.handles["v"]


def put_check_data(step, state, key="a", versions=VERSIONS) -> None:
    with step.at(key):
        for at, value in versions:
            assert state.put(value, at) == OPEN


@pytest.fixture(params=["in one batch", "flushed", "opened again"])
def checked(backend: StateBackend, request):
    """The check data of the store that came before ours, at time 64."""
    step, state = versioned(backend)
    for key in KEYS:
        put_check_data(step, state, key)
    if request.param != "in one batch":
        step.tables.flush()
    if request.param == "opened again":
        step, state = versioned(backend)
    step.times.advance(64)
    return step, state


def test_versions_are_told_as_of_a_time(checked):
    step, state = checked
    with step.at("a"):
        assert state.get() == 9
        assert [state.get(at) for at in (60, 50, 35, 33, 30)] == [9, 11, 12, None, None]
        assert state.version() == Version(9, 53, None)
        assert state.version(40) == Version(11, 38, 53)
        assert state.get(33, default=-1) == -1


def test_a_put_takes_its_place_among_versions(checked):
    step, state = checked
    puts = [
        (8, 58, OPEN, {55: 9, 60: 8}),
        (8, 48, 53, {47: 11, 50: 8, 53: 9}),
        (8, 33, NOT_PUT, {35: 12, 60: 9}),
        (8, 34, 38, {34: 8, 37: 8, 38: 11}),
        (8, 53, OPEN, {52: 11, 53: 8}),
        (8, 38, 53, {37: 12, 38: 8, 52: 8, 53: 9}),
    ]
    for key, (value, at, returned, seen) in zip(KEYS, puts, strict=True):
        with step.at(key):
            assert state.put(value, at) == returned, at
            assert {time: state.get(time) for time in seen} == seen, at
    for key, (_, at, _, seen) in zip(KEYS, puts, strict=True):
        with step.at(key):
            assert {time: state.get(time) for time in seen} == seen, at


def test_a_delete_returns_what_was_in_force(checked):
    step, state = checked
    deletes = [
        (55, Version(9, 53, None), {54: 9, 55: None, None: None}),
        (48, Version(11, 38, 53), {47: 11, 48: None, 52: None, 53: 9, None: 9}),
        (33, None, {35: 12, None: 9}),
    ]
    for key, (at, returned, seen) in zip(KEYS[:3], deletes, strict=True):
        with step.at(key):
            assert state.delete(at) == returned, at
            assert {time: state.get(time) for time in seen} == seen, at
    for key, (at, _, seen) in zip(KEYS[:3], deletes, strict=True):
        with step.at(key):
            assert {time: state.get(time) for time in seen} == seen, at


def test_what_comes_before_the_first_version_ends_where_that_begins(backend: StateBackend):
    step, state = versioned(backend)
    put_check_data(step, state, "b", [(48, 11), (53, 9)])
    step.times.advance(64)
    with step.at("b"):
        assert state.put(8, 40) == 48
        assert state.delete(38) is None
        assert state.put(5, 36) == 38
        assert [state.get(at) for at in (35, 36, 38, 40)] == [None, 5, None, 8]


def test_orders_find_the_price_of_their_time(checked):
    step, state = checked
    with step.at("a"):
        found = [state.get(at) for at in (65, 60, 50, 35, 30)]
    assert found == [9, 9, 11, 12, None]


def test_null_deletes_and_the_clock_of_a_late_delete_stays(checked):
    step, state = checked
    with step.at("a"):
        assert state.put(None, 60) == OPEN
        assert (state.get(), state.get(59), state.get(60)) == (None, 9, None)
    with step.at("a"):
        assert state.put(3, 57) == 60
        assert (state.get(57), state.get(60), state.get()) == (3, None, None)


def test_no_version_of_no_length_is_kept(backend: StateBackend):
    step, state = versioned(backend)
    with step.at("a"):
        for value in (1, 2, 3):
            state.put(value, 10)
        assert list(state.fetch()) == [Version(3, 10, None)]
        state.put(4, 20)
        state.put(5, 10)
        assert list(state.fetch()) == [Version(5, 10, 20), Version(4, 20, None)]


def test_versions_of_a_range_come_in_both_directions(checked):
    step, state = checked
    everything = [Version(12, 17, 38), Version(11, 38, 53), Version(9, 53, None)]
    with step.at("a"):
        assert list(state.fetch()) == everything
        assert list(state.fetch(reverse=True)) == everything[::-1]
        for first, last, found in (
            (38, 52, everything[1:2]),
            (37, 38, everything[:2]),
            (53, None, everything[2:]),
            (None, 52, everything[:2]),
            (None, 53, everything),
            (40, 45, everything[1:2]),
            (0, 34, everything[:1]),
            (0, 33, []),
            (99, 98, []),
        ):
            assert list(state.fetch(first, last)) == found, (first, last)
            assert list(state.fetch(first, last, reverse=True)) == found[::-1], (first, last)


def test_a_batch_that_fails_leaves_nothing(checked):
    step, state = checked
    cursor = step.cursor
    cursor.block, cursor.index = step.keys(["a"]).distinct, 0
    state.put(8, 1_000)
    state.discard()
    with step.at("a"):
        assert (state.get(), state.get(35)) == (9, 12)


def test_restart_does_not_take_what_is_late(backend: StateBackend):
    step, state = versioned(backend)
    put_check_data(step, state)
    step.times.advance(53)
    step.tables.flush()
    kept = step.times.to_json()
    step, state = versioned(backend)
    step.times.begin(SystemClock(), [kept])
    with step.at("a"):
        assert state.put(1, 22) == NOT_PUT
        assert state.get(22) is None
        assert state.get(23) == 12


def test_versions_in_batches(backend: StateBackend):
    step, state = versioned(backend, groups=1)
    keys = step.keys(["a", "b", "a", "a", "b"])
    ends = state.put(keys, pl.Series([1, 2, 3, 4, None]), np.array([10, 10, 20, 15, 30]))
    assert ends.tolist() == [OPEN, OPEN, OPEN, 20, OPEN]
    assert state.get(keys.distinct).to_list() == [3, None]
    asked = step.keys(["a", "a", "a", "b", "b", "c"])
    assert state.get(asked, [14, 15, 25, 29, 30, 1]).to_list() == [1, 4, 3, 2, None, None]
    with pytest.raises(ValueError, match="2 values for 6 keys"):
        state.get(asked, [1, 2])
    with pytest.raises(TypeError):
        state.put(step.keys(["a"]), ["text"], [40])


def test_windows(backend: StateBackend):
    step = Step(backend, {"w": weir.WindowState(pl.String, retention="100ms")})
    state = step.handles["w"]
    step.times.advance(100)
    with step.at("a"):
        for start in (0, 50, 100, 25):
            assert state.put(f"at {start}", start)
        assert not state.put("late", -1)
        assert state.put("again", 50)
        assert state.get(50) == "again"
        assert list(state.fetch(25, 50)) == [(25, "at 25"), (50, "again")]
    with step.at("b"):
        assert list(state.fetch()) == []
        assert state.put("b", 120)
    step.times.advance(120)
    with step.at("a"):
        assert list(state.fetch()) == [(25, "at 25"), (50, "again"), (100, "at 100")]
        assert list(state.fetch(26, reverse=True)) == [(100, "at 100"), (50, "again")]
        assert state.get(0) is None
        assert state.delete(25) == "at 25"
        assert state.put(None, 50)
        assert list(state.fetch()) == [(100, "at 100")]
        assert state.delete(25) is None
        state.clear()
        assert list(state.fetch()) == []
    step.times.advance(130)
    keys = step.keys(["a", "b", "a", "a"])
    assert state.put(keys, ["1", "2", "3", "4"], [110, 130, 110, 20]).tolist() == [True, True, True, False]
    assert state.get(keys, [110, 130, 20, 120]).to_list() == ["3", "2", None, None]


def test_windows_with_duplicates_keep_each_value_in_order(backend: StateBackend):
    step = Step(backend, {"w": weir.WindowState(pl.Int64, retention="100ms", duplicates=True)})
    state = step.handles["w"]
    for value in (3, 1, 2):
        with step.at("a"):
            state.put(value, 10)
            state.put(value * 10, 20)
            state.put(None, 10)
    with step.at("a"):
        assert list(state.fetch(0, 10)) == [(10, 3), (10, 1), (10, 2)]
        assert list(state.fetch(reverse=True))[:2] == [(20, 20), (20, 10)]
        with pytest.raises(StateError, match="use fetch"):
            state.get(10)
        assert state.delete(10) == [3, 1, 2]
        assert [value for _, value in state.fetch()] == [30, 10, 20]


def test_sessions(backend: StateBackend):
    step = Step(backend, {"s": weir.SessionState(pl.Int64, retention="100ms")})
    state = step.handles["s"]
    step.times.advance(100)
    with step.at("a"):
        assert state.put(1, 0, 10)
        assert state.put(2, 40, 60)
        assert state.put(3, 100, 100)
        assert list(state.find()) == [Session(0, 10, 1), Session(40, 60, 2), Session(100, 100, 3)]
        # A row at 65 joins what ends at 55 or later and starts at 75 or earlier.
        assert list(state.find(55, 75)) == [Session(40, 60, 2)]
        assert list(state.find(10, 100, reverse=True)) == [
            Session(100, 100, 3),
            Session(40, 60, 2),
            Session(0, 10, 1),
        ]
        assert state.delete(40, 60) == 2
        assert state.put(5, 40, 100)
        assert (state.get(40, 100), state.get(40, 60)) == (5, None)
        assert not state.put(9, -20, -1)
        with pytest.raises(ValueError, match="ends before it starts"):
            state.put(9, 2, 1)
    step.times.advance(120)
    keys = step.keys(["a", "b", "b"])
    assert state.put(keys, [None, 7, 8], [40, 0, 5], [100, 120, 19]).tolist() == [True, True, False]
    assert state.get(keys, [40, 0, 5], [100, 120, 19]).to_list() == [None, 7, None]
    with step.at("a"):
        assert list(state.find()) == [Session(100, 100, 3)]


def test_clearing_many_leaves_none(backend: StateBackend):
    step = Step(backend, {"w": weir.WindowState(pl.Int64, retention="1h")})
    state = step.handles["w"]
    state.put(step.keys(["a"] * 1_200), list(range(1_200)), list(range(1_200)))
    step.tables.flush()
    with step.at("a"):
        state.clear()
        state.put(7, 3)
        assert list(state.fetch()) == [(3, 7)]
    with step.at("a"):
        assert list(state.fetch()) == [(3, 7)]


def test_a_change_ends_an_iteration(backend: StateBackend):
    step = Step(backend, {"w": weir.WindowState(pl.Int64, retention="1h")})
    state = step.handles["w"]
    with step.at("a"):
        state.put(1, 1)
        state.put(2, 2)
        entries = state.fetch()
        next(entries)
        state.put(0, 10)
        with pytest.raises(RuntimeError, match="changed"):
            next(entries)


def test_what_is_past_its_retention_leaves_the_store_also_of_idle_keys(backend: StateBackend):
    step, state = versioned(backend, groups=2)
    wide = step.keys([f"key-{number}" for number in range(300)])
    for time in (0, 10, 20):
        state.put(wide, [time] * 300, [time] * 300)
    step.tables.flush()
    before = sum(1 for _ in backend.scan())
    # Others are idle.
    for name in ("key-0", "key-1", "key-2", "key-3", "key-4"):
        with step.at(name):
            state.put(9, 1_000)
    step.times.advance(1_000)
    step.sweep()
    entries = dict(backend.scan())
    # Of each key the latest version, its former one of those that were put, and their index.
    assert len(entries) <= 300 + 2 * 5 < before
    assert state.get(wide).to_list() == [9] * 5 + [20] * 295


def test_deleted_values_leave_the_store_when_nothing_older_can_come(backend: StateBackend):
    step, state = versioned(backend)
    with step.at("a"):
        state.put(1, 0)
        state.delete(10)
    with step.at("b"):
        state.put(1, 10)
        state.delete(20)
        state.put(2, 30)
    step.times.advance(1_000)
    step.sweep()
    with step.at("b"):
        assert list(state.fetch()) == [Version(2, 30, None)]
    # The one that is there; the watermark of the group's owner is told when the group goes.
    assert len(list(backend.scan())) == 1


def test_the_watermark_lets_idle_groups_expire(backend: StateBackend):
    step = Step(backend, {"w": weir.WindowState(pl.Int64, retention="100ms")}, groups=8)
    state = step.handles["w"]
    keys = step.keys([f"key-{number}" for number in range(50)])
    state.put(keys, [1] * 50, [0] * 50)
    step.tables.flush()
    step.times.advance(100)
    assert state.get(keys, [0] * 50).to_list() == [1] * 50
    step.times.advance(101)
    assert state.get(keys, [0] * 50).to_list() == [None] * 50
    step.times.advance(200)
    step.sweep()
    assert len(list(backend.scan())) <= 8
    assert not state.put(keys, [1] * 50, [99] * 50).any()


def test_the_sweep_reads_nothing_but_what_leaves():
    backend = CountedScans()
    step = Step(backend, {"w": weir.WindowState(pl.Int64, retention="1000ms")}, cache=1 << 30)
    state = step.handles["w"]
    keys = step.keys([f"key-{number}" for number in range(1_000)])
    for start in range(0, 1_000, 100):
        state.put(keys, [1] * 1_000, [start] * 1_000)
    step.tables.flush()
    backend.read = 0
    step.times.advance(1_101)
    step.sweep()
    assert sum(sweep.deleted for sweep in step.tables.sweeps) == 2_000
    assert backend.read <= 2_100


class CountedScans(MemoryBackend):
    """Counts the entries that scans read."""

    read = 0

    def scan(self, start=None, stop=None, *, reverse=False):
        for entry in super().scan(start, stop, reverse=reverse):
            self.read += 1
            yield entry


def test_a_key_group_takes_its_clock_along():
    backend = MemoryBackend()
    step, state = versioned(backend)
    put_check_data(step, state)
    step.times.advance(90)
    for table in step.tables:
        table.release_groups([0])
    step.tables.flush()
    step, state = versioned(backend)
    for table in step.tables:
        table.adopt_groups([0])
    with step.at("a"):
        assert state.put(1, 59) == NOT_PUT
        assert state.put(1, 60) == OPEN


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: weir.VersionedState(pl.Int64, retention="0s"), "is not a duration"),
        (lambda: weir.WindowState(pl.Int64, retention=30), "is not a duration"),
        (lambda: weir.SessionState(pl.Object, retention="1s"), "state"),
    ],
)
def test_declarations_that_cannot_be(make, says):
    with pytest.raises(weir.GraphError, match=says):
        make()


@pytest.mark.parametrize("time", [1.5, "now", None, True, 2**62])
def test_what_is_no_time_is_refused(time):
    step, state = versioned(MemoryBackend())
    with step.at("a"), pytest.raises((TypeError, ValueError), match="time"):
        state.put(1, time)


def every_kind(backend: StateBackend) -> Step:
    states = {
        "d": weir.WindowState(pl.Int64, retention="100ms", duplicates=True),
        "s": weir.SessionState(pl.String, retention="100ms"),
        "v": weir.VersionedState(pl.Int64, retention="100ms"),
        "w": weir.WindowState(pl.String, retention="100ms"),
    }
    return Step(backend, states)


def test_each_row_puts_and_sees_as_of_its_own_time(backend: StateBackend):
    step = every_kind(backend)
    kept = step.handles
    with step.at("a", 1_000):
        assert kept["v"].put(1, 1_000) == OPEN
        assert kept["w"].put("ahead", 5_000)
        assert (kept["w"].put("at", 1_000), kept["s"].put("at", 990, 1_000), kept["d"].put(1, 1_000)) == (
            True,
        ) * 3
    with step.at("b", 9_000):
        # What another key puts, and when, is nothing to those that are behind.
        assert kept["v"].put(2, 9_000) == OPEN
    with step.at("a", 1_101):
        assert (kept["v"].put(0, 1_000), kept["w"].put("late", 1_000)) == (NOT_PUT, False)
        assert (kept["w"].get(1_000), list(kept["s"].find()), list(kept["d"].fetch())) == (None, [], [])
    with step.at("a", 1_100):
        assert (kept["w"].get(1_000), list(kept["d"].fetch())) == ("at", [(1_000, 1)])
        assert list(kept["s"].find()) == [Session(990, 1_000, "at")]
        assert kept["v"].put(0, 1_000) == OPEN
    # In batches each key has its time.
    keys = step.keys(["a", "b"])
    step.times.enter_keys(keys.hashes, np.array([1_100, 1_101]))
    assert kept["w"].put(keys, ["x", "y"], [1_000, 1_000]).tolist() == [True, False]
    assert kept["v"].put(keys, [5, 6], [1_000, 1_000]).tolist() == [OPEN, NOT_PUT]
    step.times.leave_rows()


def test_what_was_gone_by_the_highest_time_that_was_put_stays_gone(backend: StateBackend):
    # A checkpoint of when that decided.
    backend.write([(clock_key(0, 2), pack_clock(GroupClock(1_000, 3)))])
    step = Step(backend, {"d": weir.WindowState(pl.Int64, retention="100ms", duplicates=True)})
    state = step.handles["d"]
    with step.at("a", 950):
        assert (state.put(1, 899), state.put(1, 900), state.put(2, 900)) == (False, True, True)
        assert list(state.fetch()) == [(900, 1), (900, 2)]
    step.tables.flush()
    assert backend.get_many([clock_key(0, 2)]) == [pack_clock(GroupClock(1_000, 5))]


def test_bytes_are_a_promise():
    backend = MemoryBackend()
    step = every_kind(backend)
    with step.at("a"):
        step.handles["v"].put(7, 5)
        step.handles["v"].put(8, 10)
        step.handles["v"].delete(20)
        step.handles["w"].put("x", -5)
        step.handles["d"].put(1, 3)
        step.handles["s"].put("y", 4, 9)
    step.times.advance(50)
    for table in step.tables:
        table.release_groups([0])
    found = {key.hex(): value.hex() for key, value in backend.scan()}
    assert found == json.loads((GOLDEN / "retained_v2.json").read_text())


# Of the first is that clocks have the highest time that was put.
@pytest.mark.parametrize("name", ["retained_v1.json", "retained_v2.json"])
def test_bytes_of_each_version_are_read(name):
    read = MemoryBackend()
    found = json.loads((GOLDEN / name).read_text())
    read.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in found.items()])
    step = every_kind(read)
    handles = step.handles
    with step.at("a"):
        assert list(handles["v"].fetch()) == [Version(7, 5, 10), Version(8, 10, 20)]
        assert list(handles["w"].fetch()) == [(-5, "x")]
        assert list(handles["d"].fetch()) == [(3, 1)]
        assert list(handles["s"].find()) == [Session(4, 9, "y")]


def test_bytes_of_another_version_are_refused():
    backend = MemoryBackend()
    step = every_kind(backend)
    with step.at("a"):
        step.handles["d"].put(1, 1)
    step.tables.flush()
    for key, value in list(backend.scan()):
        if value:
            backend.write([(key, b"\x09" + value[1:])])
    step = every_kind(backend)
    with step.at("a"), pytest.raises(StateMismatchError, match="format version 9"):
        next(step.handles["d"].fetch())


def test_versions_of_many_rows_share_scans(backend: StateBackend, monkeypatch):
    step = Step(backend, {"v": weir.VersionedState(pl.Int64, retention="10s")}, 4)
    state = step.handles["v"]
    random = np.random.default_rng(3)
    names = ["a", "b", "c"]
    for name in names:
        with step.at(name):
            for number, at in enumerate(np.sort(random.integers(4_000, 9_000, size=60)).tolist()):
                # Some of them say that there is none.
                state.put(None if number % 7 == 3 else number, at)
    step.tables.flush()
    rows = [names[number] for number in random.integers(3, size=150)] + ["none"]
    times = random.integers(3_000, 9_500, size=151).tolist()
    expected = []
    for name, at in zip(rows, times, strict=True):
        with step.at(name):
            expected.append(state.get(at))
    scans = []
    scan = state._entries
    monkeypatch.setattr(state, "_entries", lambda *given, **more: scans.append(given) or scan(*given, **more))
    assert state.get(step.keys(rows), times).to_list() == expected
    assert None in expected
    assert len(scans) == 3, "a scan for each key"
    # A time that is far away is looked for.
    del scans[:]
    assert state.get(step.keys(["a", "a"]), [4_000, 8_000]).to_list() == [
        value for name, value in (("a", 4_000), ("a", 8_000)) for value in [_one(step, state, name, value)]
    ]
    assert len(scans) >= 2


def _one(step, state, name, at):
    with step.at(name):
        return state.get(at)
