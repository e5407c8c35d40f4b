"""One watermark makes much due that takes long: barriers pass in between, and a kill throws none of it away."""

import json
from collections import Counter

import pytest

pytestmark = pytest.mark.scenario

KEYS, S_PER_TIMER = 120, 0.2
SETTINGS = {
    "controlPlane.restart_attempts": 3,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.checkpoint_interval_ms": 500,
}


def complete(cluster):
    """How many checkpoints are complete."""
    return sum(item["state"] == "COMPLETE" for item in cluster.http("GET", "/checkpoints")[1])


def write(path, rows):
    path.write_text("".join(json.dumps({"k": key, "t": time_ms}) + "\n" for key, time_ms in rows))
    return path


def delivered(output):
    parts = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def slow_file(directory):
    """While it is there, what fires takes long: until the kill, and not after it."""
    path = directory / "slow"
    path.touch()
    return path


def start(make_cluster, directory, rows):
    directory.mkdir()
    cluster = make_cluster(SETTINGS, task_managers=1)
    parameters = {"input": write(directory / "rows.jsonl", rows), "output": directory / "out"}
    parameters |= {"slow": slow_file(directory), "s_per_timer": S_PER_TIMER}
    cluster.start_control_plane("flow_slow_timers", parameters)
    cluster.start_task_manager("first")
    return cluster


def test_a_kill_between_timers_of_one_watermark_throws_none_away(make_cluster, tmp_path):
    """With a row that makes all due, and at the end of the input; both jobs at the same time: they sleep."""
    last = {"row": [(KEYS, 60_000)], "end": []}
    inputs = {tmp_path / name: [(key, 10_000) for key in range(KEYS)] + rows for name, rows in last.items()}
    clusters = [start(make_cluster, directory, rows) for directory, rows in inputs.items()]
    # Less than half of the timers fire in the time for a checkpoint and the next one.
    for cluster in clusters:
        cluster.wait_for(lambda status: status["totals"]["events_out"] >= 5, "the first timers", 40)
    before = [complete(cluster) for cluster in clusters]
    for cluster, count in zip(clusters, before, strict=True):
        cluster.wait_for(
            lambda _, cluster=cluster, count=count: complete(cluster) >= count + 2,
            "checkpoints between timers",
            20,
        )
    for cluster in clusters:
        assert cluster.status()["totals"]["events_out"] < KEYS, "all have fired"
        cluster.processes["first"].popen.kill()
    for cluster, directory in zip(clusters, inputs, strict=True):
        (directory / "slow").unlink()
        cluster.start_task_manager("second")
    for cluster, (directory, rows) in zip(clusters, inputs.items(), strict=True):
        cluster.wait_ended()
        found = Counter((row["k"], row["at"], row["n"]) for row in delivered(directory / "out"))
        assert found == Counter({(key, time_ms + 1_000, 1): 1 for key, time_ms in set(rows)})


@pytest.mark.parametrize("kind", ["function", "behind", "async"])
def test_a_kill_between_windows_of_one_watermark_throws_none_away(make_cluster, tmp_path, kind):
    """A function of windows, a slow step behind windows, and one that waits for others."""
    rows = [(key, 10_000) for key in range(KEYS)] + [(KEYS, 60_000)]
    cluster = make_cluster(SETTINGS, task_managers=1)
    parameters = {"input": write(tmp_path / "rows.jsonl", rows), "output": tmp_path / "out"}
    slow = slow_file(tmp_path)
    parameters |= {"slow": slow, "kind": kind, "s_per_call": 0.25}
    cluster.start_control_plane("flow_slow_windows", parameters)
    cluster.start_task_manager("first")
    cluster.wait_for(lambda _: complete(cluster) >= 1, "a first checkpoint")
    before = complete(cluster)
    cluster.wait_for(lambda _: complete(cluster) >= before + 2, "checkpoints between windows", 20)
    assert cluster.status()["totals"]["events_out"] < KEYS, "all have been told"
    cluster.processes["first"].popen.kill()
    slow.unlink()
    cluster.start_task_manager("second")
    cluster.wait_ended()
    found = Counter((row["k"], row["window_start"], row["n"]) for row in delivered(tmp_path / "out"))
    assert found == Counter({(key, time_ms // 20_000 * 20_000, 1): 1 for key, time_ms in rows})
