"""One watermark makes much due that takes long: barriers pass in between, and a kill throws none of it away."""

import json
from collections import Counter

import pytest

pytestmark = pytest.mark.scenario

#: All of them would take 80 s and more: nothing waits for that, but a busy machine must not get through.
KEYS, S_PER_TIMER = 400, 0.2
SETTINGS = {
    "controlPlane.restart_attempts": 3,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.checkpoint_interval_ms": 500,
}


def complete(cluster):
    """How many checkpoints are complete."""
    return sum(item["state"] == "COMPLETE" for item in cluster.http("GET", "/checkpoints")[1])


def await_checkpoints(clusters, what):
    """Wait for two more of each job."""
    before = [(cluster, complete(cluster)) for cluster in clusters]
    for cluster, count in before:
        cluster.wait_for(
            lambda _, cluster=cluster, count=count: complete(cluster) >= count + 2,
            f"checkpoints between {what}",
            20,
        )


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
    await_checkpoints(clusters, "timers")
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


def test_a_kill_between_windows_of_one_watermark_throws_none_away(make_cluster, tmp_path):
    """A function of windows, a slow step behind windows, and one that waits for others: all sleep at the same time."""
    rows = [(key, 10_000) for key in range(KEYS)] + [(KEYS, 60_000)]
    slow, clusters = slow_file(tmp_path), {}
    # Of calls that wait for others there are two at a time.
    for kind, s_per_call in {"function": 0.25, "behind": 0.25, "async": 0.5}.items():
        clusters[kind] = cluster = make_cluster(SETTINGS, task_managers=1)
        parameters = {"input": write(tmp_path / f"{kind}.jsonl", rows), "output": tmp_path / kind}
        parameters |= {"slow": slow, "kind": kind, "s_per_call": s_per_call}
        cluster.start_control_plane("flow_slow_windows", parameters)
        cluster.start_task_manager("first")
    for cluster in clusters.values():
        cluster.wait_for(lambda _, cluster=cluster: complete(cluster) >= 1, "a first checkpoint")
    await_checkpoints(clusters.values(), "windows")
    for kind, cluster in clusters.items():
        assert cluster.status()["totals"]["events_out"] < KEYS, f"all have been told: {kind}"
        cluster.processes["first"].popen.kill()
    slow.unlink()
    for cluster in clusters.values():
        cluster.start_task_manager("second")
    for kind, cluster in clusters.items():
        cluster.wait_ended()
        found = Counter((row["k"], row["window_start"], row["n"]) for row in delivered(tmp_path / kind))
        assert found == Counter({(key, time_ms // 20_000 * 20_000, 1): 1 for key, time_ms in rows}), kind
