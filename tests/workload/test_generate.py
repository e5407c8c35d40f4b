from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from workload.columns import ROW, zipf_integer
from workload.directory import read_marker, staging_directory
from workload.generate import WorkloadFacts, write_workload
from workload.parameters import Distribution, FileFormat, Schema, WorkloadParameters

pytestmark = pytest.mark.spark


def make(spark: Any, target: Path, **parameters: Any) -> WorkloadFacts:
    with staging_directory(target) as staging:
        return write_workload(
            spark,
            WorkloadParameters(**parameters),
            staging,
            target,
            overwrite=False,
            console=Console(quiet=True),
        )


def lines_of(target: Path) -> list[str]:
    return b"".join(path.read_bytes() for path in sorted(target.glob("part-*"))).decode().splitlines()


def test_default_line_has_the_form_of_the_predecessor(spark, tmp_path: Path):
    facts = make(spark, tmp_path / "w", events=5_000, keys=100_000)
    lines = lines_of(tmp_path / "w")
    assert len(lines) == facts.rows == 5_000
    assert facts.size_bytes == sum(len(line) + 1 for line in lines)
    for line in lines:
        assert re.fullmatch(r'\{"id": \d+, "server_name": "server-[1-9]\d*"\}', line)
        assert line == json.dumps(json.loads(line))
    events = [json.loads(line) for line in lines]
    assert {event["id"] for event in events} == set(range(1, 101))
    keys = np.array([int(event["server_name"].removeprefix("server-")) for event in events])
    assert keys.min() >= 1
    assert keys.max() <= 100_000
    # Mean of a uniform 1..100,000 over 5,000 draws: standard error 408.
    assert abs(keys.mean() - 50_000.5) < 5 * 408
    # The bytes are a promise: benchmarks of different days compare because they read the same events.
    assert lines[:3] == [
        '{"id": 16, "server_name": "server-19764"}',
        '{"id": 47, "server_name": "server-48801"}',
        '{"id": 56, "server_name": "server-99334"}',
    ]
    marker = read_marker(tmp_path / "w")
    assert marker is not None
    assert marker["parameters"]["keys"] == 100_000
    assert marker["facts"]["rows"] == 5_000


def test_rows_and_order_are_the_same_for_any_number_of_partitions(spark, tmp_path: Path):
    common: dict[str, Any] = {
        "events": 3_001,
        "distribution": Distribution.ZIPF,
        "disorder_ms": 500,
        "payload_bytes": 200,
    }
    contents = []
    for partitions in (1, 5):
        facts = make(spark, tmp_path / str(partitions), partitions=partitions, **common)
        assert facts.part_count == partitions
        contents.append(lines_of(tmp_path / str(partitions)))
    assert contents[0] == contents[1]
    make(spark, tmp_path / "other seed", seed=43, **common)
    assert not set(lines_of(tmp_path / "other seed")) & set(contents[0])


def test_zipf_frequencies_follow_the_law(spark):
    from pyspark.sql import functions as f

    keys, events, exponents = 1_000, 200_000, (0.5, 1.0, 1.1, 2.5)
    rows = spark.range(events).select(f.col("id").alias(ROW))
    drawn = rows.select(f.posexplode(f.array(*(zipf_integer(7, "key", keys, each) for each in exponents))))
    counts = np.zeros((len(exponents), keys + 1))
    for row in drawn.groupBy("pos", "col").count().collect():
        counts[row["pos"], row["col"]] = row["count"]
    for exponent, found in zip(exponents, counts, strict=True):
        assert_zipf(found, exponent)
        assert found.sum() == events


def assert_zipf(counts: np.ndarray, exponent: float) -> None:
    """Keys are drawn as often as the law says; of each from 1 on the count stands at its place."""
    keys, events = len(counts) - 1, counts.sum()
    law = np.arange(1, keys + 1, dtype=float) ** -exponent
    expected = events * law / law.sum()
    # Chi-square over the keys with at least 10 expected events, the rest pooled.
    often = expected >= 10
    observed = np.append(counts[1:][often], counts[1:][~often].sum())
    wanted = np.append(expected[often], expected[~often].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    chi_square = float(((observed - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom), exponent


def test_event_time_disorder_and_payload(spark, tmp_path: Path):
    make(spark, tmp_path / "w", events=2_000, event_rate=500.0, disorder_ms=100, payload_bytes=300)
    events = [json.loads(line) for line in lines_of(tmp_path / "w")]
    assert list(events[0]) == ["id", "server_name", "event_time", "payload"]
    behind = np.array([1_700_000_000_000 + 2 * row - event["event_time"] for row, event in enumerate(events)])
    assert behind.min() == 0
    assert behind.max() == 100
    assert {len(event["payload"]) for event in events} == {300}
    assert len({event["payload"] for event in events}) == 2_000


def test_wikipedia_changes_parse_and_have_their_shape(spark, tmp_path: Path):
    make(spark, tmp_path / "w", events=2_000, keys=100, schema=Schema.WIKIPEDIA)
    events = [json.loads(line) for line in lines_of(tmp_path / "w")]
    kinds = Counter(event["type"] for event in events)
    assert set(kinds) == {"edit", "categorize", "log", "new"}
    assert kinds["edit"] > kinds["categorize"] > kinds["log"]
    assert len({event["title"] for event in events}) <= 100
    assert len({event["meta"]["id"] for event in events}) == 2_000
    for row, event in enumerate(events):
        assert event["id"] == 1_500_000_000 + row
        assert event["meta"]["offset"] == row
        assert event["meta"]["domain"] == event["server_name"]
        assert isinstance(event["bot"], bool)
        assert re.fullmatch(r"2023-11-14T22:13:\d\d\.\d{3}Z", event["meta"]["dt"])
        assert ("length" in event) == ("revision" in event) == (event["type"] in ("edit", "new"))


def test_parquet_holds_the_same_events(spark, tmp_path: Path):
    make(spark, tmp_path / "lines", events=1_000)
    make(spark, tmp_path / "parquet", events=1_000, file_format=FileFormat.PARQUET)
    parts = sorted((tmp_path / "parquet").glob("part-*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert rows == [json.loads(line) for line in lines_of(tmp_path / "lines")]
