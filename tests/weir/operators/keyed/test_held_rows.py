"""Rows that wait: in order, over restarts and with key groups that come and go; and the bytes that they are kept in."""

import random

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import StateMismatchError
from weir.keys.hashing import key_groups
from weir.operators.keyed.held_rows import HeldRows, block_of, read_block
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.held import HeldTable

GROUPS = 8
# A block of ROWS.
GOLDEN = (
    "01ffffffff780000001000000000000a000c000600050008000a000000000104000c00000008000800000004000800000004"
    "0000000100000014000000100014000800060007000c00000010001000000000000102100000001c00000004000000000000"
    "00010000006e00000008000c0008000700080000000000000140000000ffffffff8800000014000000000000000c00160006"
    "00050008000c000c0000000003040018000000100000000000000000000a0018000c00040008000a0000003c000000100000"
    "0002000000000000000000000002000000000000000000000000000000000000000000000000000000100000000000000000"
    "000000010000000200000000000000000000000000000001000000000000000200000000000000ffffffff00000000"
)
ROWS = pa.record_batch({"n": pa.array([1, 2], pa.int64())})


def held(store, groups):
    table = HeldTable(store, 3, 1 << 20, groups, 1 << 20)
    return table, HeldRows(table, GROUPS)


def rows(numbers):
    hashes = np.array([number % 23 * 802_375_981_733_421_137 for number in numbers], dtype=np.uint64)
    return pa.record_batch({"n": pa.array(numbers), "_key_hash": pa.array(hashes)})


def groups_of(batch):
    return key_groups(batch["_key_hash"].to_numpy(), GROUPS).tolist()


def test_golden_bytes():
    block = block_of(ROWS)
    assert block[:1] == b"\x01"
    assert read_block(block) == [ROWS]
    # As pyarrow 26.0.1 wrote it.
    kept = bytes.fromhex(GOLDEN)
    assert read_block(kept) == [ROWS]
    for damaged, told in (
        (b"\x02" + kept[1:], "blocks of version 02"),
        (kept[:90], "cannot be read"),
        (b"", "version none"),
    ):
        with pytest.raises(StateMismatchError, match=told):
            read_block(damaged)


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_a_key_stay_in_order_whoever_holds_them(seed):
    rng, store, given, number = random.Random(seed), MemoryBackend(), [], 0
    one, other = held(store, range(4)), held(store, range(4, GROUPS))
    owned = [set(range(4)), set(range(4, GROUPS))]
    for _ in range(30):
        numbers = list(range(number, number := number + rng.randint(1, 9)))
        given += numbers
        batch = rows(numbers)
        for index, (_, waiting) in enumerate((one, other)):
            own = batch.filter(pa.array([group in owned[index] for group in groups_of(batch)]))
            if own.num_rows:
                waiting.put(own, np.array(own["n"]) if seed % 2 else None)
        what = rng.random()
        if what < 0.2:
            # Some groups get another owner.
            moved = {group for group in owned[0] if rng.random() < 0.5}
            one[0].release_groups(moved)
            other[0].adopt_groups(moved)
            owned = [owned[0] - moved, owned[1] | moved]
            one, other, owned = other, one, owned[::-1]
        elif what < 0.4:
            # Both begin again from what the store has.
            for table, _ in (one, other):
                table.flush()
            one, other = held(store, owned[0]), held(store, owned[1])
    found = []
    for index, (_, waiting) in enumerate((one, other)):
        while (batch := waiting.take(rng.choice([None, 1, 5]))) is not None:
            found.append(batch)
            if rng.random() < 0.3:
                # A barrier passes, and a restart begins with what is left.
                (one, other)[index][0].flush()
                if rng.random() < 0.5:
                    table, waiting = held(store, owned[index])
                    one, other = ((table, waiting), other) if index == 0 else (one, (table, waiting))
    taken = [n for batch in found for n in batch["n"].to_pylist()]
    assert sorted(taken) == given
    for key in range(23):
        own = [n for n in taken if n % 23 == key]
        assert own == sorted(own)
    assert not one[1]
    assert not other[1]
    for table, _ in (one, other):
        table.flush()
    assert list(store.scan_prefix(b"")) == [], "nothing is left in the store"
