"""The bytes of a window table in the store, and what its ordinary calls cost."""

import time

import numpy as np

from weir import keys as weir_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables import window_table
from weir.state.tables.window_entries import NEVER_MS
from weir.state.tables.window_table import WindowTable


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


def test_finding_nothing_due_takes_less_than_a_tenth_of_a_millisecond():
    table = filled(MemoryBackend(), range(10, 100_000, 10))
    began_s = time.process_time()
    for now_ms in range(1_000):
        assert table.first_ms() > now_ms % 10
        table.advance(now_ms)
    assert time.process_time() - began_s < 0.1


KEYS = [f"key {number}".encode() for number in range(20)]


class Panes:
    """A table whose panes of ten have been looked at, written and made blocks of, and what it should have."""

    def __init__(self, monkeypatch, bytes_max=1 << 20):
        monkeypatch.setattr(window_table, "SEALED_ENTRIES_MIN", 1)
        self.backend = MemoryBackend()
        self.table = WindowTable(self.backend, 7, 1, bytes_max, 2, [0, 1])
        self.expected = {}
        for end_ms in (10, 20, 30):
            self.add(end_ms, KEYS)
            list(self.table.entries(end_ms - 10, end_ms))
            self.table.flush()
            self.table.seal()

    def add(self, end_ms, keys):
        column = weir_keys.KeyColumn.from_list(keys)
        ends_ms = np.full(len(keys), end_ms)
        for _, _, slots in self.table.update(ends_ms, weir_keys.hash_keys(column), column):
            np.add.at(self.table.cells[:, 0], slots, 1)
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
    def sealed(self):
        return sorted(self.table._blocks.ends())


def test_panes_that_are_written_become_blocks_and_a_row_for_one_opens_it_again(monkeypatch):
    panes = Panes(monkeypatch)
    assert panes.sealed == [10, 20, 30]
    assert panes.table._table.live == 2, "the places of the groups"
    panes.check()
    panes.add(20, [b"key 3", b"new"])
    assert panes.sealed == [10, 30]
    panes.check()
    found, _ = panes.table.peek(10, weir_keys.KeyColumn.from_list([b"key 1"]))
    assert found[:, 0].tolist() == [1]
    assert panes.sealed == [30]
    panes.check()
    panes.table.drop(20)
    panes.expected = {each: n for each, n in panes.expected.items() if each[0] > 20}
    panes.check()
    assert panes.table.first_ms() == 30
    panes.table.drop(30)
    assert panes.table.first_ms() == NEVER_MS


def test_blocks_are_left_to_the_store_where_there_is_no_room_for_them_the_latest_first(monkeypatch):
    panes = Panes(monkeypatch)
    panes.table._bytes_max = panes.table.stats().memory_bytes - 1
    panes.add(40, [b"key 1"])
    assert panes.sealed == [10, 20]
    panes.check()


def test_blocks_lose_key_groups_that_go_and_others_come_from_the_store(monkeypatch):
    panes = Panes(monkeypatch)
    other = WindowTable(panes.backend, 7, 1, 1 << 20, 2, [])
    panes.table.flush_groups([0])
    panes.table.release_groups([0])
    other.adopt_groups([0])
    panes.check(of_group=1)
    panes.check(other, of_group=0)
    other.release_groups([0])
    panes.table.adopt_groups([0])
    panes.table.look()
    panes.check()


def test_a_pane_that_changes_after_it_was_looked_at_is_no_block(monkeypatch):
    panes = Panes(monkeypatch)
    panes.add(40, KEYS)
    list(panes.table.entries(30, 40))
    panes.add(40, [b"key 5"])
    panes.table.flush()
    panes.table.seal()
    assert 40 not in panes.sealed
    panes.check()
