"""Timers against a plain set, whatever the runtime does in between."""

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
