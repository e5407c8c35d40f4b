"""Values of a holder on their way to a new owner: sent ahead, or looked for where that is not known to be all."""

import pytest

from weir.errors import HandshakeError
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.held import HeldTable


class CountingStore(MemoryBackend):
    """Counts scans: at a peer each is a call."""

    scans = 0

    def scan(self, start=None, stop=None, *, reverse=False):
        self.scans += 1
        return super().scan(start, stop, reverse=reverse)


class Lines:
    """Holds a text for each key; what is not written is in ``fresh``."""

    def __init__(self, table):
        self.table = table
        self.fresh, self.lines = {}, {}
        table.held_by(self)
        self.take_new()

    def settle(self):
        if self.fresh:
            self.table.write_stored(list(self.fresh.items()), ())
            self.lines |= self.fresh
            self.fresh = {}

    def written(self, groups):
        return {
            key: len(line) for key, line in self.lines.items() if int.from_bytes(key[:2], "big") in groups
        }

    def leave(self, groups):
        self.lines = {
            key: line for key, line in self.lines.items() if int.from_bytes(key[:2], "big") not in groups
        }

    def take_new(self):
        self.lines |= dict(self.table.take_new())

    def put(self, group, name, line):
        self.fresh[self.table.key_prefix(group) + name] = line

    def drop(self, group, name):
        key = self.table.key_prefix(group) + name
        del self.lines[key]
        self.table.write_stored((), [key])


@pytest.fixture
def owners():
    """An old owner of two groups, and a new one, over a store."""
    store = CountingStore()
    tables = [HeldTable(store, 7, 1 << 20, groups, 1 << 20) for groups in ([1, 2], [])]
    return store, *(Lines(table) for table in tables)


def hand_over(old, new, groups, *, is_complete=True):
    tell(new, old.table.changes_since_copy(groups), groups)
    tell(new, old.table.notes_at_handover(groups), groups)
    if is_complete:
        new.table.keep_copies(groups)
    old.table.release_groups(groups)
    new.table.adopt_groups(groups)


def tell(owner, entries, groups):
    assert owner.table.take_copy(entries, groups)


def lines_of(owner):
    return sorted((key[:2], key[-1:], line) for key, line in owner.lines.items())


def test_a_new_owner_that_was_sent_all_values_looks_for_none(owners):
    """A scan for each of 64 groups, at a peer, took 0.5 s, for which a join's rows waited."""
    store, old, new = owners
    old.put(1, b"a", b"one")
    old.put(1, b"b", b"two")
    old.put(2, b"c", b"three")
    tell(new, old.table.copy_groups([1, 2], 1000, 1 << 20), [1, 2])
    # Meanwhile a value gets longer, one goes and one comes.
    old.put(1, b"a", b"one, and more")
    old.drop(1, b"b")
    changes = old.table.copy_changes([1, 2])
    assert list(changes.values) == [b"one, and more"]
    tell(new, changes, [1, 2])
    old.put(2, b"d", b"last")
    store.scans = 0
    hand_over(old, new, [1, 2])
    assert new.table.has_new_groups
    new.take_new()
    assert lines_of(new) == [
        (b"\0\1", b"a", b"one, and more"),
        (b"\0\2", b"c", b"three"),
        (b"\0\2", b"d", b"last"),
    ]
    assert (store.scans, new.table.has_new_groups, lines_of(old)) == (0, False, [])


def test_what_does_not_fit_into_a_copy_is_sent_with_the_changes(owners):
    store, old, new = owners
    for name in (b"a", b"b", b"c"):
        old.put(1, name, name * 10)
    copied = old.table.copy_groups([1], 1000, 15)
    assert len(copied) == 2
    assert len(old.table.copy_groups([1], 1000, 1)) == 1, "a copy begins anew"
    tell(new, copied, [1])
    store.scans = 0
    hand_over(old, new, [1])
    new.take_new()
    assert [line for _, _, line in lines_of(new)] == [b"a" * 10, b"b" * 10, b"c" * 10]
    assert store.scans == 0


@pytest.mark.parametrize("lost", ["the copy", "the word that it is complete", "a copy that is void", "all"])
def test_what_was_not_sent_whole_is_looked_for(owners, lost):
    store, old, new = owners
    old.put(1, b"a", b"one")
    if lost != "all":
        entries = old.table.copy_groups([1], 1000, 1 << 20)
        if lost != "the copy":
            tell(new, entries, [1])
    if lost == "a copy that is void":
        new.table.clear_groups([1])
    old.put(1, b"b", b"two")
    store.scans = 0
    hand_over(old, new, [1], is_complete=lost != "the word that it is complete")
    new.take_new()
    assert [line for _, _, line in lines_of(new)] == [b"one", b"two"]
    assert store.scans == 1


def test_an_owner_that_has_not_taken_a_group_tells_nothing_of_it(owners):
    store, old, new = owners
    old.put(1, b"a", b"one")
    old.table.copy_groups([1], 1000, 1 << 20)
    hand_over(old, new, [1])
    third = Lines(HeldTable(store, 7, 1 << 20, [], 1 << 20))
    assert len(new.table.copy_groups([1], 1000, 1 << 20)) == 0
    hand_over(new, third, [1])
    third.take_new()
    assert [line for _, _, line in lines_of(third)] == [b"one"]


def test_a_list_that_is_cut_off_is_refused(owners):
    _, _, new = owners
    with pytest.raises(HandshakeError, match="cut off"):
        new.table.take_copy(CachedValues(7, [b"\0\1"], [b"\x01\x00\x00"]), [1])
