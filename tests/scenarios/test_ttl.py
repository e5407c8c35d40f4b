"""State with a TTL on real task managers: what has expired is never returned, and what has not is never missed."""

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak import rescale
from experiments.soak_check import write_events
from tests.scenarios.flows.flow_ttl import TTL_MS, UNKNOWN

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 10_000, 1_000, 300
STAGE = 1
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.restart_attempts": 20,
    "controlPlane.out_of_order_grace_period": 0.0,
}


def test_a_state_expires_through_rescales_and_the_loss_of_a_task_manager(make_cluster, tmp_path, release):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE, "release": release}
    cluster.start_control_plane("flow_ttl", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: status["totals"]["events_out"] > 1_000, "the first rows")
    rescale(cluster, STAGE, 2)
    has_written(cluster, 500)
    place = cluster.status()["stages"][STAGE]["subtasks"][-1]["task_manager"]
    victim = next(process for process in cluster.processes.values() if place.endswith(f":{process.port}"))
    victim.popen.kill()
    cluster.wait_for(
        lambda status: status["generation"] >= 2 and status["state"] == "RUNNING", "the restart", 60
    )
    has_written(cluster, 1_000)
    rescale(cluster, STAGE, 3)
    has_written(cluster, 1_000)
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 90)
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check(events, tmp_path / "out")


def has_written(cluster, more):
    """Wait for this many further rows."""
    before = cluster.status()["totals"]["events_out"]
    cluster.wait_for(lambda status: status["totals"]["events_out"] >= before + more, "further rows")


def check(events, output):
    parts = [pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size]
    found = pl.concat(parts).sort("server", "id")
    # What is not to expire: each row once, and a count of all of them.
    expected = pl.read_ndjson(events).select("id", "server").sort("server", "id")
    assert found.select("id", "server").equals(expected)
    numbered = found.with_columns(wanted=pl.int_range(1, pl.len() + 1).over("server"))
    assert numbered.filter(pl.col("n") != pl.col("wanted")).is_empty()
    # What the last row of the key left, at the watermark at which it left it.
    rows = found.with_columns(
        left=pl.col("found").shift(1).over("server") + 1,
        left_recent=pl.col("recent").shift(1).over("server") + 1,
        left_at=pl.col("now").shift(1).over("server"),
    ).filter(pl.col("left").is_not_null())
    assert rows.filter(pl.col("before") != pl.col("left_at")).is_empty()
    known = rows.filter((pl.col("now") != UNKNOWN) & (pl.col("before") != UNKNOWN))
    is_expired = pl.col("now") - pl.col("before") >= TTL_MS
    expired, living = known.filter(is_expired), known.filter(~is_expired)
    assert min(expired.height, living.height) > SERVERS
    assert expired.filter((pl.col("found") != 0) | (pl.col("recent") != 0)).is_empty()
    assert living.filter(pl.col("found") != pl.col("left")).is_empty()
    # Elements of a list expire one by one: the last one has not.
    assert living.filter((pl.col("recent") == 0) | (pl.col("recent") > pl.col("left_recent"))).is_empty()
    # Between a restore and the first watermark it is one or the other.
    unknown = rows.filter((pl.col("now") == UNKNOWN) | (pl.col("before") == UNKNOWN))
    assert unknown.filter((pl.col("found") != 0) & (pl.col("found") != pl.col("left"))).is_empty()
