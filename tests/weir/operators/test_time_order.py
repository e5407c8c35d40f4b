"""Rows that wait for their time: in its order, over restarts, with key groups that come and go, in memory and not."""

import random
import tempfile

import numpy as np
import pyarrow as pa
import pytest

from tests.effort import cases
from weir.author.operator import OperatorContext
from weir.errors import StateError, StateMismatchError
from weir.keys.hashing import key_groups
from weir.operators import time_order
from weir.operators.time_order import TimeOrder
from weir.operators.time_order_blocks import read_mark
from weir.rows import row_watermarks
from weir.rows.records import watermarks_of
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.opened import StateTables

GROUPS, CHANNELS, KEYS = 8, 3, 23
END_MS = 10**15


class Owner:
    """One subtask's order, over a store."""

    def __init__(self, store, groups):
        tables = StateTables(store, 1 << 20, GROUPS, groups)
        context = OperatorContext("job", "step", 0, 0, 1, GROUPS, tables=tables.of("step", {"_in_order": 3}))
        self.groups, self.order = set(groups), TimeOrder(context)
        self.order.open()
        (self.table,) = tables

    def put(self, batch):
        groups = key_groups(batch["_key_hash"].to_numpy(), GROUPS)
        own = batch.filter(pa.array(np.isin(groups, list(self.groups))))
        if own.num_rows:
            self.order.put(own)

    def take(self, until_ms):
        found = []
        while (rows := self.order.take(until_ms, -END_MS)) is not None:
            found += rows.select(["n", "_watermark_ms"]).to_pylist()
        return found


def rows(channel, numbers, marks):
    """Each row's time is far behind its watermark's."""
    hashes = np.array([number % KEYS * 802_375_981_733_421_137 for number in numbers], dtype=np.uint64)
    columns = {
        "n": numbers,
        "channel": [channel] * len(numbers),
        "_event_time_ms": [mark + 500 for mark in marks],
        "_watermark_ms": marks,
    }
    batch = pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})
    return row_watermarks.of_channel(batch.append_column("_key_hash", pa.array(hashes)), -END_MS)[0]


@pytest.mark.parametrize("seed", range(cases(8)))
def test_rows_leave_in_the_order_of_time_whoever_holds_them(seed, monkeypatch):
    rng, store = random.Random(seed), MemoryBackend()
    monkeypatch.setattr(time_order, "_MEMORY_BYTES", rng.choice([200, 1_500, 64 << 20]))
    monkeypatch.setattr(time_order, "_RELEASED_ROWS", rng.choice([1, 5, 10**6]))
    monkeypatch.setattr(time_order, "_PARTS", rng.choice([2, 64]))
    owners = [Owner(store, range(4)), Owner(store, range(4, GROUPS))]
    number, marks, given, until_ms = 0, [0] * CHANNELS, {}, 0
    for _ in range(60):
        channel = rng.randrange(CHANNELS)
        numbers = list(range(number, number := number + rng.randint(1, 9)))
        own = []
        for each in numbers:
            # Some come behind what has left.
            marks[channel] = max(marks[channel], until_ms - 3) + rng.choice([0, 0, 1, 5])
            own.append(marks[channel])
            given[each] = channel, marks[channel]
        for owner in owners:
            owner.put(rows(channel, numbers, own))
        what = rng.random()
        if what < 0.15:
            moved = {group for group in owners[0].groups if rng.random() < 0.5}
            owners[0].table.release_groups(moved)
            owners[1].table.adopt_groups(moved)
            owners[0].groups -= moved
            owners[1].groups |= moved
            owners.reverse()
        elif what < 0.3:
            for owner in owners:
                owner.table.flush()
            owners = [Owner(store, owner.groups) for owner in owners]
        elif what < 0.4:
            owners[0].table.flush()
        elif what < 0.7:
            until_ms = max(until_ms, rng.choice([min(marks), min(marks), max(marks) - 2]))
            check(owners, given, until_ms)
    check(owners, given, END_MS)
    assert not given
    for owner in owners:
        assert not owner.order
        owner.table.flush()
    assert list(store.scan_prefix(b"")) == [], "nothing is left in the store"


def check(owners, given, until_ms):
    """All leave that are due, in order; of a channel and owner as they came."""
    due = {number for number, (_, mark) in given.items() if mark <= until_ms}
    said = set()
    for owner in owners:
        found = owner.take(until_ms)
        assert [row["_watermark_ms"] for row in found] == [given[row["n"]][1] for row in found]
        for channel in range(CHANNELS):
            for key in range(KEYS):
                own = [row["n"] for row in found if row["n"] % KEYS == key and given[row["n"]][0] == channel]
                assert own == sorted(own)
        assert [given[row["n"]][1] for row in found] == sorted(given[row["n"]][1] for row in found)
        said |= {row["n"] for row in found}
    assert said == due
    for number in due:
        del given[number]


def test_golden_bytes_of_what_has_left():
    kept = bytes.fromhex("02" + "000000000000002a" + "0000000000000007")
    assert read_mark(kept) == (42, 7)
    with pytest.raises(StateMismatchError, match="cannot be read"):
        read_mark(kept[:-1])


def test_rows_say_the_watermark_of_their_split_where_others_are_behind():
    ahead = row_watermarks.of_split(
        np.array([10, 20, 15, 30]), np.array([10, 20, 20, 30]), 2, 12, row_watermarks.RowWatermarks.SPLITS
    )
    columns = {"_event_time_ms": pa.array([10, 20, 15, 30]), "_watermark_ms": pa.array(ahead)}
    batch = pa.record_batch(columns)
    assert row_watermarks.has_rows_ahead(batch)
    found, last_ms = row_watermarks.of_channel(batch, 5)
    assert (found["_as_of_ms"].to_pylist(), last_ms) == ([8, 18, 18, 28], 8)
    # Behind another exchange, whose other inputs are at 11.
    sent, _ = row_watermarks.combined(batch, 11, 5, tells_ahead=True)
    assert row_watermarks.of_channel(sent, 5)[0]["_as_of_ms"].to_pylist() == [8, 18, 18, 28]
    left = row_watermarks.released(found, 0)
    late, as_of_ms = row_watermarks.as_of(left, watermarks_of(left))
    assert (late.tolist(), as_of_ms.tolist()) == ([False, False, True, False], [8, 18, 18, 28])


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(time_order, "_MEMORY_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
    owner = Owner(MemoryBackend(), range(GROUPS))
    with pytest.raises(StateError, match=r"step 'step': rows that wait .* to .*absent: No such file"):
        owner.put(rows(0, [1, 2, 3], [5, 6, 7]))


def typed(dtype, n, mark):
    batch = rows(0, [n], [mark])
    return batch.set_column(0, "n", batch["n"].cast(dtype))


def test_rows_of_a_narrower_type_wait_with_others_and_those_of_another_are_refused():
    for first, second in ((pa.int32(), pa.int64()), (pa.int64(), pa.int32())):
        owner = Owner(MemoryBackend(), range(GROUPS))
        owner.put(typed(first, 1, 5))
        owner.put(typed(second, 2, 4))
        taken = owner.order.take(END_MS, -END_MS)
        assert (taken["n"].type, taken["n"].to_pylist()) == (pa.int64(), [2, 1])
    owner = Owner(MemoryBackend(), range(GROUPS))
    owner.put(typed(pa.int32(), 1, 5))
    with pytest.raises(
        StateMismatchError, match=r"step 'step': of rows that waited .* column 'n' is int32, and str"
    ):
        owner.put(typed(pa.string(), 2, 4))
