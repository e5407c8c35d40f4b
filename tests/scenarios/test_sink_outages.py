"""What a sink writes to goes away: nothing is lost, nothing goes to the dead letters, and whoever looks is told."""

import contextlib
import sqlite3

import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back

pytestmark = pytest.mark.scenario

JOB = "flow_sqlite_sink"
EVENTS = 20_000
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.restart_attempts": 4,
    "controlPlane.restart_delay_ms": 50,
    "controlPlane.restart_delay_ms_max": 400,
}
#: Only the last checkpoint is made.
ONLY_LAST = SETTINGS | {"controlPlane.checkpoint_interval_ms": 3_600_000}


def delivered(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return sorted(row[0] for row in connection.execute("SELECT id FROM delivered"))


def letters(cluster):
    return [
        line
        for path in (cluster.directory / "dead_letters").rglob("*")
        if path.is_file()
        for line in path.open()
    ]


def ended(cluster):
    return cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")


@pytest.mark.parametrize("by_key", [True, False])
def test_a_database_that_is_away_for_some_seconds_holds_the_job_back(
    make_cluster, tmp_path, write_events, release, by_key
):
    """By key, ``process`` raises; with transactions a commit or a prepare does."""
    events, database = write_events(tmp_path / "events.jsonl", EVENTS), tmp_path / "rows.db"
    cluster = make_cluster(settings=SETTINGS, task_managers=1)
    # Rows for a database that is away.
    keep_back(release, 0.5)
    parameters = {"input": events, "output": database, "rate": 4_000, "release": release, "by_key": by_key}
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")
    with contextlib.closing(sqlite3.connect(database, 30, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        keep_back(release, 0)
        # Outages are not counted as attempts.
        attempts = SETTINGS["controlPlane.restart_attempts"]
        status = cluster.wait_for(lambda status: status["restarts"] > attempts, "more restarts than attempts")
        other.execute("ROLLBACK")
    assert "database is locked" in status["restart_cause"]
    release.touch()
    status = ended(cluster)
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    assert delivered(database) == list(range(EVENTS))
    assert letters(cluster) == []
    log = cluster.processes["control_plane"].log_path.read_text()
    assert "outage, the job is held back: restart" in log
    assert "step 'out', subtask 0 failed: OperationalError: database is locked" in log


@pytest.mark.parametrize("settings", [SETTINGS, ONLY_LAST])
def test_a_commit_that_raises_is_tried_again(make_cluster, tmp_path, write_events, release, settings):
    """In the middle of the job the next deployment delivers; at its end the sink is asked again."""
    events, database = write_events(tmp_path / "events.jsonl", EVENTS), tmp_path / "rows.db"
    (tmp_path / "refusals").write_text("3")
    cluster = make_cluster(settings=settings, task_managers=1)
    hold = {} if settings is ONLY_LAST else {"rate": EVENTS / 2, "release": release}
    parameters = {"input": events, "output": database, "refusals": tmp_path / "refusals", **hold}
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    if hold:
        cluster.wait_for(lambda status: status["restarts"] == 3, "three restarts")
        release.touch()
    status = ended(cluster)
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    assert status["restarts"] == (0 if settings is ONLY_LAST else 3)
    assert delivered(database) == list(range(EVENTS))
    log = cluster.processes["control_plane"].log_path.read_text()
    assert log.count("outage") == 3
    assert log.count("the database takes no commits") >= 3


def test_a_last_commit_that_never_succeeds_fails_the_job_and_another_start_delivers(
    make_cluster, tmp_path, write_events
):
    events, database = write_events(tmp_path / "events.jsonl", EVENTS), tmp_path / "rows.db"
    refusals = tmp_path / "refusals"
    refusals.write_text("1000")
    cluster = make_cluster(settings=ONLY_LAST, task_managers=1)
    parameters = {"input": events, "output": database, "refusals": refusals}
    cluster.start_control_plane(JOB, parameters)
    cluster.start_task_manager("first")
    assert cluster.wait_ended() == {"control_plane": 1, "first": 0}
    log = cluster.processes["control_plane"].log_path.read_text()
    [error] = [line for line in log.splitlines() if " ERROR " in line]
    assert "step 'out' failed: RuntimeError: the database takes no commits" in error
    assert "given up after 5 attempts; start the job again to deliver it" in error
    assert delivered(database) == []
    refusals.write_text("0")
    cluster.start_control_plane(JOB, parameters)
    cluster.start_task_manager("first")
    assert cluster.wait_ended() == {"control_plane": 0, "first": 0}
    assert delivered(database) == list(range(EVENTS))
