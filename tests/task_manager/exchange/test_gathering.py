"""Rows gather longer while the process is busy with small batches, and not where it has time or batches are large."""

from __future__ import annotations

import pytest

from task_manager.exchange.gathering import Gathering
from task_manager.exchange.pace import Pace


class Process:
    """A process that has used ``cpu_s`` of processor time when ``now_s`` have passed."""

    def __init__(self, subtasks: int = 10) -> None:
        self.now_s = self.cpu_s = 0.0
        self.gathering = Gathering(lambda: self.now_s, lambda: self.cpu_s)
        self.paces = [Pace(32_768, 10.0, self.gathering) for _ in range(subtasks)]

    def run(self, seconds: float, cores: float, rows_mean: float, rows_per_s: float = 100) -> float:
        """How long batches of so many rows wait in the end."""
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            self.cpu_s += 0.1 * cores
            waited_s = self.gathering.wait_s(rows_mean, rows_per_s)
        return waited_s


@pytest.mark.parametrize(
    ("cores", "rows_mean", "rows_per_s", "waits"),
    [
        (0.04, 1, 100, False),
        (0.5, 1, 100, True),
        (0.5, 5, 5_000, False),
        (0.9, 50, 5_000, True),
        (0.9, 600, 500_000, False),
    ],
)
def test_small_batches_wait_where_the_process_is_busy(cores, rows_mean, rows_per_s, waits):
    assert (Process().run(10, cores, rows_mean, rows_per_s) > 0) == waits


def test_what_subtasks_share_waits_only_as_long_as_all_of_them():
    process = Process()
    process.run(60, 0.9, 50, rows_per_s=5_000)
    assert process.gathering.common_s == 0.05
    for _ in range(20):
        process.run(0.1, 0.9, 600, rows_per_s=500_000)
        process.run(0.1, 0.9, 50, rows_per_s=5_000)
    assert process.gathering.common_s == 0


def test_rows_of_a_busy_job_wait_less_where_there_are_few_stages():
    waits_s = [Process(subtasks).run(60, 0.9, 50, rows_per_s=5_000) for subtasks in (2, 3, 5, 8, 20)]
    assert waits_s == pytest.approx([0.02, 0.02, 0.032, 0.05, 0.05])


def test_a_wave_does_not_wait_between_processes():
    process = Process()
    process.run(60, 0.5, 1)
    assert process.gathering.common_s == 0


def test_sources_of_a_trickle_read_at_moments_that_all_processes_share():
    process = Process()
    assert process.gathering.turn_us(100) == 0
    process.run(60, 0.5, 1)
    assert process.gathering.turn_us(100) == 200_000
    assert process.gathering.turn_us(5_000) == 0
    turns_us = {process.gathering.turn_us(100) for _ in range(40) if process.run(0.2, 0.01, 1) >= 0}
    # Each period has the moments of all longer ones.
    assert turns_us == {100_000, 50_000, 25_000, 0}
    pace = process.paces[0]
    process.run(60, 0.5, 1)
    assert pace.turn_s(7.0, 1_000_150_000) == pytest.approx(7.05)


def test_a_subtask_waits_less_for_the_rest_of_waves_that_do_not_become_whole():
    process = Process()
    assert process.paces[0].wave_s == 0
    process.run(60, 0.5, 1)
    pace = process.paces[0]
    assert pace.wave_s == 0.05
    for _ in range(5):
        pace.saw_wave(whole=False)
    assert pace.wave_s == 0.012
    pace.saw_wave(whole=True)
    assert pace.wave_s == 0.05


def test_the_wait_is_bounded_and_ends_when_the_process_has_time():
    process = Process()
    assert process.run(60, 1.0, 1) == 0.1
    assert process.run(1, 0.04, 1) < 0.1
    assert process.run(20, 0.04, 1) == 0


def test_a_subtask_with_tiny_batches_waits_so_long_and_one_with_large_ones_does_not():
    process = Process()
    process.run(60, 1.0, 1)
    pace = Pace(32_768, 10.0, process.gathering)
    for step in range(200):
        pace.processed(1, began_s=5.0 + step * 0.02, elapsed_s=0.0001)
    assert pace.next_s == pytest.approx(5.0 + 199 * 0.02 + 0.1)
    for step in range(300):
        pace.processed(2_000, began_s=10.0 + step * 0.02, elapsed_s=0.001)
    assert pace.next_s == 0.0


def test_a_row_of_a_job_of_few_stages_waits_for_no_others():
    assert Process(subtasks=2).run(60, 0.5, 1) == 0
    assert 0 < Process(subtasks=5).run(60, 0.5, 1) < 0.1
    process = Process()
    process.run(60, 0.5, 1)
    del process.paces[2:]
    assert process.run(1, 0.5, 1) == 0
