"""A user's count is exact on task managers, per record and per batch, where keys repeat within a batch."""

import polars as pl
import pytest

from benchmarks.events_file import events_directory
from experiments.cluster import run_job

pytestmark = pytest.mark.scenario

EVENTS, KEYS = 300_007, 5_000


def test_the_obvious_counting_job_is_exact(make_cluster, tmp_path):
    source = events_directory(EVENTS, KEYS, root=tmp_path / "events")
    lines = pl.scan_ndjson(source / "*.jsonl", schema={"server_name": pl.String}).collect()
    expected = lines.group_by("server_name").agg(n=pl.len().cast(pl.Int64)).sort("server_name")
    cluster = make_cluster(
        settings={"taskManager.operator_quota": 16, "controlPlane.checkpoint_interval_ms": 200}
    )
    status = run_job(cluster, "flow_counts", {"input": source, "output": tmp_path / "out"})
    used = {subtask["task_manager"] for stage in status["stages"] for subtask in stage["subtasks"]}
    assert len(used) == 2

    records = pl.read_parquet(tmp_path / "out" / "records" / "*.parquet")
    every = records.sort("server_name", "n")
    wanted = expected.select("server_name", n=pl.int_ranges(1, pl.col("n") + 1)).explode("n")
    assert every.equals(wanted), "each count of each key once: none lost, none twice"

    batches = pl.read_parquet(tmp_path / "out" / "batches" / "*.parquet")
    assert len(batches) == EVENTS
    assert batches.group_by("server_name").agg(pl.col("n").max()).sort("server_name").equals(expected)
