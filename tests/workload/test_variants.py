"""The table and the picture of a series in which a setting varies."""

import csv

import pytest

from workload.variants import PICTURE_NAME, TABLE_NAME, draw_medians, medians

pytestmark = pytest.mark.spark


def test_variants_are_columns_and_rounds_their_median(spark, tmp_path):
    names = ["series", "position", "variant", "store", "commands_per_second", "us_per_read", "stall_s"]
    rows = [("compaction", 1, "universal", "rocksdb", n, 1.5, 0) for n in (100, 5000, 200)]
    rows += [("compaction", 0, "level", "rocksdb", n, 2.5, 0) for n in (9, 10, 8)]
    figures = tmp_path / "variants.csv"
    with figures.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    assert draw_medians(medians(spark, figures), tmp_path) == [tmp_path / TABLE_NAME, tmp_path / PICTURE_NAME]
    assert (tmp_path / TABLE_NAME).read_text().splitlines() == [
        "| | level | universal |",
        "| --- | ---: | ---: |",
        "| commands_per_second | 9 | 200 |",
        "| us_per_read | 2.5 | 1.5 |",
        "| stall_s | 0 | 0 |",
    ]
    assert (tmp_path / PICTURE_NAME).read_bytes().startswith(b"\x89PNG")
