"""One watermark makes much due that takes long: barriers pass in between, and a kill throws none of it away."""

import json
from collections import Counter

import pytest

pytestmark = pytest.mark.scenario

KEYS = 120
SETTINGS = {"controlPlane.restart_attempts": 3, "controlPlane.lease_timeout_ms": 5000}


def complete(cluster):
    """How many checkpoints are complete."""
    return sum(item["state"] == "COMPLETE" for item in cluster.http("GET", "/checkpoints")[1])


def write(path, rows):
    path.write_text("".join(json.dumps({"k": key, "t": time_ms}) + "\n" for key, time_ms in rows))
    return path


def delivered(output):
    parts = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


@pytest.mark.parametrize("rows_after", [1, 0])
def test_a_kill_between_timers_of_one_watermark_throws_none_away(make_cluster, tmp_path, rows_after):
    """With a row that makes all due, and at the end of the input."""
    rows = [(key, 10_000) for key in range(KEYS)] + [(KEYS, 60_000)] * rows_after
    cluster = make_cluster(SETTINGS, task_managers=1)
    parameters = {"input": write(tmp_path / "rows.jsonl", rows), "output": tmp_path / "out"}
    cluster.start_control_plane("flow_slow_timers", parameters | {"s_per_timer": 0.2})
    cluster.start_task_manager("first")
    # Less than half of the timers fire in the time for a checkpoint and the next one.
    cluster.wait_for(lambda status: status["totals"]["events_out"] >= 5, "the first timers", 40)
    before = complete(cluster)
    cluster.wait_for(lambda _: complete(cluster) >= before + 2, "checkpoints between timers", 20)
    fired = cluster.status()["totals"]["events_out"]
    assert fired < KEYS, "all have fired"
    cluster.processes["first"].popen.kill()
    cluster.start_task_manager("second")
    cluster.wait_ended()
    found = Counter((row["k"], row["at"], row["n"]) for row in delivered(tmp_path / "out"))
    assert found == Counter({(key, time_ms + 1_000, 1): 1 for key, time_ms in set(rows)})
