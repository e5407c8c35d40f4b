"""Timers against a plain set, whatever the runtime does in between; and what finding due ones may look at."""

import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.effort import cases
from tests.weir.model_tests import model_test
from tests.weir.state.hybrid_store import hybrid_store
from tests.weir.state.rolled_back import ImageOf
from weir.config.stores import RocksDbConfig
from weir.errors import StateError
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.rocksdb import open_store
from weir.state.tables.timers.time_first import time_bytes, time_of, times_bytes, times_of, user_key_of
from weir.state.tables.timers.timer_group import NEVER_MS
from weir.state.tables.timers.timer_table import TimerTable

GROUPS = 3
STATE_ID = 5
TIMES = st.integers(-40, 40)
ENTRIES = st.lists(
    st.tuples(st.integers(0, GROUPS - 1), TIMES, st.sampled_from([b"", b"a", b"ab", b"\xff"])), max_size=25
)


def keys_of(table, entries):
    groups, times, keys = zip(*entries, strict=True) if entries else ((), (), ())
    return table.keys(np.array(groups, int), np.array(times, np.int64), keys)


def plain(key):
    return int.from_bytes(key[:2], "big"), time_of(key), user_key_of(key)


def test_order_of_bytes_is_order_of_times():
    times = [-(2**63), -(10**15), -1, 0, 1, 255, 256, 10**15, 2**63 - 1]
    encoded = [time_bytes(time) for time in times]
    assert encoded == sorted(encoded) == times_bytes(np.array(times))
    table = TimerTable(MemoryBackend(), STATE_ID, 1000, range(GROUPS))
    keys = keys_of(table, [(1, time, b"k") for time in times])
    assert times_of(keys).tolist() == [time_of(key) for key in keys] == times
    assert keys[3] == layout.encode_key(1, STATE_ID, time_bytes(0) + b"k")
    assert keys[4].hex() == "0001000500" + "8000000000000001" + "6b"


def test_what_is_taken_ends_after_a_timer_that_was_deleted_and_registered_again():
    table = TimerTable(MemoryBackend(), STATE_ID, 1000, range(GROUPS))
    [key] = keys_of(table, [(1, 7, b"k")])
    for is_live in (True, False, True):
        table.change({key: is_live})
    due = table.take(7, 1)
    assert due.keys == [key]
    assert due.stops()[b"\0\1"] > key


def pass_on(old, new, groups, with_notes):
    """Hand groups over, as a rescale does it, with what the new owner would have to look for or without."""
    if with_notes:
        assert new.take_copy(old.notes_at_handover(groups), groups)
        new.keep_copies(groups)
    old.release_groups(groups)
    new.adopt_groups(groups)


class Brittle(MemoryBackend):
    """Cannot be written for a while."""

    writes_left = 1 << 30

    def write(self, puts=(), deletes=()):
        if self.writes_left == 0:
            raise StateError("disk full")
        self.writes_left -= 1
        super().write(puts, deletes)


class Timers(RuleBasedStateMachine):
    cache_bytes = 1 << 20
    #: Places are written after so many have fired.
    fired_max = 2
    #: New owners are told of so many timers.
    told_max = 1_000
    #: All groups are, so that their first timers are looked for; else they come from the places in the store.
    are_here = True

    def __init__(self):
        super().__init__()
        self.backend = self.make_store()
        self.table = self.made(range(GROUPS))
        self.model = set()
        #: Of the latest checkpoint: the store's image, and what was in it.
        self.checkpointed = None
        self.images = 0
        self.image_directory = tempfile.TemporaryDirectory()

    def make_store(self):
        return Brittle()

    def made(self, groups):
        return TimerTable(self.backend, STATE_ID, self.cache_bytes, groups, self.fired_max, self.told_max)

    @rule(registered=ENTRIES, deleted=ENTRIES)
    def change(self, registered, deleted):
        """Of a timer that is in both, the deletion counts."""
        changes = dict.fromkeys(keys_of(self.table, registered), True)
        changes |= dict.fromkeys(keys_of(self.table, deleted), False)
        self.table.change(changes)
        self.model = (self.model | set(registered)) - set(deleted)

    @rule(data=st.data())
    def delete_some(self, data):
        if self.model:
            gone = data.draw(st.lists(st.sampled_from(sorted(self.model))))
            self.table.change(dict.fromkeys(keys_of(self.table, gone), False))
            self.model -= set(gone)

    @rule(until=TIMES, count=st.integers(1, 12), fails=st.booleans(), registered=ENTRIES)
    def fire(self, until, count, fails, registered):
        due = self.table.take(until, count)
        taken = [plain(key) for key in due.keys]
        expected = {timer for timer in self.model if timer[1] <= until}
        assert set(taken) <= expected
        assert len(set(taken)) == len(taken) <= count
        assert bool(taken) == bool(expected)
        for group in {timer[0] for timer in taken}:
            of_group = [timer for timer in taken if timer[0] == group]
            assert of_group == sorted(expected & {t for t in expected if t[0] == group})[: len(of_group)]
            stop = due.stops()[group.to_bytes(2, "big")]
            (first, last) = keys_of(self.table, [of_group[-1], (group, until + 1, b"")])
            assert first < stop <= last
            left = [t for t in expected if t[0] == group and t not in taken]
            assert all(key >= stop for key in keys_of(self.table, left))
        if fails:
            self.table.give_back(due)
            return
        changes = dict.fromkeys(due.keys, False)
        later = [timer for timer in registered if timer not in taken]
        self.table.fired(due, changes | dict.fromkeys(keys_of(self.table, later), True))
        self.model = (self.model - set(taken)) | set(later)

    @rule(share=st.floats(0, 1))
    def flush_part(self, share):
        self.table.flush_part(share)

    @rule(fails=st.booleans())
    def capture(self, fails):
        capture = self.table.capture()
        if capture is not None:
            if fails:
                capture.abandon()
            else:
                capture.write()

    @rule()
    def capture_that_is_written_later(self):
        capture = self.table.capture()
        if capture is not None:
            self.check()
            capture.write()

    @rule(writes=st.integers(0, 2), captures=st.booleans())
    def write_to_a_full_disk(self, writes, captures):
        if not isinstance(self.backend, Brittle):
            return
        with suppress(StateError):
            capture = self.table.capture() if captures else None
            self.backend.writes_left = writes
            if capture is not None:
                capture.write()
            elif not captures:
                self.table.flush()
        self.backend.writes_left = 1 << 30

    @rule()
    def restart(self):
        self.table.flush()
        self.table = self.made(range(GROUPS))

    @rule()
    def checkpoint(self):
        """An image has what was captured before it was taken."""
        self.capture(fails=False)
        self.images += 1
        directory = Path(self.image_directory.name, f"image-{self.images}")
        self.checkpointed = ImageOf(self.backend, directory, GROUPS), frozenset(self.model)

    @rule()
    def restore(self):
        """The subtask dies, and the job goes on from its latest checkpoint."""
        if self.checkpointed is not None:
            image, model = self.checkpointed
            self.backend, self.model = image.reopened(self.backend), set(model)
            self.table = self.made(range(GROUPS))

    @rule(groups=st.sets(st.integers(0, GROUPS - 1)), with_notes=st.booleans(), registered=ENTRIES)
    def hand_over(self, groups, with_notes, registered):
        """There, where something changes, and back."""
        other = self.made(())
        self.table.flush_groups(groups)
        pass_on(self.table, other, groups, with_notes)
        owned = {timer for timer in self.model if timer[0] in groups}
        assert {plain(key) for key in other.pending()} == owned
        first_ms = min((timer[1] for timer in owned), default=NEVER_MS)
        assert other.next_ms() <= first_ms
        if not with_notes and self.are_here:
            assert other.next_ms() == first_ms
        fresh = [timer for timer in registered if timer[0] in groups]
        other.change(dict.fromkeys(keys_of(other, fresh), True))
        self.model |= set(fresh)
        pass_on(other, self.table, groups, with_notes)

    @invariant()
    def check(self):
        pending = [plain(key) for key in self.table.pending()]
        assert len(pending) == len(self.model)
        assert set(pending) == self.model
        assert self.table.next_ms() <= min((timer[1] for timer in self.model), default=NEVER_MS)

    def teardown(self):
        self.backend.close()
        self.image_directory.cleanup()


class TimersOfWhichFewAreTold(Timers):
    told_max = 4


class TimersOnRocksDb(Timers):
    def make_store(self):
        self._directory = tempfile.TemporaryDirectory()
        return open_store(Path(self._directory.name, "store"), RocksDbConfig(), fresh=True)

    def teardown(self):
        super().teardown()
        self._directory.cleanup()


class TimersOnHybrid(Timers):
    """Groups here, at a peer that is reached over a socket, and on their way from there."""

    are_here = False

    def make_store(self):
        self._stack = ExitStack()
        return self._stack.enter_context(hybrid_store([STATE_ID], GROUPS))

    def teardown(self):
        super().teardown()
        self._stack.close()


class OnItsWay(Brittle):
    """Groups are on their way here, or not, and nobody says when that changes."""

    looks = 0

    def is_settled(self, group):
        self.looks += 1
        return self.looks % 5 == 0


class TimersOnTheirWay(Timers):
    told_max = 4
    are_here = False

    def make_store(self):
        return OnItsWay()


class TimersOnHybridReadByTwo(TimersOnHybrid):
    told_max = 6


class TimersWithoutRoom(Timers):
    cache_bytes = 900


TestTimers = model_test(Timers, cases(40), 40)
TestTimersWithoutRoom = model_test(TimersWithoutRoom, cases(25), 30)
TestTimersOfWhichFewAreTold = model_test(TimersOfWhichFewAreTold, cases(25), 30)
TestTimersOnRocksDb = model_test(TimersOnRocksDb, cases(8), 20)
TestTimersOnHybrid = model_test(TimersOnHybrid, cases(8), 20)
TestTimersOnHybridReadByTwo = model_test(TimersOnHybridReadByTwo, cases(8), 20)
TestTimersOnTheirWay = model_test(TimersOnTheirWay, cases(25), 30)


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


class Elsewhere(CountingStore):
    """What a former owner has written takes long to be found, and what is here does not."""

    def scan_here(self, start, stop):
        return MemoryBackend.scan(self, start, stop)


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


class OnTheWay(Elsewhere):
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
    store = Elsewhere()
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


def test_a_timer_of_a_group_that_is_not_here_is_refused():
    table = TimerTable(MemoryBackend(), STATE_ID, 1000, [1])
    with pytest.raises(StateError, match="key group 2, which is not here"):
        table.change(dict.fromkeys(keys_of(table, [(2, 1, b"k")]), True))


def test_golden_bytes():
    """What checkpoints hold: a change needs another version of the form."""
    store = MemoryBackend()
    table = TimerTable(store, STATE_ID, 1 << 20, [1], fired_max=1)
    gone, kept = keys_of(table, [(1, 5, b"k"), (1, 1_700_000_000_000, b"user")])
    table.change({gone: True, kept: True})
    table.fired(table.take(10, 10), {gone: False})
    table.flush()
    assert {key.hex(): value.hex() for key, value in store.scan()} == {
        "0001" + "0005" + "00" + "8000018bcfe56800" + b"user".hex(): "01",
        "0001" + "0005" + "05" + b"place".hex(): "8000018bcfe56800" + b"user".hex(),
    }
