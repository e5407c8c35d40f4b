"""Timers on real task managers: each fires exactly once, with its key's state, through rescales and kill -9."""

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.soak import rescale
from experiments.soak_check import write_events
from tests.scenarios.flows.flow_timers import DELAY_MS, SPAN_MS

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 20_000, 1_000, 300
STAGE = 1
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 1000,
    "controlPlane.restart_attempts": 20,
}


def test_every_timer_fires_exactly_once_through_rescales_and_the_loss_of_a_task_manager(
    make_cluster, tmp_path, release
):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 9)
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": events, "output": tmp_path / "out", "rate": RATE, "release": release}
    cluster.start_control_plane("flow_timers", parameters, exit_when_finished=False)
    for name in ("first", "second", "third"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "the first timers")
    rescale(cluster, STAGE, 3)
    has_fired(cluster, 500)
    place = cluster.status()["stages"][STAGE]["subtasks"][-1]["task_manager"]
    victim = next(process for process in cluster.processes.values() if place.endswith(f":{process.port}"))
    victim.popen.kill()
    cluster.wait_for(
        lambda status: status["generation"] >= 2 and status["state"] == "RUNNING", "the restart", 60
    )
    has_fired(cluster, 500)
    rescale(cluster, STAGE, 2)
    has_fired(cluster, 500)
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 90)
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check(events, tmp_path / "out")


def has_fired(cluster, more):
    """Wait for so many further rows of timers."""
    before = cluster.status()["totals"]["events_out"]
    cluster.wait_for(lambda status: status["totals"]["events_out"] >= before + more, "further timers")


def check(events, output):
    found = pl.concat([pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size])
    expected = (
        pl.read_ndjson(events)
        .select("server", at=pl.col("id") // SPAN_MS * SPAN_MS + DELAY_MS)
        .unique()
        .sort("server", "at")
        .with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    )
    by_event = found.filter(pl.col("kind") == "event").select("server", "at", "n").sort("server", "at")
    assert by_event.equals(expected)
    by_clock = found.filter(pl.col("kind") == "clock")
    assert by_clock.height > SERVERS
    assert by_clock.select(pl.struct("server", "n").is_unique().all()).item()
    assert by_clock.sort("server", "n").select((pl.col("at").diff().over("server") >= 0).all()).item()
