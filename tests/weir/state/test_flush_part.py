"""Dirty slots are written bit by bit, and all of them in the end."""

from __future__ import annotations

import numpy as np

from weir.keys.hashing import KeyColumn, hash_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells import stored_cells
from weir.state.tables.cells.cell_table import CellTable


def touch(state: CellTable, names: range) -> None:
    keys = KeyColumn.from_list([b"key-%06d" % name for name in names])
    for _, _, slots in state.pieces(hash_keys(keys), keys.data, keys.offsets):
        state.cells[slots, 0] += 1


def stored(backend: MemoryBackend) -> int:
    return len(list(backend.scan()))


def test_a_share_of_the_dirty_slots_is_written_at_each_call():
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 64 << 20, 128)
    count = 10 * stored_cells.FLUSH_KEYS_MAX
    touch(state, range(count))
    assert not state.flush_part(0.25)
    assert count // 4 <= stored(backend) <= count // 4 + stored_cells.FLUSH_KEYS_MAX
    assert state.flush_part(1.0)
    assert stored(backend) == count
    assert state.flush_part(0.0), "nothing is dirty any more"


def test_slots_that_become_dirty_meanwhile_wait_for_the_next_flush():
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 64 << 20, 128)
    touch(state, range(4 * stored_cells.FLUSH_KEYS_MAX))
    state.flush_part(0.1)
    touch(state, range(100_000, 100_010))
    assert state.flush_part(1.0)
    before = stored(backend)
    assert state.flush_part(1.0)
    assert stored(backend) == before + 10


def test_evictions_and_drops_between_the_parts_lose_nothing():
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 1 << 20, 128)
    for start in range(0, 60_000, 5_000):
        touch(state, range(start, start + 5_000))
        state.flush_part(0.3)
        if start == 30_000:
            state.release_groups(range(64))
            state.adopt_groups(range(64))
    while not state.flush_part(1.0):
        pass
    state.flush()
    assert stored(backend) == 60_000
    total = 0
    for start in range(0, 60_000, 5_000):
        keys = KeyColumn.from_list([b"key-%06d" % name for name in range(start, start + 5_000)])
        for _, _, slots in state.pieces(hash_keys(keys), keys.data, keys.offsets):
            total += int(np.sum(state.cells[slots, 0]))
    assert total == 60_000


def test_a_flush_in_between_writes_everything_and_the_parts_go_on():
    backend = MemoryBackend()
    state = CellTable(backend, 0, 1, 64 << 20, 128)
    count = 4 * stored_cells.FLUSH_KEYS_MAX
    touch(state, range(count))
    assert not state.flush_part(0.25)
    # Some of it written and changed again, some not written yet, some new.
    touch(state, range(0, count, 2))
    touch(state, range(100_000, 100_010))
    state.flush()
    once, twice = [int.from_bytes(value[2:10], "little") for _, value in backend.scan()].count(1), count // 2
    assert (stored(backend), once) == (count + 10, count + 10 - twice)
    touch(state, range(5))
    while not state.flush_part(1.0):
        pass
    assert state.flush_part(1.0)
    assert [int.from_bytes(value[2:10], "little") for _, value in backend.scan()].count(3) == 3
