"""Processes die while files are held, rolled and committed: each row is in the table once, and in the files once."""

import polars as pl
import pytest
from deltalake import DeltaTable

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from experiments.soak import rescale
from experiments.soak_check import write_events

pytestmark = pytest.mark.scenario

EVENTS = 60_000
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
}


def test_kill_9_of_a_task_manager_and_of_the_control_plane(make_cluster, tmp_path):
    """And the stages of the sinks are rescaled in between."""
    cluster = make_cluster(settings=SETTINGS)
    events = write_events(tmp_path / "events.jsonl", EVENTS, 300, 7)
    out = tmp_path / "out"
    parameters = {"input": events, "output": out, "release": tmp_path / "release", "rate": 3_000}
    # Rows for the time after the first death.
    keep_back(parameters["release"], 0.5)
    cluster.start_control_plane("flow_files", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)

    def commits():
        return DeltaTable(str(out / "table")).version() if (out / "table/_delta_log").is_dir() else 0

    def visible():
        return len(list((out / "files").glob("day=*/part-*.parquet")))

    cluster.wait_for(lambda _: commits() >= 3 and visible(), "commits and files")
    sinks = {node["name"]: node["stage"] for node in cluster.http("GET", "/plan")[1]["operators"]}
    rescale(cluster, sinks["table"], 3)
    rescale(cluster, sinks["files"], 1)
    cluster.processes["first"].popen.kill()
    cluster.start_task_manager("third")
    cluster.wait_for(lambda status: status["generation"] >= 2 and status["state"] == "RUNNING", "the restart")
    before = commits(), visible()
    keep_back(parameters["release"], 0)
    cluster.wait_for(lambda _: commits() > before[0] and visible() > before[1], "more commits and files")
    control_plane = cluster.processes.pop("control_plane")
    cluster.processes["second"].popen.kill()
    control_plane.popen.kill()
    control_plane.popen.wait()
    cluster.start_control_plane("flow_files", parameters, exit_when_finished=False)
    cluster.start_task_manager("fourth")
    cluster.wait_for(lambda status: status["generation"] >= 3 and status["state"] == "RUNNING", "the restart")
    (tmp_path / "release").touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    expected = pl.read_ndjson(events).select("id", "server", day=pl.col("id") % 5).sort("id")
    files = pl.read_parquet(out / "files/**/*.parquet", hive_partitioning=True)
    for found in (pl.read_delta(str(out / "table")), files):
        assert found.select("id", "server", "day").sort("id").equals(expected)
    assert [path.name for path in (out / "files").iterdir() if path.name.startswith(".")] == []
    checkpoints = cluster.http("GET", "/checkpoints")[1]
    # Files hold the rows of several checkpoints.
    assert visible() / 5 < max(item["id"] for item in checkpoints) / 2
