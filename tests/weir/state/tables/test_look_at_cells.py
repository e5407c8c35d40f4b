"""Another thread looks at the cells of a key: what the last batch left, or "being changed"."""

import threading

import numpy as np
import pytest

from weir import keys as weir_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.accumulators import decode_values
from weir.state.tables.cells import CellTable, ChangingError

KEYS = 400


def column(names):
    keys = weir_keys.KeyColumn.from_list([name.encode() for name in names])
    return weir_keys.hash_keys(keys), keys.data, keys.offsets


def look(table, name):
    hashes, data, _ = column([name])
    found = table.look_at(hashes[0], data)
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
