"""The sweep of expired entries: bounded, complete, with a remembered place, and only where the groups are owned."""

import numpy as np
import pytest

import weir
from tests.weir.state.group_ranges import group_range
from weir.keys import hashing as weir_keys
from weir.state.layout import encode_keys
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.state.tables.sweep import CHUNK_ENTRIES
from weir.testing import ManualClock

GROUPS = 4
NAMES = {"cells": 1, "values": 2}


class Tables:
    """Both kinds of tables with a TTL of 100 ms in event time."""

    def __init__(self, backend, groups=None, cache_bytes=4 << 20):
        self.backend = backend
        self.tables = StateTables(backend, cache_bytes, GROUPS, groups)
        opened = self.tables.of("step", NAMES)
        self.times = opened.times
        ttl = weir.Ttl("100ms")
        self.cells = opened.cells(2, "cells", drops_empty=True, ttl=ttl)
        self.values = opened.values("values", ttl=ttl)

    def write(self, keys, now_ms):
        """Keys (integers) with values of this time, in both tables, flushed."""
        self.times.advance(now_ms)
        column = weir_keys.KeyColumn(None, None, np.array(keys, dtype=np.int64))
        hashes = weir_keys.hash_keys(column)
        rows = np.arange(len(keys))
        cells = np.column_stack([rows, np.full(len(keys), now_ms)]).astype(np.int64)
        presence = np.full((len(keys), 1), 3, dtype=np.uint8)
        self.cells.write(hashes, column.data, column.offsets, rows, cells, presence)
        self.values.expiry.begin(hashes)
        self.values.expiry.end()
        data = [self.values.expiry.prefix + b"\x01x"] * len(keys)
        names = encode_keys(weir_keys.key_groups(hashes, GROUPS), self.values.state_id, column.to_list())
        self.values.write_stored(list(zip(names, data, strict=True)), [])
        self.tables.flush()

    def count(self):
        return len(list(self.backend.scan()))


@pytest.fixture
def backend():
    return MemoryBackend()


def sweep_all(tables):
    steps = 0
    while tables.tables.sweeps.step(0.0):
        steps += 1
    return steps


def test_nothing_goes_before_its_time(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    tables.times.advance(1_099)
    sweep_all(tables)
    assert tables.count() == 200


def test_all_that_has_expired_goes_and_nothing_else(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    tables.write(range(50, 120), 1_050)
    tables.times.advance(1_100)
    sweep_all(tables)
    assert tables.count() == 140
    assert [sweep.deleted for sweep in tables.tables.sweeps] == [50, 50]


def test_a_step_is_bounded_and_the_next_one_goes_on_there(backend):
    tables = Tables(backend)
    tables.write(range(20 * CHUNK_ENTRIES), 1_000)
    tables.times.advance(2_000)
    left = [tables.count()]
    while tables.tables.sweeps.step(0.0):
        left.append(tables.count())
        assert 0 <= left[-2] - left[-1] <= CHUNK_ENTRIES
    assert tables.count() == 0
    assert len(left) <= 2 * 20 + 2 * GROUPS + 1


def test_a_group_is_not_looked_at_again_before_something_in_it_can_have_expired(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    tables.times.advance(1_050)
    sweep_all(tables)
    reads = []
    scan = backend.scan
    backend.scan = lambda *args, **more: reads.append(args) or scan(*args, **more)
    tables.times.advance(1_111)
    assert not tables.tables.sweeps.step()
    assert not reads, "an eighth of the TTL more has to pass"
    tables.times.advance(1_112)
    sweep_all(tables)
    assert tables.count() == 0


def test_what_is_unwritten_stays(backend):
    tables = Tables(backend)
    tables.write(range(10), 1_000)
    flush, tables.tables.flush = tables.tables.flush, lambda: None
    tables.write(range(5), 1_090)
    tables.times.advance(1_100)
    sweep_all(tables)
    tables.tables.flush = flush
    tables.tables.flush()
    assert tables.count() == 10


def test_groups_that_leave_are_their_new_owners(backend):
    tables, other = Tables(backend), Tables(backend, groups=())
    tables.write(range(100), 1_000)
    for table in tables.tables:
        table.release_groups([0, 1])
    for table in other.tables:
        table.adopt_groups([0, 1])
    tables.times.advance(2_000)
    sweep_all(tables)
    here = [entry for entry in backend.scan(*group_range(2, 4))]
    there = [entry for entry in backend.scan(*group_range(0, 2))]
    assert not here
    assert len(there) > 40
    other.times.advance(2_000)
    sweep_all(other)
    # The clocks that the former owner left.
    assert tables.count() == 4


def test_a_group_that_leaves_while_it_is_swept_is_left_at_once(backend):
    tables = Tables(backend)
    tables.write(range(20 * CHUNK_ENTRIES), 1_000)
    tables.times.advance(2_000)
    tables.tables.sweeps.step(0.0)
    for table in tables.tables:
        table.release_groups(range(GROUPS))
    before = tables.count()
    assert not tables.tables.sweeps.step()
    assert tables.count() == before


def test_nothing_is_swept_while_images_are_taken(backend):
    tables = Tables(backend)
    tables.write(range(10), 1_000)
    tables.times.advance(2_000)
    backend.writes_wait = lambda: True
    assert not tables.tables.sweeps.step()
    assert tables.count() == 20
    del backend.writes_wait
    sweep_all(tables)
    assert tables.count() == 0


def test_nothing_is_swept_while_a_capture_is_written(backend):
    tables = Tables(backend)
    tables.write(range(10), 1_000)
    flush, tables.tables.flush = tables.tables.flush, lambda: None
    tables.write(range(5), 1_050)
    captures = tables.tables.capture()
    tables.times.advance(2_000)
    sweep_all(tables)
    assert tables.count() == 20
    for capture in captures:
        capture.write()
    tables.tables.flush = flush
    tables.times.advance(3_000)
    sweep_all(tables)
    assert tables.count() == 0


def test_groups_that_are_on_their_way_wait(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    tables.times.advance(2_000)
    backend.is_settled = lambda group: group != 3
    sweep_all(tables)
    assert tables.count() == len(list(backend.scan(*group_range(3, 4)))) > 10


def test_the_store_is_told_what_was_deleted(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    told = []
    backend.give_back = lambda *args: told.append(args)
    tables.times.advance(2_000)
    sweep_all(tables)
    assert {(group, state_id) for group, state_id, _ in told} == {
        (g, s) for g in range(GROUPS) for s in (1, 2)
    }
    assert sum(size for _, _, size in told) > 200 * 20


def test_expired_slots_are_free_again(backend):
    tables = Tables(backend)
    tables.write(range(100), 1_000)
    tables.times.advance(2_000)
    sweep_all(tables)
    assert tables.cells._table.live == 0


def test_a_step_ends_in_time(backend):
    """By the clock that it is given, which goes on by 1 ms each time it is looked at."""
    tables = Tables(backend)
    tables.write(range(20 * CHUNK_ENTRIES), 1_000)
    tables.times.advance(2_000)

    class Ticking(ManualClock):
        def monotonic_s(self):
            self.advance_ms(1)
            return super().monotonic_s()

    before = tables.count()
    assert tables.tables.sweeps.step(0.003, Ticking())
    assert before - tables.count() <= 3 * CHUNK_ENTRIES
