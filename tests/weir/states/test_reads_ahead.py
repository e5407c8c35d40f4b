"""Where the store is slow, a batch asks it a few times, however many of its rows look into ranges of their keys."""

import polars as pl

import weir
from tests.weir.state.retained_steps import Step
from tests.weir.state.slow_memory import SlowMemory

STATES = {
    "versions": lambda: weir.VersionedState(pl.Int64, retention="1h"),
    "windows": lambda: weir.WindowState(pl.Int64, retention="1h"),
    "sessions": lambda: weir.SessionState(pl.Int64, retention="1h"),
    "names": lambda: weir.MapState(pl.Int64, pl.Int64),
    "items": lambda: weir.ListState(pl.Int64),
}
KEYS = [f"key-{number}" for number in range(200)]


def batch(step, names, act):
    """What ``process`` does with a batch: a row after the other, then the writes of all of them."""
    keys = step.keys(names)
    step.cursor.block = keys.distinct
    for position in keys.inverse.tolist():
        step.cursor.index = position
        act(**step.handles)
    step.cursor.index = None
    for handle in step.handles.values():
        handle.prepare()
    for handle in step.handles.values():
        handle.apply()
    step.cursor.block = None


def fill(versions, windows, sessions, names, items):
    for number in range(5):
        versions.put(number, 100 * number)
        windows.put(number, 100 * number)
        sessions.put(number, 100 * number, 100 * number + 10)
        names[number] = number
        items.append(number)


def look(versions, windows, sessions, names, items):
    assert versions.get(250) == 2
    assert [value for _, value in windows.fetch(100, 300)] == [1, 2, 3]
    assert next(windows.fetch(reverse=True)) == (400, 4)
    assert windows.get(1_000) is None
    assert [found.value for found in sessions.find(200, 300)] == [2, 3]
    assert sessions.get(100, 110) == 1
    assert list(names.range(1, 2)) == [(1, 1), (2, 2)]
    assert 7 not in names
    assert list(items) == [0, 1, 2, 3, 4]


def opened(store):
    """The step, with an empty cache that has room for all."""
    return Step(store, {name: make() for name, make in STATES.items()}, groups=16, cache=16 << 20)


def test_a_batch_reads_what_its_keys_have_together():
    store = SlowMemory()
    batch(step := opened(store), KEYS, fill)
    step.tables.flush()
    step, store.asked = opened(store), 0
    batch(step, KEYS, look)
    # One for each of the 1,000 owners before; now so many for each state, which begins with few keys at a time.
    assert store.asked < 5 * 8
    store.asked = 0
    batch(step, KEYS[::-1], look)
    assert store.asked == 0, "all is known"


def test_few_keys_are_read_ahead_where_few_rows_look():
    store = SlowMemory()
    step = Step(store, {"names": STATES["names"]()}, groups=16)
    batch(step, KEYS, lambda names: names.put(1, 1))
    step.tables.flush()
    step = Step(store, {"names": STATES["names"]()}, groups=16)
    rows = iter(range(len(KEYS)))

    def seldom(names):
        if next(rows) % 50 == 0:
            assert names[1] == 1

    batch(step, KEYS, seldom)
    owners = sum(known_owners(step))
    assert 4 <= owners < 40


def known_owners(step):
    """Of each key whether its map is known."""
    (table,) = step.tables
    keys = step.keys(KEYS)
    return [table.is_known(owner) for owner in keys.element_prefixes(table)]


def many_groups(store, names):
    """A step with these states and 128 key groups, most of which have some of ``KEYS``."""
    return Step(store, {name: STATES[name]() for name in names}, groups=128, cache=16 << 20)


def test_a_sweep_reads_what_is_due_of_many_key_groups_together():
    store = SlowMemory()
    step = many_groups(store, ["windows"])
    batch(step, KEYS, lambda windows: windows.put(1, 100))
    step.tables.flush()
    step, store.asked = many_groups(store, ["windows"]), 0
    step.times.advance(10 * 3_600_000)
    assert step.tables.sweeps.step(budget_s=0), "time is over after a group, and others are left"
    step.sweep()
    # The clocks of all groups, and the index of 32 of them at a time; once more where little is left of those.
    assert store.asked <= 6
    assert not any(key[4] == 0 for key, _ in store.scan()), "entries are left"


def test_the_clocks_of_all_key_groups_are_read_with_the_first():
    store = SlowMemory()
    step = many_groups(store, ["windows", "versions"])

    def look(windows, versions):
        assert windows.get(100) is None
        assert versions.get() is None

    batch(step, KEYS[:1], look)
    for name in KEYS[1:]:
        store.asked = 0
        batch(step, [name], look)
        assert store.asked <= 2, "a read for each state, and none for clocks"


def test_states_of_a_step_read_together_what_a_batch_begins_with():
    store = SlowMemory()
    batch(step := opened(store), KEYS, fill)
    step.tables.flush()
    step = opened(store)
    for first in range(0, 80, 10):
        store.asked = 0
        batch(step, KEYS[first : first + 10], look)
    assert store.asked == 1, "all five states, which the batches before used for each key"


def test_a_state_that_no_row_uses_any_more_is_read_for_once():
    store = SlowMemory()
    batch(step := opened(store), KEYS, fill)
    step.tables.flush()
    step = opened(store)
    batch(step, KEYS[:20], look)

    def look_less(names, **others):
        assert names.get(1) == 1

    known = dict(zip(step.handles, step.tables, strict=True))
    for first in (20, 40, 60):
        batch(step, KEYS[first : first + 20], look_less)
    owners = step.keys(KEYS).element_prefixes
    counts = {name: [table.is_known(owner) for owner in owners(table)] for name, table in known.items()}
    assert all(counts["names"][:80])
    assert not any(counts["windows"][40:])
    batch(step, KEYS[60:], look)
