"""A job is stopped with a savepoint and started from it: every sink has every row once, and nothing in between."""

import contextlib
import json
import signal
import sqlite3
from collections import Counter

import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back

pytestmark = pytest.mark.scenario

EVENTS = 10_000
SETTINGS = {
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.restart_attempts": 5,
    # What the savepoint covers is all rows up to one, also on a slow machine: its barriers overtake none.
    "controlPlane.checkpoint_alignment_timeout_ms": 3_600_000,
}


def lines(directory):
    return [
        json.loads(line)
        for part in sorted(directory.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]


def table(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT id, server, n FROM delivered").fetchall()
    return [dict(zip(("id", "server", "n"), row, strict=True)) for row in rows]


def check(rows, ids):
    """Every id once, with the count that its server had reached."""
    assert Counter(row["id"] for row in rows) == dict.fromkeys(ids, 1)
    counts = Counter()
    for row in sorted(rows, key=lambda row: row["id"]):
        counts[row["server"]] += 1
        assert row["n"] == counts[row["server"]]


def savepoints(cluster):
    return [item for item in cluster.http("GET", "/checkpoints")[1] if item["kind"] == "savepoint"]


def test_stop_with_a_savepoint_and_start_from_it(make_cluster, tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    parameters = {
        "input": events,
        "output": tmp_path / "out",
        "table": tmp_path / "table.db",
        "release": tmp_path / "release",
        "rate": 500,
    }
    # The stop comes before the end of the rows however slow the machine is.
    keep_back(parameters["release"], 0.5)
    cluster = make_cluster(settings=SETTINGS)
    control_plane = cluster.start_control_plane("flow_stop", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")

    # A savepoint that fails: the job goes on.
    savepoint_root = cluster.directory / "savepoints"
    savepoint_root.mkdir()
    (savepoint_root / "file").touch()
    assert cluster.http("POST", f"/stop?savepoint={savepoint_root}/file/below_a_file")[0] == 202
    cluster.wait_for(lambda _: savepoints(cluster)[-1]["state"] == "FAILED", "the failure")
    failed = savepoints(cluster)[-1]
    assert failed["stops_job"]
    assert "below_a_file" in failed["cause"]
    read = cluster.status()["totals"]["events_in"]
    keep_back(parameters["release"], 0.25)
    cluster.wait_for(lambda status: status["totals"]["events_in"] > read, "rows after the failure")

    code, answer = cluster.http("POST", f"/stop?savepoint={savepoint_root}")
    assert (code, "below" in answer["error"]) == (403, True)
    (savepoint_root / "full").mkdir()
    (savepoint_root / "full" / "file").touch()
    code, answer = cluster.http("POST", f"/stop?savepoint={savepoint_root}/full")
    assert (code, "is not empty" in answer["error"]) == (409, True)

    savepoint = savepoint_root / "monday"
    code, answer = cluster.http("POST", f"/stop?savepoint={savepoint}")
    assert (code, answer["stops_job"]) == (202, True)
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("STOPPED", "")
    assert savepoints(cluster)[0]["state"] == "COMPLETE"
    delivered = lines(tmp_path / "out")
    assert 0 < len(delivered) < EVENTS
    assert status["totals"]["events_in"] == len(delivered)
    for rows in (delivered, table(tmp_path / "table.db")):
        check(rows, range(len(delivered)))
    control_plane.popen.send_signal(signal.SIGTERM)
    assert control_plane.wait() == 0
    cluster.stop()

    again = make_cluster(settings=SETTINGS)
    parameters["rate"] = 5_000
    (tmp_path / "release").touch()
    again.start_control_plane("flow_stop", parameters, arguments=["--from-savepoint", str(savepoint)])
    for name in ("first", "second"):
        again.start_task_manager(name)
    assert again.wait_ended() == {"control_plane": 0, "first": 0, "second": 0}
    check(lines(tmp_path / "out"), range(EVENTS))
    check(table(tmp_path / "table.db"), range(EVENTS))
