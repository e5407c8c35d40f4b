"""A table of values of any length has the life cycle of one of cells: written bit by bit, taken back, handed over."""

import pytest

from weir.errors import StateError
from weir.state.layout import encode_key
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables
from weir.state.tables.values.value_table import ValueTable
from weir.state.tables.values.value_writes import FLUSH_ENTRIES_MAX

GROUPS = 16
COUNT = 4 * FLUSH_ENTRIES_MAX


def make(backend, bytes_max=64 << 20):
    return ValueTable(backend, 1, bytes_max)


def put(table, numbers, value=b"v"):
    names = [
        encode_key(place % GROUPS, table.state_id, b"%06d" % number) for place, number in enumerate(numbers)
    ]
    table.write_stored([(name, value) for name in names], [])


def stored(backend):
    return sum(1 for _ in backend.scan())


def test_changes_are_written_bit_by_bit():
    backend = MemoryBackend()
    table = make(backend)
    put(table, range(COUNT))
    assert not table.flush_part(0.5)
    assert COUNT // 2 <= stored(backend) <= COUNT // 2 + FLUSH_ENTRIES_MAX
    put(table, range(COUNT, COUNT + 16))
    assert table.flush_part(1.0), "all that was dirty at the first call is written"
    assert stored(backend) == COUNT, "what came later waits for the next round"
    assert table.flush_part(1.0)
    assert stored(backend) == COUNT + 16


def test_an_entry_that_was_evicted_while_it_was_to_be_written_is_written_once():
    backend = MemoryBackend()
    table = make(backend, bytes_max=300 * 250)
    put(table, range(200))
    assert not table.flush_part(0.0)
    put(table, range(1000, 1400))
    while not table.flush_part(1.0):
        pass
    table.flush()
    assert stored(backend) == 600


@pytest.mark.parametrize("waiting", ["writes_wait", "is_stalled"])
def test_rows_do_not_wait_for_a_store_that_cannot_take_writes_now(waiting, monkeypatch):
    backend = MemoryBackend()
    monkeypatch.setattr(backend, waiting, lambda: True)
    tables = StateTables(backend, 64 << 20, GROUPS)
    values = tables.of("step", {"": 1}).values()
    put(values, range(COUNT))
    assert not tables.flush_part(1.0)
    assert stored(backend) == 0
    monkeypatch.undo()
    assert tables.flush_part(1.0)
    assert stored(backend) == COUNT


def test_the_cache_outgrows_its_bound_a_little_instead_of_waiting_and_shrinks_later(monkeypatch):
    backend = MemoryBackend()
    monkeypatch.setattr(backend, "is_stalled", lambda: True)
    table = make(backend, bytes_max=400 * 240)
    put(table, range(440))
    assert stored(backend) == 0
    put(table, range(1000, 1200))
    assert stored(backend) > 0, "but not without bound"
    monkeypatch.undo()
    put(table, range(2000, 2001))
    assert table.stats().memory_bytes <= 400 * 240
    table.flush()
    assert stored(backend) == 641


def test_one_part_of_a_flush_is_bounded_whatever_the_share():
    backend = MemoryBackend()
    table = make(backend)
    put(table, range(20_000))
    assert not table.flush_part(1.0)
    assert stored(backend) <= 1_000
    put(table, range(20_000), bytes(10_000))
    before = sum(len(value) for _, value in backend.scan())
    assert not table.flush_part(1.0)
    assert sum(len(value) for _, value in backend.scan()) - before < 2 << 20
    captured = table.capture()
    assert captured is not None
    captured.write()
    assert stored(backend) == 20_000


def test_all_tables_of_a_subtask_are_flushed_and_captured_together():
    backend = MemoryBackend()
    tables = StateTables(backend, 64 << 20, GROUPS)
    declared = tables.of("step", {"first": 1, "second": 2})
    first, second = declared.values("first"), declared.values("second")
    assert list(tables) == [first, second]
    put(first, range(COUNT))
    put(second, range(8))
    assert not tables.flush_part(0.25)
    assert tables.flush_part(1.0)
    assert stored(backend) == COUNT + 8
    put(first, range(8), b"new")
    put(second, range(8), b"new")
    captures = tables.capture()
    assert len(captures) == 2
    for capture in captures:
        capture.write()
    assert [value for _, value in backend.scan()].count(b"new") == 16
    with pytest.raises(
        StateError, match=r"step 'step' has no state 'third'; its declared states: 'first', 'second'"
    ):
        declared.values("third")


def test_rows_wait_for_one_write_when_a_part_is_over_and_all_is_written_in_the_end():
    backend = MemoryBackend()
    tables = StateTables(backend, 64 << 20, GROUPS)
    declared = tables.of("step", {"first": 1, "second": 2, "cells": 3})
    put(declared.values("first"), range(COUNT))
    put(declared.values("second"), range(COUNT))
    declared.cells(1, "cells")
    parts, before = 1, 0
    while not tables.flush_part(1.0, lambda: True):
        assert stored(backend) <= before + FLUSH_ENTRIES_MAX
        parts, before = parts + 1, stored(backend)
    assert stored(backend) == 2 * COUNT
    assert parts >= 2 * COUNT / FLUSH_ENTRIES_MAX


def test_what_changed_since_a_copy_can_be_made_part_of_it():
    old = make(MemoryBackend())
    prefix = old.key_prefix(1)
    old.write_stored([(prefix + b"a", b"1"), (prefix + b"b", b"1")], [])
    assert len(old.copy_groups([1], 10, 1 << 20)) == 2
    old.write_stored([(prefix + b"b", b"2")], [])
    changed = old.copy_changes([1])
    assert (changed.keys, changed.values) == ([prefix + b"b"], [b"2"])
    assert len(old.copy_changes([1])) == 0
    old.write_stored([(prefix + b"c", b"3")], [])
    assert old.changes_since_copy([1]).keys == [prefix + b"c"]
    assert old.good_copies([1]) == [1]


def test_of_what_was_only_loaded_since_a_copy_little_is_sent_at_the_handover():
    """Of a join with 1 GB nearly every row loads a key: 2 MB, for which rows of the groups waited, and nobody needs."""
    backend = MemoryBackend()
    old = make(backend)
    prefix = old.key_prefix(1)
    keys = [prefix + b"%04d" % number for number in range(1000)]
    backend.write([(key, bytes(1000)) for key in keys])
    old.copy_groups([1], 10, 1 << 20)
    old.get_stored(keys[:500])
    old.write_stored([(key, b"changed") for key in keys[400:600]], [])
    old.get_stored(keys[600:])
    changes = old.changes_since_copy([1])
    sent = dict(zip(changes.keys, changes.values, strict=True))
    assert {key for key, value in sent.items() if value == b"changed"} == set(keys[400:600])
    # What came last.
    assert keys[-1] in sent
    assert keys[0] not in sent
    assert 250 < len(sent) < 350


def test_a_copy_without_what_was_only_loaded_and_evicted_is_good():
    backend = MemoryBackend()
    old = make(backend, bytes_max=1000)
    prefix = old.key_prefix(1)
    backend.write([(prefix + b"%d" % number, b"x" * 100) for number in range(20)])
    old.copy_groups([1], 10, 1 << 20)
    for number in range(20):
        old.get_stored([prefix + b"%d" % number])
    assert old.good_copies([1]) == [1]


def test_a_void_copy_does_not_become_good_by_copying_what_changed():
    old = make(MemoryBackend(), bytes_max=1000)
    prefix = old.key_prefix(1)
    old.copy_groups([1], 10, 1 << 20)
    for number in range(20):
        old.write_stored([(prefix + b"%d" % number, b"x" * 100)], [])
    assert old.good_copies([1]) == []
    old.copy_changes([1])
    assert old.good_copies([1]) == []
