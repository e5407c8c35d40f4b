"""Another thread looks at the cells of a key: what the last batch left, or "being changed"."""

import threading

import numpy as np
import pytest

from weir.keys import hashing as weir_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.accumulators import decode_values
from weir.state.tables.cells.cell_table import CellTable, ChangingError, WholeCell

KEYS = 400


def column(names):
    keys = weir_keys.KeyColumn.from_list([name.encode() for name in names])
    return weir_keys.hash_keys(keys), keys.data, keys.offsets


def look(table, name, whole=None):
    hashes, data, _ = column([name])
    found = table.look_at(hashes[0], data, whole)
    return None if found is None else decode_values([found], 2)[0][0].tolist()


def add(table, names):
    for _, _, slots in table.pieces(*column(names)):
        for slot in slots:
            table.cells[slot] += 1


def test_a_piece_that_is_worked_on_is_not_shown():
    table = CellTable(MemoryBackend(), 1, 2, 1 << 20, 16)
    assert look(table, "a") is None
    add(table, ["a", "b", "a"])
    assert look(table, "a") == [2, 2]
    assert look(table, "c") is None
    pieces = table.pieces(*column(["a"]))
    _, _, slots = next(pieces)
    with pytest.raises(ChangingError):
        look(table, "a")
    table.cells[slots[0]] = 7
    table.end_piece()
    assert look(table, "a") == [7, 7]
    assert next(pieces, None) is None
    assert look(table, "a") == [7, 7]


def test_a_cell_that_rows_replace_at_once_is_shown_in_the_midst_of_a_piece():
    table = CellTable(MemoryBackend(), 1, 2, 1 << 20, 16)
    add(table, ["a"])
    pieces = table.pieces(*column(["a", "new"]))
    _, _, slots = next(pieces)
    count, total = WholeCell(0, counts=True), WholeCell(1)
    assert look(table, "a", count) == [1, 1]
    table.cells[slots[0], 0] = 2
    assert look(table, "a", count) == [2, 1]
    assert look(table, "other", count) is None
    # Of these nothing says yet whether there is a value.
    for name, whole in (("new", count), ("a", total)):
        with pytest.raises(ChangingError):
            look(table, name, whole)
    table.presence[slots[0], 0] = 2
    assert look(table, "a", total) == [2, 1]


class WatchedBackend(MemoryBackend):
    """Calls something before each read."""

    def get_packed(self, keys, value_bytes):
        self.watch()
        return super().get_packed(keys, value_bytes)


def test_a_key_is_not_shown_while_others_are_read_from_the_store():
    backend = WatchedBackend()
    table = CellTable(backend, 1, 2, 1 << 20, 1)
    add(table, ["a", "b"])
    table.flush()
    table.clear_groups([0])
    table.adopt_groups([0])
    seen = []

    def watch():
        with pytest.raises(ChangingError):
            look(table, "a", WholeCell(0, counts=True))
        seen.append(True)

    backend.watch = watch
    add(table, ["a"])
    assert seen
    assert look(table, "a") == [2, 2]


def test_looks_of_another_thread_are_right_while_keys_come_and_go():
    # So small that keys are evicted all the time, and the arrays grow.
    table = CellTable(MemoryBackend(), 1, 2, 12_000, 16)
    ends, seen, wrong = threading.Event(), [0], []

    def watch():
        number = 0
        while not ends.is_set():
            number += 1
            try:
                found = look(table, f"key-{number % KEYS}")
            except ChangingError:
                continue
            if found is not None:
                seen[0] += 1
                # Both cells of a key are changed one after the other.
                if found[0] != found[1]:
                    wrong.append(found)

    watcher = threading.Thread(target=watch)
    watcher.start()
    chance = np.random.default_rng(5)
    while seen[0] < 200:
        add(table, [f"key-{number}" for number in chance.integers(0, KEYS, 50)])
    ends.set()
    watcher.join()
    assert not wrong
