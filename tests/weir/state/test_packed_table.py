"""A table of packed values against a plain dict: evictions, captures, deletions, and owners that take turns."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.state.packed import PackedValues
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cached_entries import CachedValues
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.opened import StateTables
from weir.state.tables.values.packed_table import PackedTable
from weir.state.tables.values.value_table import ValueTable

GROUPS = 16
EVERY = range(GROUPS)
STATE_ID = 1


def make(backend, bytes_max=64 << 20):
    return PackedTable(backend, STATE_ID, bytes_max, GROUPS)


def keys_of(names):
    keys = weir_keys.KeyColumn.from_list(names)
    return weir_keys.hash_keys(keys), keys


def state_keys(table, names):
    hashes, _ = keys_of(names)
    groups = weir_keys.key_groups(hashes, GROUPS).tolist()
    return [table.key_prefix(group) + name for group, name in zip(groups, names, strict=True)]


def read(table, names):
    return [value or None for value in table.read_values(*keys_of(names)).to_list()]


def write(table, names, values, *, after_read):
    """Write some of the keys, others of which were read together with them."""
    hashes, keys = keys_of(names)
    if after_read:
        table.read_values(hashes, keys)
    rows = np.array([row for row, name in enumerate(names) if name in values], dtype=np.int64)
    table.write_values(hashes, keys, rows, PackedValues.from_list([values[names[row]] for row in rows]))


@pytest.mark.parametrize("bytes_max", [64 << 20, 96 << 10])
@pytest.mark.parametrize("seed", range(6))
def test_it_holds_what_a_dict_holds(seed, bytes_max):
    chance = random.Random(seed)
    backend = MemoryBackend()
    table = make(backend, bytes_max)
    model, captures = {}, []
    for _ in range(150):
        action = chance.choice(["batch"] * 8 + ["flush", "part", "capture", "owner", "ask"])
        names = [b"%d" % chance.randrange(900) for _ in range(chance.randrange(1, 80))]
        names = list(dict.fromkeys(names))
        if action == "batch":
            assert read(table, names) == [model.get(name) for name in names]
            changed = {
                name: None if chance.random() < 0.2 else chance.randbytes(chance.randrange(1, 400))
                for name in names
                if chance.random() < 0.7
            }
            write(table, names, changed, after_read=chance.random() < 0.7)
            model |= changed
        elif action == "flush":
            # It would wait for the captures.
            for capture in captures:
                capture.write()
            captures = []
            table.flush()
        elif action == "part":
            table.flush_part(chance.random())
        elif action == "capture":
            for capture in captures:
                capture.write() if chance.random() < 0.7 else capture.abandon()
            captures = [capture for capture in [table.capture()] if capture is not None]
            if chance.random() < 0.5 or bytes_max < 1 << 20:
                # A small cache waits for the capture when it evicts.
                for capture in captures:
                    capture.write()
                captures = []
        elif action == "ask":
            asked = state_keys(ValueTable(backend, STATE_ID, 1 << 20), names)
            assert table.get_stored(asked) == [model.get(name) for name in names]
        else:
            for capture in captures:
                capture.write()
            captures = []
            table = change_owner(table, backend, bytes_max, chance)
    for capture in captures:
        capture.write()
    table.flush()
    names = list(model)
    kept = ValueTable(backend, STATE_ID, 1 << 20)
    assert kept.get_stored(state_keys(kept, names)) == [model[name] for name in names]
    assert sum(1 for _ in backend.scan()) == sum(value is not None for value in model.values())


def change_owner(table, backend, bytes_max, chance):
    """Hand all groups over, as a rescale does, with or without what is cached."""
    new = make(backend, bytes_max)
    if chance.random() < 0.7:
        table.flush()
        entries = table.copy_groups(EVERY, 1000, 1 << 20)
        assert isinstance(entries, CachedValues)
        assert new.take_copy(entries, EVERY)
        assert new.take_copy(table.changes_since_copy(EVERY), EVERY)
        new.keep_copies(table.good_copies(EVERY))
    table.release_groups(EVERY)
    new.adopt_groups(EVERY)
    return new


def test_it_reads_what_a_table_of_objects_has_written():
    backend = MemoryBackend()
    old = ValueTable(backend, STATE_ID, 1 << 20)
    names = [b"%d" % number for number in range(100)]
    old.write_stored([(key, b"v" + key) for key in state_keys(old, names)], [])
    old.flush()
    table = make(backend)
    assert read(table, names) == [b"v" + key for key in state_keys(old, names)]


def test_a_capture_writes_values_as_they_were_although_they_moved():
    backend = MemoryBackend()
    table = make(backend)
    write(table, [b"a", b"b"], {b"a": b"first", b"b": b"other"}, after_read=True)
    capture = table.capture()
    for number in range(300):
        write(table, [b"a"], {b"a": b"%d" % number * 1000}, after_read=True)
    capture.write()
    assert sorted(value for _, value in backend.scan()) == [b"first", b"other"]
    assert read(table, [b"a", b"b"]) == [b"299" * 1000, b"other"]
    table.flush()
    assert sorted(value for _, value in backend.scan()) == [b"299" * 1000, b"other"]


def test_memory_stays_within_its_bound_although_values_come_and_go():
    backend = MemoryBackend()
    table = make(backend, 1 << 20)
    for number in range(200):
        names = [b"%d-%d" % (number, place) for place in range(50)]
        write(table, names, dict.fromkeys(names, bytes([1]) * 400), after_read=True)
    # Values are copied when they move: what is live is half of an arena.
    assert table.stats().memory_bytes < 2 << 20
    assert read(table, [b"0-0", b"199-49"]) == [bytes([1]) * 400] * 2


def test_unwritten_values_are_told_with_those_that_are_deleted():
    backend = MemoryBackend()
    table = make(backend)
    write(table, [b"a", b"b", b"c"], {b"a": b"1", b"b": b"2", b"c": b"3"}, after_read=True)
    table.flush()
    write(table, [b"a", b"b"], {b"a": b"4", b"b": None}, after_read=True)
    a, b = state_keys(ValueTable(backend, STATE_ID, 1 << 20), [b"a", b"b"])
    assert sorted(table.unwritten_values(EVERY, 10)) == sorted([(a, b"4"), (b, None)])
    assert table.unwritten_values(EVERY, 1) is None
    groups = [group for group in EVERY if group != int.from_bytes(a[:2], "big")]
    assert a not in dict(table.unwritten_values(groups, 10))


def test_copies_of_other_tables_are_not_taken():
    backend = MemoryBackend()
    table = make(backend)
    other = PackedTable(backend, STATE_ID + 1, 1 << 20, GROUPS)
    assert not table.take_copy(other.copy_groups(EVERY, 10, 1 << 20), EVERY)
    cells = CellTable(backend, STATE_ID, 2, 1 << 20, GROUPS)
    with pytest.raises(StateError, match="came as cells"):
        table.take_copy(cells.copy_groups(EVERY, 10, 1 << 20), EVERY)


def test_an_operator_opens_it_by_name():
    tables = StateTables(MemoryBackend(), 1 << 20, GROUPS)
    opened = tables.of("step", {"rows": STATE_ID})
    assert opened.packed("rows").state_id == STATE_ID
    assert [type(table) for table in tables] == [PackedTable]
    with pytest.raises(StateError, match="has no state 'others'"):
        opened.packed("others")


@pytest.mark.parametrize("overwritten", [0.0, 0.2, 0.6])
def test_values_stay_as_they_are_where_their_array_gets_room(overwritten):
    chance = random.Random(5)
    table, model, held = make(MemoryBackend()), {}, []
    for number in range(60):
        names = [b"%d-%d" % (number, at) for at in range(40)]
        names += [name for name in model if chance.random() < overwritten]
        changed = {name: chance.randbytes(chance.randrange(1, 300)) for name in names}
        write(table, names, changed, after_read=chance.random() < 0.5)
        model |= changed
        held.append((table.read_values(*keys_of(names)), [changed[name] for name in names]))
    assert read(table, list(model)) == list(model.values())
    assert all(values.to_list() == wanted for values, wanted in held)
