"""What a subtask has not written down yet is laid over its store, whatever was written and is being written."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import weir
from task_manager.queries import state_copies
from task_manager.queries.live_ranges import LiveRange
from task_manager.queries.live_reading import LiveReading
from task_manager.queries.state_copies import copy_part
from tests.weir.state.retained_steps import Step
from weir.keys import hashing as weir_keys
from weir.protocol.queries import QueryError
from weir.state import layout
from weir.state.packed import PackedValues
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.cells.cell_table import CellTable
from weir.state.tables.values.packed_table import PackedTable
from weir.state.tables.values.value_table import ValueTable
from weir.types import SubtaskId

GROUPS, STATE = 4, 7


class World:
    def __init__(self, kind):
        self.backend, self.owned = MemoryBackend(), {0: 5, 1: 5, 3: 6}
        self.backend.ownership = SimpleNamespace(epoch=self.owned.get)
        self.table = {
            "cells": lambda: CellTable(self.backend, STATE, 1, 1 << 20, GROUPS),
            "values": lambda: ValueTable(self.backend, STATE, 1 << 20),
            "packed": lambda: PackedTable(self.backend, STATE, 1 << 20, GROUPS),
        }[kind]()
        self.running = SimpleNamespace(
            group_state=SimpleNamespace(backend=SimpleNamespace(ownership=self.backend.ownership)),
            store=self.backend,
            chain=SimpleNamespace(tables=[self.table]),
            subtask=SimpleNamespace(subtask=SubtaskId(1, 2), progress=SimpleNamespace(watermark_ms=50)),
        )

    def put(self, names, value):
        """Set keys whose group is owned; returns them as the store has them."""
        column = weir_keys.KeyColumn.from_list([name.encode() for name in names])
        hashes = weir_keys.hash_keys(column)
        groups = weir_keys.key_groups(hashes, GROUPS).tolist()
        pairs = [
            (layout.key_prefix(group, STATE) + name.encode(), name)
            for group, name in zip(groups, names, strict=True)
        ]
        if isinstance(self.table, ValueTable):
            self.table.write_stored([(key, str(value).encode()) for key, _ in pairs], [])
        elif isinstance(self.table, PackedTable):
            values = PackedValues.from_list([str(value).encode()] * len(names))
            self.table.write_values(hashes, column, np.arange(len(names)), values)
        else:
            for _, _, slots in self.table.pieces(hashes, column.data, column.offsets, changes=True):
                self.table.cells[slots], self.table.presence[slots] = value, 1
        return {key for key, _ in pairs if key[1] in self.owned}

    def delete(self, key):
        if isinstance(self.table, ValueTable):
            self.table.write_stored([], [key])
            return
        column = weir_keys.KeyColumn.from_list([key[layout.NO_NAMESPACE_HEADER_BYTES :]])
        every = np.arange(1)
        self.table.write_values(weir_keys.hash_keys(column), column, every, PackedValues.from_list([None]))

    def scan(self, part, reverse=False):
        reading = LiveRange([part])
        found = {}
        for group in reading.groups:
            prefix = layout.key_prefix(group, STATE)
            entries = list(reading.scan(prefix + b"a", prefix + b"\xff", reverse=reverse))
            assert [key for key, _ in entries] == sorted((key for key, _ in entries), reverse=reverse)
            found |= {key: self.plain(value) for key, value in entries}
        return found

    def plain(self, value):
        if isinstance(self.table, ValueTable | PackedTable):
            return int(value)
        return int(np.frombuffer(value[-8:], "<i8")[0])

    def copy(self):
        return copy_part(self.running, [STATE], GROUPS)


@pytest.mark.parametrize("kind", ["cells", "values", "packed"])
@pytest.mark.parametrize("reverse", [False, True])
def test_stored_captured_and_changed_keys(kind, reverse):
    world = World(kind)
    expected = dict.fromkeys(world.put([f"a{number}" for number in range(30)], 1), 1)
    world.table.flush()
    expected |= dict.fromkeys(world.put([f"a{number}" for number in range(5, 40)], 2), 2)
    capture = world.table.capture()
    expected |= dict.fromkeys(world.put([f"a{number}" for number in range(10, 50)], 3), 3)
    part = world.copy()
    assert world.scan(part, reverse) == expected
    assert part.to_json() == {"subtask": 2, "key_groups": 3, "watermark_ms": 50}
    # What is written meanwhile makes no key older.
    capture.write()
    world.table.flush()
    assert world.scan(part, reverse) == expected
    if kind != "cells":
        gone = next(iter(expected))
        world.delete(gone)
        del expected[gone]
    assert world.scan(world.copy(), reverse) == expected


def test_a_store_prepares_for_all_scans_that_have_begun_when_the_first_is_read():
    """Of an image in an object store the first block of each key group was a request that waited for the one before."""
    world = World("values")
    expected = world.put([f"a{number}" for number in range(30)], 1)
    world.table.flush()
    prepared = []
    world.backend.will_scan = lambda ranges, bytes_max: prepared.append((list(ranges), bytes_max))
    reading = LiveRange([world.copy()])
    ranges = [layout.state_prefix(group, STATE) for group in reading.groups]
    ranges = [(prefix, prefix + b"\xff") for prefix in ranges]
    scans = [reading.scan(*each) for each in ranges]
    assert not prepared
    assert {key for scan in scans for key, _ in scan} == expected
    assert prepared == [(ranges, 0)]
    assert list(reading.scan(*ranges[0], reverse=True)) == list(reading.scan(*ranges[0]))[::-1]
    assert prepared[1:] == [([ranges[0]], 0)]


@pytest.mark.parametrize("kind", ["cells", "values", "packed"])
def test_refusals(kind, monkeypatch):
    world = World(kind)
    world.put([f"a{number}" for number in range(30)], 1)
    reading = LiveRange([world.copy()])
    assert reading.gone_group() is None
    # It has gone, and come back since.
    world.owned[1] = 7
    assert reading.gone_group() == 1
    del world.owned[1]
    assert reading.gone_group() == 1
    monkeypatch.setattr(state_copies, "COPIED_CELLS_MAX" if kind == "cells" else "COPIED_VALUES_MAX", 3)
    with pytest.raises(QueryError, match="more than 3 keys have changed") as refused:
        world.copy()
    assert refused.value.status == 413
    world.running.chain.tables = []
    with pytest.raises(QueryError, match="has not opened its state"):
        world.copy()
    world.owned.clear()
    assert world.copy() is None


def test_retained_entries_are_told_as_of_the_watermark_whatever_rows_put():
    world = World("values")
    step = Step(world.backend, {"w": weir.WindowState(pl.Int64, retention="100ms")})
    (world.table,) = world.running.chain.tables = list(step.tables)
    for watermark_ms in (50, 4_000):
        step.times.advance(watermark_ms)
        with step.at("a", 5_000):
            assert step.handles["w"].put(1, 9_000)
        readings = LiveReading(world.table), LiveRange([copy_part(world.running, [2], 1)])
        assert [reading.cut_ms(0, 2, 100) for reading in readings] == [watermark_ms - 100] * 2
