"""The bytes of a window table in the store, and what its ordinary calls cost."""

import time

import numpy as np

from weir import keys as weir_keys
from weir.state.stores.memory import MemoryBackend
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
