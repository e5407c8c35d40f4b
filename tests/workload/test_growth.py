"""The table and the picture of a series in which the store grows."""

import csv

import pytest

from workload.growth import PICTURE_NAME, TABLE_NAME, draw_medians, medians

pytestmark = pytest.mark.spark


def test_sizes_are_rows_and_repetitions_their_median(spark, tmp_path):
    names = [
        "size_bytes",
        "store",
        "commands_per_second",
        "start_latency_ms_mean",
        "pause_ms_max",
        "restore_ms",
    ]
    rows = [(1 << 20, "rocksdb", n, 1.5, 2, 3) for n in (100, 5000, 200)] + [(0, "rocksdb", 9, 0.5, 1, 0)]
    figures = tmp_path / "growth.csv"
    with figures.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    assert draw_medians(medians(spark, figures), tmp_path) == [tmp_path / TABLE_NAME, tmp_path / PICTURE_NAME]
    lines = (tmp_path / TABLE_NAME).read_text().splitlines()
    assert (
        lines[0] == "| payloads | commands_per_second | start_latency_ms_mean | pause_ms_max | restore_ms |"
    )
    assert lines[2:] == ["| 0 MiB | 9 | 0.5 | 1 | 0 |", "| 1 MiB | 200 | 1.5 | 2 | 3 |"]
    assert (tmp_path / PICTURE_NAME).read_bytes().startswith(b"\x89PNG")
