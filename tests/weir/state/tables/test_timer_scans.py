"""What finding timers that are due may look at."""

from tests.weir.state.tables.test_timer_table import GROUPS, STATE_ID, keys_of, pass_on, plain
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import TimerTable


class CountingStore(MemoryBackend):
    """Knows from where scans begin, and how many entries they gave."""

    def __init__(self):
        super().__init__()
        self.scans = []
        self.given = 0

    def scan(self, start=None, stop=None, *, reverse=False):
        self.scans.append(start)
        for entry in super().scan(start, stop, reverse=reverse):
            self.given += 1
            yield entry


def test_a_scan_begins_where_the_last_one_ended_and_nothing_due_looks_at_nothing():
    store = CountingStore()
    table = TimerTable(store, STATE_ID, 1 << 20, [1])
    keys = keys_of(table, [(1, time, b"k") for time in range(1000)])
    table.change(dict.fromkeys(keys, True))
    table.flush()
    due = table.take(599, 10_000)
    assert due.keys == keys[:600]
    table.fired(due, dict.fromkeys(due.keys, False))
    table.flush()
    store.scans.clear()
    assert table.next_ms() == 600
    assert not table.take(599, 10).keys
    assert store.scans == []
    store.given = 0
    due = table.take(600, 10)
    assert due.keys == keys[600:601]
    assert store.scans == [keys[600]]
    assert store.given <= 2
    table.fired(due, dict.fromkeys(due.keys, False))
    # One that is earlier than those that have fired, written before it does.
    late = keys_of(table, [(1, 3, b"late")])
    table.change(dict.fromkeys(late, True))
    table.flush()
    assert table.take(600, 10).keys == late


def test_what_is_due_is_not_looked_for_in_a_store_that_can_have_none_of_it():
    """Each scan was a call to a peer during a migration: a join's rows waited 0.2 to 0.45 s at every watermark."""
    store = CountingStore()
    table = TimerTable(store, STATE_ID, 1 << 20, [1, 2])
    later = keys_of(table, [(1, 1000, b"k"), (2, 2000, b"k")])
    table.change(dict.fromkeys(later, True))
    table.flush()
    assert table.next_ms() == 1000
    store.scans.clear()
    for time in range(20):
        soon = keys_of(table, [(1, time, b"soon"), (2, time, b"soon")])
        table.change(dict.fromkeys(soon, True))
        due = table.take(time, 10)
        assert sorted(due.keys) == sorted(soon)
        table.fired(due, dict.fromkeys(due.keys, False))
        # Whoever writes what has fired does not let anybody look, either.
        table.flush()
    due = table.take(999, 10)
    assert (due.keys, store.scans) == ([], [])
    assert table.take(1000, 10).keys == later[:1]


def test_a_new_owner_begins_where_the_last_one_had_got_to():
    store = CountingStore()
    table = TimerTable(store, STATE_ID, 1 << 20, [1])
    keys = keys_of(table, [(1, time, b"k") for time in range(2000)])
    table.change(dict.fromkeys(keys, True))
    due = table.take(1499, 10_000)
    table.fired(due, dict.fromkeys(due.keys, False))
    table.flush()
    store.scans.clear()
    other = TimerTable(store, STATE_ID, 1 << 20, [1])
    assert other.next_ms() == 1500
    assert store.scans == [keys[1500]]
    # An earlier one, and all that is left of the others is gone.
    late = keys_of(other, [(1, 3, b"late")])
    due = other.take(5000, 10_000)
    other.fired(due, dict.fromkeys(due.keys, False) | dict.fromkeys(late, True))
    other.flush_groups([1])
    other.release_groups([1])
    third = TimerTable(store, STATE_ID, 1 << 20, [])
    third.adopt_groups([1])
    assert third.next_ms() == 3
    due = third.take(5000, 10)
    third.fired(due, dict.fromkeys([*due.keys, *keys], False))
    third.flush()
    assert TimerTable(store, STATE_ID, 1 << 20, [1]).next_ms() == NEVER_MS


def test_who_goes_on_from_a_checkpoint_does_not_walk_over_what_has_fired():
    """In images in S3 that took requests that followed one another, for each key group: a second after a restart."""
    store = CountingStore()
    table = TimerTable(store, STATE_ID, 1 << 20, [1, 2])
    keys = keys_of(table, [(group, time_ms, b"k") for group in (1, 2) for time_ms in range(50)])
    table.change(dict.fromkeys(keys, True))
    table.flush()
    for until_ms in (20, 30):
        due = table.take(until_ms, 1000)
        table.fired(due, dict.fromkeys(due.keys, False))
        table.capture().write()
        store.scans.clear()
        assert TimerTable(store, STATE_ID, 1 << 20, [1, 2]).next_ms() == until_ms + 1
        assert store.scans == [keys[until_ms + 1], keys[50 + until_ms + 1]]


class OnTheWay(CountingStore):
    """Groups are on their way here."""

    def is_settled(self, group):
        return False


def test_who_goes_on_from_a_checkpoint_elsewhere_looks_for_timers_when_one_is_due():
    """In images in S3 the look took as many requests as there are key groups and tables, and all rows waited."""
    store = OnTheWay()
    table = TimerTable(store, STATE_ID, 1 << 20, range(GROUPS))
    entries = [(group, time_ms, b"k") for group in (1, 2) for time_ms in range(10, 50)]
    table.change(dict.fromkeys(keys_of(table, entries), True))
    table.flush()
    due = table.take(20, 1000)
    # The first one of a group is gone, and another one is before all.
    early = dict.fromkeys(keys_of(table, [(2, 7, b"k")]), True)
    table.fired(due, dict.fromkeys(due.keys, False) | early)
    table.capture().write()
    store.scans.clear()
    new = TimerTable(store, STATE_ID, 1 << 20, range(GROUPS))
    assert new.next_ms() == 7
    assert store.scans == []
    assert list(map(plain, new.take(7, 10).keys)) == [(2, 7, b"k")]
    new = TimerTable(store, STATE_ID, 1 << 20, [0, 1])
    assert (new.next_ms(), new.take(20, 10).keys) == (21, [])
    assert list(map(plain, new.take(21, 10).keys)) == [(1, 21, b"k")]
    assert TimerTable(store, STATE_ID, 1 << 20, [0]).next_ms() == NEVER_MS


def test_a_new_owner_that_is_told_of_the_first_timers_looks_for_none():
    """A look takes a call to a peer for each group: 0.35 s for 64 of them on a busy machine, and all rows waited."""
    store = CountingStore()
    old = TimerTable(store, STATE_ID, 1 << 20, [1, 2, 3])
    keys = keys_of(old, [(1, 7, b"a"), (2, 5, b"b"), (2, 6, b"c")])
    old.change(dict.fromkeys(keys, True))
    assert old.next_ms() == 5
    new = TimerTable(store, STATE_ID, 1 << 20, [])
    pass_on(old, new, [1, 2, 3], with_notes=True)
    store.scans.clear()
    assert new.next_ms() == 5
    assert store.scans == []
    assert new.take(6, 10).keys == keys[1:]


def test_a_new_owner_looks_elsewhere_only_for_timers_that_it_was_not_told_of():
    """In images in an object store that were some hundred requests when timers came due: 5 s for which rows waited."""
    store = CountingStore()
    old = TimerTable(store, STATE_ID, 1 << 20, [1, 2, 3], told_max=6)
    keys = keys_of(old, [(1, time_ms, b"a") for time_ms in (10, 20, 30)])
    old.change(dict.fromkeys(keys[:1], True))
    old.flush()
    old.change(dict.fromkeys(keys[1:], True))
    assert old.next_ms() == 10
    new = TimerTable(store, STATE_ID, 1 << 20, [])
    pass_on(old, new, [1, 2, 3], with_notes=True)
    store.scans.clear()

    def take(until_ms):
        due = new.take(until_ms, 10)
        new.fired(due, dict.fromkeys(due.keys, False))
        new.flush()
        return due.keys

    own = keys_of(new, [(1, 27, b"b"), (2, 28, b"b")])
    new.change(dict.fromkeys(own, True))
    new.flush()
    assert take(25) == keys[:2]
    assert take(29) == own
    assert store.scans == []
    assert take(30) == keys[2:]
    assert len(store.scans) == 1


def test_timers_of_groups_that_are_on_their_way_are_not_looked_for_again_for_each_part():
    """After a restart from images in S3 each part looked through all groups: 5 s of 12 until rows came out."""

    store = OnTheWay()
    entries = [(group, time_ms, b"k") for group in range(GROUPS) for time_ms in range(100)]
    old = TimerTable(store, STATE_ID, 1 << 20, range(GROUPS))
    old.change(dict.fromkeys(keys_of(old, entries), True))
    old.flush()
    new = TimerTable(store, STATE_ID, 1 << 20, range(GROUPS), told_max=60 * GROUPS)
    assert new.next_ms() == 0
    store.scans.clear()
    fired = []
    while new.next_ms() <= 99:
        due = new.take(new.next_ms() + 1, 10)
        new.give_back(due)
        due = new.take(new.next_ms(), 10)
        new.fired(due, dict.fromkeys(due.keys, False))
        fired += map(plain, due.keys)
    assert sorted(fired) == sorted(entries)
    assert [time_ms for _, time_ms, _ in fired] == sorted(time_ms for _, time_ms, _ in entries)
    assert len(store.scans) == 2 * GROUPS


def test_what_an_owner_is_told_of_timers_does_not_count_unless_it_is_complete():
    store = MemoryBackend()
    old = TimerTable(store, STATE_ID, 1 << 20, [1])
    old.change(dict.fromkeys(keys_of(old, [(1, 7, b"a")]), True))
    assert old.next_ms() == 7
    notes = old.notes_at_handover([1])
    old.change(dict.fromkeys(keys_of(old, [(1, 3, b"a")]), True))
    old.release_groups([1])
    for is_void in (False, True):
        new = TimerTable(store, STATE_ID, 1 << 20, [])
        assert new.take_copy(notes, [1])
        if is_void:
            new.keep_copies([1])
            new.clear_groups([1])
        new.adopt_groups([1])
        assert new.next_ms() == 3
