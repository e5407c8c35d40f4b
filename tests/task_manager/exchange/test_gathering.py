"""Rows gather longer while the process is busy with small batches, and not where it has time or batches are large."""

from __future__ import annotations

import pytest

from task_manager.exchange.pace import Gathering, Pace


class Process:
    """A process that has used ``cpu_s`` of processor time when ``now_s`` have passed."""

    def __init__(self, subtasks: int = 10) -> None:
        self.now_s = self.cpu_s = 0.0
        self.gathering = Gathering(lambda: self.now_s, lambda: self.cpu_s)
        self.paces = [Pace(32_768, 10.0, self.gathering) for _ in range(subtasks)]

    def run(self, seconds: float, cores: float, rows_per_s: float = 100) -> float:
        """How long batches of so many rows a second wait in the end."""
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            self.cpu_s += 0.1 * cores
            waited_s = self.gathering.wait_s(rows_per_s)
        return waited_s


def test_a_trickle_waits_where_the_process_is_busy():
    assert Process().run(10, 0.04) == 0
    assert Process().run(10, 0.5) > 0
    assert Process().run(10, 0.9, rows_per_s=5_000) == 0


def test_many_rows_travel_in_waves_where_they_keep_the_process_busy():
    process = Process()
    process.run(60, 0.1, rows_per_s=5_000)
    assert process.gathering.marked_turn_us(5_000) == 0
    assert process.gathering.marked_wave_s(50, 5_000) == 0
    process.run(60, 0.9, rows_per_s=5_000)
    assert process.gathering.marked_turn_us(5_000) == 50_000
    assert process.gathering.marked_wave_s(50, 5_000) == 0.05
    # Moments are as far apart as batches are small then.
    assert process.gathering.marked_turn_us(30_000) == 12_500
    assert process.gathering.marked_turn_us(500_000) == 0
    assert process.gathering.marked_wave_s(50, 500_000) == 0.00625
    assert process.gathering.marked_wave_s(600, 500_000) == 0


def test_waves_come_nearer_only_where_the_process_has_time_for_twice_as_many():
    process = Process()
    process.run(60, 0.9, rows_per_s=5_000)
    process.run(60, 0.06, rows_per_s=5_000)
    assert process.gathering.marked_turn_us(5_000) == 50_000
    turns_us = []
    for _ in range(20):
        process.run(0.1, 0.04, rows_per_s=5_000)
        turns_us.append(process.gathering.marked_turn_us(5_000))
    assert sorted(set(turns_us)) == [0, 6_250, 12_500, 25_000, 50_000]


def test_rows_of_a_busy_job_wait_less_where_there_are_few_stages():
    turns_us = []
    for subtasks in (2, 3, 5, 20):
        process = Process(subtasks)
        process.run(60, 0.9, rows_per_s=5_000)
        turns_us.append(process.gathering.marked_turn_us(5_000))
    assert turns_us == [25_000, 25_000, 25_000, 50_000]


def test_sources_of_many_rows_make_a_watermark_at_moments_that_all_processes_share():
    process = Process()
    process.run(60, 0.9, rows_per_s=5_000)
    pace = process.paces[0]
    for step in range(400):
        pace.processed(25, began_s=step * 0.005, elapsed_s=0.0001)
    assert pace.turn_s(7.0, 1_000_030_000) == pytest.approx(7.02)
    assert (pace.has_turns, pace.marks_turns, pace.has_marked_waves) == (True, True, True)
    assert [pace.take_turn(now_s) for now_s in (7.01, 7.021, 7.022)] == [False, True, False]


def test_sources_of_a_trickle_read_at_moments_that_all_processes_share():
    process = Process()
    assert process.gathering.turn_us(100) == 0
    process.run(60, 0.5)
    assert process.gathering.turn_us(100) == 200_000
    assert process.gathering.turn_us(5_000) == 0
    turns_us = {process.gathering.turn_us(100) for _ in range(40) if process.run(0.2, 0.01) >= 0}
    # Each period has the moments of all longer ones.
    assert turns_us == {100_000, 50_000, 25_000, 0}
    pace = process.paces[0]
    process.run(60, 0.5)
    assert pace.turn_s(7.0, 1_000_150_000) == pytest.approx(7.05)


def test_a_subtask_waits_less_for_the_rest_of_waves_that_do_not_become_whole():
    process = Process()
    assert process.paces[0].wave_s == 0
    process.run(60, 0.5)
    pace = process.paces[0]
    assert pace.wave_s == 0.05
    for _ in range(5):
        pace.saw_wave(whole=False)
    assert pace.wave_s == 0.012
    pace.saw_wave(whole=True)
    assert pace.wave_s == 0.05


def test_the_wait_is_bounded_and_ends_when_the_process_has_time():
    process = Process()
    assert process.run(60, 1.0) == 0.1
    assert process.run(1, 0.04) < 0.1
    assert process.run(20, 0.04) == 0


def test_a_subtask_with_tiny_batches_waits_so_long_and_one_with_large_ones_does_not():
    process = Process()
    process.run(60, 1.0)
    pace = Pace(32_768, 10.0, process.gathering)
    for step in range(200):
        pace.processed(1, began_s=5.0 + step * 0.02, elapsed_s=0.0001)
    assert pace.next_s == pytest.approx(5.0 + 199 * 0.02 + 0.1)
    for step in range(300):
        pace.processed(2_000, began_s=10.0 + step * 0.02, elapsed_s=0.001)
    assert pace.next_s == 0.0


def test_a_row_of_a_job_of_few_stages_waits_for_no_others():
    assert Process(subtasks=2).run(60, 0.5) == 0
    assert 0 < Process(subtasks=5).run(60, 0.5) < 0.1
    process = Process()
    process.run(60, 0.5)
    del process.paces[2:]
    assert process.run(1, 0.5) == 0
