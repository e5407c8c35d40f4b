"""Rows that a join holds in memory: who matches, what is let go, and what reaches a store, in which bytes."""

import numpy as np
import pytest

from tests.weir.operators.joins.join_jobs import GROUPS, TwoSubtasks
from weir.errors import StateMismatchError
from weir.keys import hashing as weir_keys
from weir.operators.joins.held_blocks import decoded_blocks
from weir.operators.joins.held_rows import HeldRows, HeldSide
from weir.operators.joins.partners import merged
from weir.operators.joins.recent_rows import RecentRows
from weir.state.stores.memory import MemoryBackend
from weir.state.tables.held import HeldTable


def rows_of(keys, times, lower=None, until=None):
    """Rows of these keys (texts), whose columns are their numbers as one byte."""
    column = weir_keys.KeyColumn.from_list([key.encode() for key in keys])
    numbers = np.arange(len(keys), dtype=np.uint8)
    times = np.array(times, dtype=np.int64)
    lower = times if lower is None else np.array(lower, dtype=np.int64)
    until = times if until is None else np.array(until, dtype=np.int64)
    hashes = weir_keys.hash_keys(column)
    return HeldRows(hashes, column, times, lower, until, numbers, np.arange(len(keys) + 1))


def recent_rows(store, groups=range(GROUPS)):
    table = HeldTable(store, 5, 1 << 16, groups, 1 << 16)
    recent = RecentRows(table, GROUPS)
    assert list(recent.take_new()) == []
    return recent, table


def pairs(recent, new, *, is_point=True, pairs_max=100):
    found = []
    for new_rows, rows in recent.match(1, new, is_point=is_point, pairs_max=pairs_max):
        assert 0 < len(rows) <= pairs_max
        found += zip(new_rows.tolist(), rows.tolist(), strict=True)
    return found


@pytest.mark.parametrize("pairs_max", [1, 2, 1000])
@pytest.mark.parametrize("is_point", [True, False])
def test_rows_of_a_key_match_within_their_intervals_in_the_order_in_which_they_came(is_point, pairs_max):
    random = np.random.default_rng(5)
    kept_keys, new_keys = (random.choice(["", "a", "b", "ab", "ba" * 9], size) for size in (40, 30))
    kept_times, new_times = random.integers(0, 30, 40), random.integers(0, 30, 30)
    recent, _ = recent_rows(MemoryBackend())
    for start in range(0, 40, 13):
        part = slice(start, start + 13)
        recent.hold(0, rows_of(kept_keys[part], kept_times[part], kept_times[part] - 4, kept_times[part] + 4))
    new = rows_of(new_keys, new_times, new_times - 4, new_times + 4)
    expected = [
        (new_row, row)
        for new_row in range(30)
        for row in range(40)
        if new_keys[new_row] == kept_keys[row] and abs(new_times[new_row] - kept_times[row]) <= 4
    ]
    assert pairs(recent, new, is_point=is_point, pairs_max=pairs_max) == expected
    assert len(expected) > 20


def test_complete_rows_go_and_the_others_are_still_found():
    side = HeldSide()
    for start in range(0, 60, 6):
        side.put(rows_of("abcdef", range(start, start + 6)))
    side.written = 50
    side.drop(20)
    # Less than half: a little later.
    assert len(side) == 60
    side.drop(45)
    rows = side.rows()
    assert rows.times.tolist() == list(range(45, 60))
    assert (
        rows.keys.to_list()
        == [b"def"[at : at + 1] for at in range(3)] + [b"a", b"b", b"c", b"d", b"e", b"f"] * 2
    )
    assert rows.data[: rows.offsets[-1]].tolist() == [time % 6 for time in range(45, 60)]
    assert side.written == 5
    side.drop(100)
    assert (len(side), side.written) == (0, 0)


def test_what_is_complete_before_a_checkpoint_is_never_written():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    recent.hold(0, rows_of("abcd", [1, 2, 30, 40]))
    recent.drop(20)
    table.flush()
    assert sum(len(decoded_blocks([value])[0]) for _, value in store.scan()) == 2
    recent.drop(41)
    table.flush()
    assert list(store.scan()) == []


def test_rows_that_are_all_complete_are_not_written_beside_others_that_stay():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    recent.hold(0, rows_of("abcd", range(4), until=[100] * 4))
    table.flush()
    recent.hold(0, rows_of("ab", [5, 6]))
    recent.drop(20)
    table.flush()
    assert sum(len(decoded_blocks([value])[0]) for _, value in store.scan()) == 4


def test_blocks_have_these_bytes():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    recent.hold(1, rows_of(["a"], [3], [2], [4]))
    table.flush()
    group = int(weir_keys.key_groups(rows_of(["a"], [3]).hashes, GROUPS)[0])
    row = "22000000 01000000 0300000000000000 0200000000000000 0400000000000000 61 00"
    key = group.to_bytes(2, "big") + bytes.fromhex("0005 01 0000000000000000")
    ((found, value),) = store.scan()
    assert (found[:4], found[-9:], value) == (key[:4], key[4:], bytes.fromhex("01" + row))
    # A small block gets what comes next.
    recent.hold(1, rows_of(["a"], [3], [2], [4]))
    table.flush()
    assert [value for _, value in store.scan()] == [bytes.fromhex("01" + row + row)]


@pytest.mark.parametrize("wrong", [b"\x02", b"\x01\x22\x00", b"\x01" + bytes(32)])
def test_other_blocks_are_refused(wrong):
    with pytest.raises(StateMismatchError, match="block of rows of a join"):
        decoded_blocks([wrong])


def test_key_groups_go_and_come_back():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    rows = rows_of("abcdefgh", range(8), until=[9] * 8)
    recent.hold(0, rows)
    table.release_groups([0])
    table.release_groups([1])
    recent.drop(5)
    own = weir_keys.key_groups(rows.hashes, GROUPS)
    assert len(pairs(recent, rows)) == np.count_nonzero(own > 1) < 8
    # Blocks of others are not touched.
    recent.drop(6)
    table.adopt_groups([0, 1])
    assert list(recent.take_new()) == []
    assert len(pairs(recent, rows)) == 8
    # Nothing is written twice.
    table.flush()
    assert sum(len(decoded_blocks([value])[0]) for _, value in store.scan()) == 8


def test_rows_without_room_are_handed_on_and_leave_their_blocks():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    recent.hold(0, rows_of("abcdefgh", range(8)))
    table.flush()
    table = HeldTable(store, 5, 1 << 16, range(GROUPS), 0)
    recent = RecentRows(table, GROUPS)
    assert not recent.has_room
    assert sorted(time for _, rows in recent.take_new() for time in rows.times.tolist()) == list(range(8))
    table.flush()
    assert list(store.scan()) == []


def large_rows(keys, times, until):
    """The same with columns of 100 bytes."""
    rows = rows_of(keys, times, until=until)
    offsets = np.arange(len(keys) + 1) * 100
    return HeldRows(
        rows.hashes, rows.keys, rows.times, rows.lower, rows.until, np.zeros(offsets[-1], np.uint8), offsets
    )


def test_where_there_is_no_room_the_side_that_has_more_moves_out_and_the_other_is_held():
    """Steps of an order that waits for an hour went to the store as well, each with a timer of its own."""
    store = MemoryBackend()
    recent, table = recent_rows(store)
    orders = [f"order-{number}" for number in range(320)]
    recent.hold(0, large_rows(orders[:200], range(200), until=[10_000] * 200))
    table.flush()
    assert recent.holds(0)
    recent.hold(0, large_rows(orders[200:], range(200, 320), until=[10_000] * 120))
    assert (recent.holds(0), recent.holds(1)) == (False, True)
    recent.hold(1, rows_of(["order-7"], [7], until=[7]))
    moved = []
    while (found := recent.move_out()) is not None:
        side, rows = found
        assert side == 0
        assert len(set(weir_keys.key_groups(rows.hashes, GROUPS).tolist())) == 1, "of one key group"
        moved += [key.decode() for key in rows.keys.to_list()]
        # What has moved out matches here no more, also when it comes to the same places again.
        new = rows_of(orders, range(320), [0] * 320, [10_000] * 320)
        assert len(pairs(recent, new)) == 320 - len(moved)
    assert sorted(moved) == sorted(orders)
    # Nothing of it is left in blocks, written before or not.
    table.flush()
    assert [int(rows.times[0]) for rows in map(only_block, store.scan())] == [7]
    recent.hold_all()
    assert not recent.holds(0)
    recent.drop(5)
    recent.hold_all()
    assert recent.holds(0)


def only_block(entry):
    return decoded_blocks([entry[1]])[0]


def test_blocks_are_read_together():
    store = MemoryBackend()
    recent, table = recent_rows(store)
    rows = rows_of([f"key-{number}" for number in range(100)], range(100))
    recent.hold(0, rows)
    table.flush()
    values = [value for _, value in store.scan()]
    together, firsts = decoded_blocks(values)
    assert len(values) > 1
    for index, value in enumerate(values):
        alone = decoded_blocks([value])[0]
        part = slice(firsts[index], firsts[index + 1])
        assert together.times[part].tolist() == alone.times.tolist()
        assert together.keys.to_list()[part] == alone.keys.to_list()
    assert firsts[-1] == len(together) == 100
    with pytest.raises(StateMismatchError, match="cut off"):
        decoded_blocks([values[0], values[1][:-1], values[0]])
    # Each has whole rows: where one ends is not the business of the next one.
    with pytest.raises(StateMismatchError, match="cut off"):
        decoded_blocks([values[0][:-1], values[0][:1] + values[0][-1:] + values[0][1:]])


def test_a_join_keeps_the_short_lived_side_in_memory_when_the_other_one_fills_it():
    job = TwoSubtasks(within=(0, 100_000), cache_bytes=1 << 14)
    for number in range(400):
        job.take(0, [(number, number, None, number, number)])
        job.take(1, [(number, "r", number)])
        for side in range(2):
            job.watermark(side, number + 1)
    names = job.node.spec.state_names
    for operator, tables in zip(job.operators, job.tables, strict=True):
        recent = operator._recent
        assert (recent.holds(0), recent.holds(1)) == (False, True)
        assert recent.rows(0) is None or (recent.rows(0).until < 0).all(), "all orders have moved out"
        timers = next(table for table in tables if table.state_id == names.index("_expiry"))
        # One for each order, and none for steps.
        assert timers.next_ms() >= 100_000
    assert len(job.finish()) == 400


def test_joins_hold_rows_and_write_none_that_are_complete():
    job = TwoSubtasks(within=(0, 5))
    for time in range(10, 100, 10):
        job.take(0, [(key, time, None, time, time) for key in range(4)])
        job.take(1, [(key, "r", time + 3) for key in range(2)])
        for side in range(2):
            job.watermark(side, time + 9)
    for tables in job.tables:
        tables.flush()
    assert job.kept_entries() == []
    assert len(job.finish()) == 9 * 2


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (50, 50)])
def test_pairs_of_both_kinds_leave_in_the_order_of_the_new_rows(sizes):
    random = np.random.default_rng(7)
    rows = [np.sort(random.integers(0, 12, size)) for size in (30, 20)]
    numbers = [np.arange(len(new_rows)) for new_rows in rows]
    parts = [
        iter([(new_rows[at : at + size], found[at : at + size]) for at in range(0, len(new_rows), size)])
        for new_rows, found, size in zip(rows, numbers, sizes, strict=True)
    ]
    found = list(merged(*parts))
    new_rows, partners = (np.concatenate(columns) for columns in zip(*found, strict=True))
    assert (np.diff(new_rows) >= 0).all()
    assert partners[partners >= 0].tolist() == numbers[0].tolist()
    assert (-1 - partners[partners < 0]).tolist() == numbers[1].tolist()
    assert np.bincount(new_rows).tolist() == np.bincount(np.concatenate(rows)).tolist()
