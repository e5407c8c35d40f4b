"""How many rows are taken at once, for steps of which each row, or each batch, takes a time."""

import pytest

from weir.operators.step_flow import PART_S, ROWS_AT_FIRST, WAITED_PART_S, PartRows


def run(parts, batches, row_s, fixed_s=0.0):
    """Returns what the batches took."""
    took = []
    for _ in range(batches):
        rows = parts.rows
        took.append(fixed_s + rows * row_s)
        parts.took(rows, took[-1])
    return took


def test_the_first_rows_of_an_unknown_step_are_few():
    assert PartRows(32768).rows == ROWS_AT_FIRST
    assert PartRows(5).rows == 5


def test_a_fast_step_soon_gets_whole_batches():
    parts = PartRows(32768)
    run(parts, 7, 1e-7)
    assert parts.rows == 32768


@pytest.mark.parametrize("row_s", [0.0005, 0.005, 0.05, 1.0, 30.0])
def test_a_slow_step_gets_what_it_does_in_a_moment(row_s):
    parts = PartRows(32768)
    took = run(parts, 20, row_s)
    assert max(took[1:]) <= max(PART_S * 1.01, row_s)
    assert parts.rows >= max(1, PART_S / row_s / 2)


def test_a_step_that_becomes_slow_gets_fewer_at_once_after_one_batch():
    parts = PartRows(32768)
    run(parts, 10, 1e-6)
    run(parts, 2, 0.01)
    assert parts.rows <= 20
    run(parts, 20, 1e-6)
    assert parts.rows == 32768


def test_batches_whose_time_is_fixed_do_not_become_smaller_and_smaller():
    """As with one read from a database for each batch, whatever is in it."""
    parts = PartRows(32768)
    run(parts, 40, 1e-5, fixed_s=0.4)
    assert parts.rows > 10_000


def test_few_rows_do_not_raise_the_number():
    parts = PartRows(32768)
    for _ in range(20):
        parts.took(1, 0.0)
    assert parts.rows == ROWS_AT_FIRST


def test_waiting_for_a_store_that_rows_share_does_not_make_batches_smaller_and_smaller():
    """Where all are of one size, nothing else tells the fixed part."""
    parts = PartRows(32768)
    for _ in range(40):
        parts.took(parts.rows, 0.3 + parts.rows * 0.001, 0.3)
    took_s = 0.3 + parts.rows * 0.001
    assert PART_S < took_s < WAITED_PART_S
    assert parts.rows > 300


def test_a_step_of_which_each_row_waits_for_a_store_gets_what_takes_a_second():
    parts = PartRows(32768)
    for _ in range(40):
        parts.took(parts.rows, parts.rows * 0.05, parts.rows * 0.05)
    assert parts.rows * 0.05 <= WAITED_PART_S * 1.01
