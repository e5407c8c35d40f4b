"""Rows that a join holds in memory: who matches, what is let go, and what reaches a store."""

import numpy as np
import pytest

from tests.weir.operators.joins.join_jobs import TwoSubtasks
from weir import keys as weir_keys
from weir.operators.joins.partners import merged
from weir.operators.joins.recent_rows import HeldRows, Pace, RecentRows
from weir.testing.manual_clock import ManualClock


def held(keys, times, lower=None, until=None):
    """Rows of these keys (texts), whose columns are their numbers as one byte."""
    column = weir_keys.KeyColumn.from_list([key.encode() for key in keys])
    numbers = np.arange(len(keys), dtype=np.uint8)
    times = np.array(times, dtype=np.int64)
    lower = times if lower is None else np.array(lower, dtype=np.int64)
    until = times if until is None else np.array(until, dtype=np.int64)
    hashes = weir_keys.hash_keys(column)
    return HeldRows(hashes, column, times, lower, until, numbers, np.arange(len(keys) + 1))


def pairs(recent, new, *, is_point=True, pairs_max=100):
    found = []
    for new_rows, rows in recent.match(1, new, is_point=is_point, pairs_max=pairs_max):
        assert 0 < len(rows) <= pairs_max
        found += zip(new_rows.tolist(), rows.tolist(), strict=True)
    return sorted(found)


@pytest.mark.parametrize("pairs_max", [1, 2, 1000])
@pytest.mark.parametrize("is_point", [True, False])
def test_rows_of_a_key_match_within_their_intervals(is_point, pairs_max):
    random = np.random.default_rng(5)
    kept_keys, new_keys = (random.choice(["", "a", "b", "ab", "ba" * 9], size) for size in (40, 30))
    kept_times, new_times = random.integers(0, 30, 40), random.integers(0, 30, 30)
    recent = RecentRows()
    for start in range(0, 40, 13):
        part = slice(start, start + 13)
        recent.hold(0, held(kept_keys[part], kept_times[part], kept_times[part] - 4, kept_times[part] + 4))
    new = held(new_keys, new_times, new_times - 4, new_times + 4)
    expected = sorted(
        (new_row, row)
        for new_row in range(30)
        for row in range(40)
        if new_keys[new_row] == kept_keys[row] and abs(new_times[new_row] - kept_times[row]) <= 4
    )
    assert pairs(recent, new, is_point=is_point, pairs_max=pairs_max) == expected
    assert len(expected) > 20


def test_complete_rows_go_and_the_others_are_still_found():
    recent = RecentRows()
    recent.hold(0, held("abcdef", range(6)))
    recent.drop(1)
    # Less than half: a little later.
    assert len(recent.rows(0)) == 6
    recent.drop(4)
    assert recent.rows(0).times.tolist() == [4, 5]
    assert recent.rows(0).data.tolist() == [4, 5]
    recent.hold(0, held("g", [6]))
    assert pairs(recent, held("efga", [4, 5, 6, 0])) == [(0, 0), (1, 1), (2, 2)]
    taken = recent.take(0, 5)
    assert (taken.times.tolist(), taken.keys.to_list()) == ([5, 6], [b"f", b"g"])
    assert recent.rows(0) is None
    recent.hold(0, held("a", [9]))
    assert pairs(recent, held("fa", [5, 9])) == [(1, 0)]
    recent.drop(10)
    assert recent.take(0, 10) is None


def test_there_is_a_bound(monkeypatch):
    recent = RecentRows()
    monkeypatch.setattr("weir.operators.joins.recent_rows.ROWS_MAX", 4)
    recent.hold(0, held("abc", range(3)))
    assert (recent.room(0), recent.room(1)) == (1, 4)
    monkeypatch.setattr("weir.operators.joins.recent_rows.BYTES_MAX", 2)
    assert recent.room(0) == 0


def test_the_pace_is_that_of_the_last_moments():
    clock = ManualClock()
    pace = Pace(clock)
    for advance_ms, watermark_ms, soon_ms in (
        (0, -(2**63), 0),
        (100, 1_000, 0),
        (20, 2_000, 0),
        (80, 11_000, 50_000),
        (1_000, 11_100, 50),
        (100, 2**63 - 1, 50),
    ):
        clock.advance_ms(advance_ms)
        pace.note(watermark_ms)
        assert pace.soon_ms == soon_ms


def test_rows_that_are_complete_soon_do_not_reach_the_store():
    job = TwoSubtasks(pace=100, within=(0, 5))
    for time in range(10, 100, 10):
        job.take(0, [(key, time, None, time, time) for key in range(4)])
        job.take(1, [(key, "r", time + 3) for key in range(2)])
        for side in range(2):
            job.watermark(side, time + 9)
    # The pace is known from the second watermark on.
    assert job.rows[-1][0] in (0, 1)
    for tables in job.tables:
        tables.flush()
    assert job.kept_entries() == []
    job.take(0, [(key, 100, None, 0, 100) for key in range(4)])
    for group in range(4):
        job.hand_over(group)
    assert len(job.kept_entries()) == 4
    job.take(1, [(key, "r", 101) for key in range(4)])
    assert len(job.finish()) == 9 * 2 + 4
    assert job.kept_entries() == []


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


def test_pairs_with_rows_in_the_store_and_in_memory_leave_in_the_order_in_which_rows_came():
    job = TwoSubtasks(pace=100, batch_size=100, within=(0, 1_000))
    for watermark in (10, 20, 40):
        for side in range(2):
            job.watermark(side, watermark)
    job.take(0, [(1, 0, None, 0, 40), (2, 1, None, 0, 40)])
    # Those are stored that stay for a second; a right row is complete at its own time.
    job.take(1, [(1, "soon", 45), (3, "soon", 60)])
    job.take(0, [(1, 2, None, 0, 44), (3, 3, None, 0, 50)])
    job.take(1, [(key, f"r{number}", 61) for number, key in enumerate((3, 1, 3, 2, 1))])
    by_key = {key: [row[4] for row in job.rows if row[0] == key] for key in (1, 2, 3)}
    assert by_key == {1: ["soon", "soon", "r1", "r1", "r4", "r4"], 2: ["r3"], 3: ["soon", "r0", "r2"]}
