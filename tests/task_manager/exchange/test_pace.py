"""How many waiting rows are taken together, and how long small batches are left to gather."""

from __future__ import annotations

import pytest

from task_manager.exchange.pace import Pace


def test_a_subtask_with_small_batches_rests_in_proportion_to_what_they_cost():
    pace = Pace(32_768, rest_ms_max=10.0)
    pace.processed(1, began_s=5.0, elapsed_s=0.001)
    assert abs(pace.next_s - 5.003) < 1e-9
    pace.processed(1, began_s=6.0, elapsed_s=0.008)
    assert abs(pace.next_s - 6.010) < 1e-9


def test_a_flood_does_not_rest():
    pace = Pace(32_768, rest_ms_max=10.0)
    for _ in range(20):
        pace.processed(pace.rows_max, began_s=5.0, elapsed_s=0.001)
    assert (pace.rows_max, pace.next_s) == (32_768, 0.0)


def test_fewer_rows_are_taken_together_when_they_take_long_but_never_few():
    """A batch of one row may take long on a busy machine: taking rows one by one would make it worse."""
    pace = Pace(32_768, rest_ms_max=10.0)
    for _ in range(20):
        pace.processed(pace.rows_max, began_s=5.0, elapsed_s=0.001)
    pace.processed(pace.rows_max, began_s=6.0, elapsed_s=0.1)
    assert pace.rows_max == 3_276
    pace.processed(1, began_s=7.0, elapsed_s=0.1)
    assert pace.rows_max == 256


def test_the_busy_share_follows_the_last_tenth_of_a_second():
    pace = Pace(32_768, rest_ms_max=10.0)
    for step in range(100):
        pace.processed(1, began_s=100 + step * 0.01, elapsed_s=0.001)
    assert 0.08 < pace.busy_share < 0.12
    for step in range(100):
        pace.processed(1, began_s=101 + step * 0.01, elapsed_s=0.002, waited_s=0.008)
    assert pace.busy_share > 0.99


def test_of_waiting_for_a_store_only_a_part_is_busy():
    """Rows share it: with as few in flight as go through in a tenth of a second each batch would have a row."""
    pace = Pace(32_768, rest_ms_max=10.0)
    for step in range(100):
        pace.processed(1_000, began_s=100 + step * 0.1, elapsed_s=0.1, stored_s=0.1)
    assert 0.09 < pace.busy_share < 0.11
    assert pace.rows_max >= 1_000
    for step in range(100):
        pace.processed(1_000, began_s=120 + step * 0.1, elapsed_s=0.1)
    assert pace.busy_share > 0.99


def test_a_small_batch_waits_a_moment_for_others_as_long_as_they_come():
    pace = Pace(32_768, 10.0)
    at_s = 0.0
    for _ in range(100):
        at_s += 0.003
        pace.processed(15, at_s, 0.0002)
    assert 0 < pace.window_s(at_s + 0.003) < 0.001
    assert pace.window_s(at_s + 1.0) == 0.0, "batches that are far apart cost little"
    for _ in range(50):
        pace.gathered(1)
    windows = [pace.window_s(at_s) > 0 for _ in range(330)]
    assert sum(windows) == 10, "tried again now and then"
    for _ in range(50):
        pace.gathered(2)
    assert pace.window_s(at_s) > 0


def rounds(pace, count, *, period_s=0.003, rows=12, began_s=100.0, whole=True):
    """So many batches, one every ``period_s``; returns how long each round was waited for, just after one."""
    waits = []
    for step in range(count):
        at_s = began_s + step * period_s
        pace.processed(rows, began_s=at_s, elapsed_s=0.0005)
        waits.append(pace.round_s(at_s + 0.001))
        if not waits[-1]:
            # A look.
            pace.gathered(2 if whole else 1)
    return waits


def test_a_round_is_waited_for_until_all_of_it_should_have_come():
    waits = rounds(Pace(32_768, rest_ms_max=10.0), 200)[100:]
    assert 0 < waits.count(0.0) <= 8
    assert all(0.0024 < wait_s < 0.0028 for wait_s in waits if wait_s)


def test_torn_rounds_do_not_make_the_next_one_seem_overdue():
    pace = Pace(32_768, rest_ms_max=10.0)
    rounds(pace, 200, period_s=0.01)
    waits = []
    for step in range(100):
        at_s = 102.0 + step * 0.01
        pace.processed(4, began_s=at_s, elapsed_s=0.0002)
        if step % 3 == 0:
            pace.processed(4, began_s=at_s + 0.001, elapsed_s=0.0002)
        waits.append(pace.round_s(at_s + 0.002))
    assert waits.count(0.0) <= 8
    # All of it may come a tenth of the period late.
    assert all(0.0085 < wait_s < 0.0095 for wait_s in waits if wait_s)


def test_a_row_waits_longer_for_others_where_rounds_are_far_apart():
    often, rarely = Pace(32_768, rest_ms_max=10.0), Pace(32_768, rest_ms_max=10.0)
    rounds(often, 200)
    rounds(rarely, 200, period_s=0.0125)
    assert (often.has_long_rounds, often.late_s) == (False, 0.0006)
    assert rarely.has_long_rounds
    assert rarely.late_s == pytest.approx(0.00125, rel=0.05)
    # And less often it is looked who comes first.
    assert rounds(often, 64, began_s=100.6)[-64:].count(0.0) == 4
    assert rounds(rarely, 64, period_s=0.0125, began_s=102.5)[-64:].count(0.0) == 2


def test_no_round_is_waited_for_where_batches_are_rare_large_or_alone():
    pace = Pace(32_768, rest_ms_max=10.0)
    assert rounds(pace, 200, period_s=0.036)[-100:] == [0.0] * 100
    assert rounds(Pace(32_768, rest_ms_max=10.0), 200, rows=5000)[-100:] == [0.0] * 100
    pace = Pace(32_768, rest_ms_max=10.0)
    assert any(rounds(pace, 200)[-100:])
    assert rounds(pace, 200, began_s=200.0, whole=False)[-100:] == [0.0] * 100
