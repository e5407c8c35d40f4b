"""The bytes of a window table in the store, and what its ordinary calls cost."""

import time

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.panes import packed_panes, window_table
from weir.state.tables.panes.packed_rows import end_of
from weir.state.tables.panes.window_entries import NEVER_MS
from weir.state.tables.panes.window_table import WindowTable
from weir.state.tables.timers.time_first import time_bytes


def filled(backend, ends):
    table = WindowTable(backend, 7, 1, 1 << 20, 2, [0, 1])
    keys = weir_keys.KeyColumn.from_list([b"ann"] * len(ends))
    for _, _, slots in table.update(np.array(ends), weir_keys.hash_keys(keys), keys):
        np.add.at(table.cells[:, 0], slots, 1)
    return table


def test_golden_bytes_of_entries_and_places():
    backend = MemoryBackend()
    table = filled(backend, [10, 10, -5])
    table.advance(-7)
    table.flush()
    group = (
        "0000" if int(weir_keys.hash_keys(weir_keys.KeyColumn.from_list([b"ann"]))[0]) < 1 << 63 else "0001"
    )
    place = "0101" + "f9ffffffffffffff"
    expected = {
        "0000" + "0007" + "00" + "0000000000000000" + "0000": place,
        "0001" + "0007" + "00" + "0000000000000000" + "0001": place,
        group + "0007" + "00" + "7ffffffffffffffb" + "616e6e": "0100" + "0100000000000000",
        group + "0007" + "00" + "800000000000000a" + "616e6e": "0100" + "0200000000000000",
    }
    assert {key.hex(): value.hex() for key, value in backend.scan()} == expected
    again = WindowTable(backend, 7, 1, 1 << 20, 2, [0, 1])
    assert (again.first_ms(), again.fired_ms()) == (-5, -7)


def test_what_has_fired_leaves_the_store():
    backend = MemoryBackend()
    table = filled(backend, [10, 20])
    table.flush()
    table.drop(10)
    table.advance(10)
    table.flush()
    assert sum(key[5:13] != bytes(8) for key, _ in backend.scan()) == 1
    table.drop(20)
    table.flush()
    assert all(key[5:13] == bytes(8) for key, _ in backend.scan())
    assert table.first_ms() == NEVER_MS


def test_a_copy_that_is_made_at_a_handover_has_the_places_of_now():
    backend = MemoryBackend()
    table, other = filled(backend, [10, 20, 40]), WindowTable(backend, 7, 1, 1 << 20, 2, [])
    table.advance(5)
    table.flush()
    table.drop(20)
    table.advance(25)
    other.take_copy(table.copy_groups([0, 1], 100, 1 << 20), [0, 1])
    other.keep_copies([0, 1])
    table.release_groups([0, 1])
    other.adopt_groups([0, 1])
    other.look()
    assert other.places_ms.tolist() == [25, 25]


def test_finding_nothing_due_takes_less_than_a_tenth_of_a_millisecond():
    table = filled(MemoryBackend(), range(10, 100_000, 10))
    began_s = time.process_time()
    for now_ms in range(1_000):
        assert table.first_ms() > now_ms % 10
        table.advance(now_ms)
    assert time.process_time() - began_s < 0.1


KEYS = [f"key {number}".encode() for number in range(20)]


class Panes:
    """A table whose panes of ten have been packed, and what it should have."""

    def __init__(self, monkeypatch, bytes_max=1 << 20, *, refer=False):
        """``refer``: panes have the keys of an earlier one, not their own."""
        monkeypatch.setattr(window_table, "PACKED_ENTRIES_MIN", 1)
        if not refer:
            monkeypatch.setattr(packed_panes, "REFERRING_MAX", 0)
        self.backend = MemoryBackend()
        self.table = self.new_table([0, 1], bytes_max)
        self.expected = {}
        for end_ms in (10, 20, 30):
            self.add(end_ms, KEYS)
            self.table.pack(end_ms)

    def new_table(self, groups, bytes_max=1 << 20):
        return WindowTable(self.backend, 7, 1, bytes_max, 2, groups)

    def add(self, end_ms, keys):
        column = weir_keys.KeyColumn.from_list(keys)
        ends_ms = np.full(len(keys), end_ms)
        for _, _, slots in self.table.update(ends_ms, weir_keys.hash_keys(column), column):
            np.add.at(self.table.cells[:, 0], slots, 1)
            self.table.presence[slots] |= 1
        for key in keys:
            self.expected[end_ms, key] = self.expected.get((end_ms, key), 0) + 1

    def check(self, table=None, of_group=None):
        found = [
            ((end_ms, key), cells[0])
            for block in (table or self.table).entries(-100, 100)
            for end_ms, key, cells in zip(
                block.ends_ms.tolist(), block.keys.to_list(), block.cells, strict=True
            )
        ]
        assert len(dict(found)) == len(found)
        wanted = {each: n for each, n in self.expected.items() if of_group in (None, self.group_of(each[1]))}
        assert dict(found) == wanted

    def group_of(self, key):
        hashes = weir_keys.hash_keys(weir_keys.KeyColumn.from_list([key]))
        return int(weir_keys.key_groups(hashes, 2)[0])

    @property
    def packed(self):
        return [end_ms for end_ms in (10, 20, 30, 40) if end_ms in self.table._packed]

    def packed_rows(self):
        return [key for key, _ in self.backend.scan() if key[4:6] == b"\x01p"]


def test_packed_panes_leave_the_slots_and_a_row_for_one_is_an_entry_that_counts_instead(monkeypatch):
    panes = Panes(monkeypatch)
    assert panes.packed == [10, 20, 30]
    assert panes.table._table.live == 2, "the places of the groups"
    panes.check()
    panes.add(20, [b"key 3", b"new"])
    assert panes.packed == [10, 20, 30]
    panes.check()
    found, _ = panes.table.peek(10, weir_keys.KeyColumn.from_list([b"key 1", b"new"]))
    assert found[:, 0].tolist() == [1, 0]
    panes.table.flush()
    again = panes.new_table([0, 1])
    panes.check(again)
    assert again.first_ms() == 10
    panes.table.drop(20)
    panes.expected = {each: n for each, n in panes.expected.items() if each[0] > 20}
    panes.check()
    assert panes.table.first_ms() == 30
    assert len(panes.packed_rows()) == 6
    panes.table.flush()
    assert len(panes.packed_rows()) == 2
    panes.table.drop(30)
    assert panes.table.first_ms() == NEVER_MS


def test_entries_that_were_written_are_gone_when_their_pane_is_packed(monkeypatch):
    panes = Panes(monkeypatch)
    panes.add(40, KEYS)
    panes.table.flush()
    assert len(list(panes.backend.scan())) == 6 + len(KEYS)
    panes.table.pack(40)
    assert len(list(panes.backend.scan())) == 8, "the rows of four panes"
    panes.check()


def test_packed_panes_are_left_to_the_store_where_there_is_no_room_for_them_the_latest_first(monkeypatch):
    panes = Panes(monkeypatch)
    panes.table._bytes_max = panes.table.stats().memory_bytes - 1
    panes.add(40, [b"key 1"])
    assert panes.table._packed.in_memory() == [10, 20]
    panes.check()
    panes.add(30, [b"key 1"])
    panes.check()
    panes.table.drop(30)
    panes.expected = {(40, b"key 1"): 1}
    panes.table.flush()
    panes.check()
    assert panes.packed_rows() == []


def test_packed_panes_lose_key_groups_that_go_and_others_come_from_the_store(monkeypatch):
    panes = Panes(monkeypatch)
    panes.table.drop(10)
    panes.expected = {each: n for each, n in panes.expected.items() if each[0] > 10}
    other = panes.new_table([])
    panes.table.flush_groups([0])
    panes.table.release_groups([0])
    other.adopt_groups([0])
    panes.check(of_group=1)
    other.drop(10)
    panes.check(other, of_group=0)
    panes.table.flush()
    assert len(panes.packed_rows()) == 5, "of a group that has gone the new owner deletes what is dropped"
    other.flush()
    assert len(panes.packed_rows()) == 4
    other.release_groups([0])
    panes.table.adopt_groups([0])
    panes.table.look()
    panes.check()


def test_a_pane_stays_in_the_store_while_later_ones_have_its_keys(monkeypatch):
    panes = Panes(monkeypatch, refer=True)
    rows = {end_ms: [key for key in panes.packed_rows() if end_of(key) == end_ms] for end_ms in (10, 20)}
    size = panes.table._packed.bytes
    panes.table.drop(20)
    panes.expected = {each: n for each, n in panes.expected.items() if each[0] > 20}
    panes.table.flush()
    assert panes.table.first_ms() == 30
    assert 0 < panes.table._packed.bytes < size
    assert set(rows[10]) < set(panes.packed_rows())
    assert not set(rows[20]) & set(panes.packed_rows())
    panes.check()
    again = panes.new_table([0, 1])
    again.drop(20)
    panes.check(again)
    # Of one that refers to it nothing is known any more in this key group.
    panes.table.flush_groups([0])
    panes.table.release_groups([0])
    panes.add(40, [key for key in KEYS if panes.group_of(key) == 1])
    panes.table.pack(40)
    panes.table.drop(30)
    panes.expected = {each: n for each, n in panes.expected.items() if each[0] > 30}
    panes.check(of_group=1)
    panes.table.drop(40)
    panes.table.flush()
    assert panes.table._packed.bytes == 0
    assert {key[:2] for key in panes.packed_rows()} == {b"\0\0"}, "of what is another's nothing is deleted"


def test_panes_have_their_own_keys_again_after_many_and_where_the_keys_are_others(monkeypatch):
    monkeypatch.setattr(packed_panes, "REFERRING_MAX", 3)
    panes = Panes(monkeypatch, refer=True)
    for number, end_ms in enumerate((40, 50, 60, 70)):
        panes.add(end_ms, KEYS if number < 3 else [b"other %d" % each for each in range(30)])
        panes.table.pack(end_ms)
    held = panes.table._packed._panes
    referred = [[end for part in held[end_ms] for end in part.referred_ms()] for end_ms in range(10, 80, 10)]
    assert referred == [[], [10], [10], [10], [], [50], []]
    panes.check()
    panes.check(panes.new_table([0, 1]))


def test_a_pane_waits_until_the_store_may_be_written_and_nobody_has_a_copy_of_it(monkeypatch):
    panes = Panes(monkeypatch)
    panes.add(40, KEYS)
    capture = panes.table.capture()
    panes.table.pack(40)
    assert panes.table.has_to_pack
    assert panes.packed == [10, 20, 30]
    capture.write()
    panes.table.copy_groups([0], 1000, 1 << 20)
    panes.table.pack(40)
    assert panes.table.has_to_pack
    panes.table.release_groups([0])
    panes.table.pack(40)
    assert panes.packed == [10, 20, 30, 40]
    panes.check(of_group=1)


def test_values_of_packed_entries_are_found_by_their_store_keys(monkeypatch):
    panes = Panes(monkeypatch)
    panes.add(20, [b"key 3"])
    keys = [
        layout.encode_key(panes.group_of(key), 7, time_bytes(end_ms) + key)
        for end_ms, key in ((10, b"key 3"), (20, b"key 3"), (20, b"key 4"), (20, b"no key"), (50, b"key 3"))
    ]
    values = panes.table.get_stored(keys)
    assert [None if value is None else value[2] for value in values] == [1, 2, 1, None, None]
    assert panes.table.get_stored(keys[-1:]) == [None]


class CountedReads(MemoryBackend):
    def __init__(self):
        super().__init__()
        self.asked = 0

    def get_many(self, keys):
        self.asked += len(keys)
        return super().get_many(keys)


def test_the_store_is_not_asked_for_keys_that_are_new_in_a_pane_of_which_it_has_others():
    backend = CountedReads()
    # Of the first two panes it has more entries than the cache has slots.
    table = WindowTable(backend, 7, 1, 1 << 17, 2, [0, 1])
    backend.asked = 0
    keys = weir_keys.KeyColumn.from_list([b"%d" % number for number in range(6_000)])
    hashes = weir_keys.hash_keys(keys)

    def add(end_ms, rows):
        chosen = weir_keys.select_keys(keys, rows)
        for _, _, slots in table.update(np.full(len(rows), end_ms), hashes[rows], chosen):
            table.cells[slots, 0] += 1

    old, new = np.arange(4_000), np.arange(4_000, 6_000)
    add(10, old)
    add(20, old)
    table.look()
    backend.asked = 0
    add(10, new)
    cells, _ = table.peek(20, weir_keys.select_keys(keys, new))
    assert not cells.any()
    assert backend.asked < 400
    # Those that it has are all found, also by a new owner, who knows nothing.
    assert (table.peek(10, keys)[0][:, 0] == 1).all()
    table.flush()
    add(20, np.arange(6_000))
    assert table.peek(20, keys)[0][:, 0].tolist() == [2] * 4_000 + [1] * 2_000
    table.flush()
    again = WindowTable(backend, 7, 1, 1 << 17, 2, [0, 1])
    assert again.first_ms() == 10
    assert again.peek(20, keys)[0][:, 0].tolist() == [2] * 4_000 + [1] * 2_000


def test_panes_beyond_those_that_have_a_filter_are_read_from_the_store():
    table = WindowTable(MemoryBackend(), 7, 1, 1 << 14, 2, [0, 1])
    keys = weir_keys.KeyColumn.from_list([b"%d" % number for number in range(500)])
    hashes = weir_keys.hash_keys(keys)
    ends_ms = range(10, 110, 10)
    for _ in range(2):
        for end_ms in ends_ms:
            for _, _, slots in table.update(np.full(len(keys), end_ms), hashes, keys):
                table.cells[slots, 0] += 1
        table.drop(30)
        ends_ms = range(40, 110, 10)
    for end_ms in ends_ms:
        assert (table.peek(end_ms, keys)[0][:, 0] == 2).all()
