"""Benchmarks make their inputs without Spark; their lines must be the ones that workgen.py writes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.events_file import format_lines
from workload.parameters import WorkloadParameters
from workload.rows import json_lines


@pytest.mark.spark
def test_benchmarks_write_the_lines_of_workgen(spark):
    ids, keys = np.array([1, 7, 100]), np.array([1, 123, 100_000])
    events = spark.createDataFrame(
        [(int(number), f"server-{key}") for number, key in zip(ids, keys, strict=True)],
        "id long, server_name string",
    )
    lines = [row.value for row in json_lines(events, WorkloadParameters(events=3)).collect()]
    assert format_lines(ids, keys).to_list() == lines
