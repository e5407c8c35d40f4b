"""Rows and states of 16 MB: through rescales, kill -9 and a savepoint."""

import json
from collections import Counter, defaultdict

import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.patience import rescale_patiently

pytestmark = pytest.mark.scenario

#: Two keys of each subtask; rows come faster than they are worked off.
EVENTS, SERVERS, KEPT = 24, 4, 2
ROW_BYTES = 16_000_000
STAGE = 1
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 1_500,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.checkpoint_alignment_timeout_ms": 20,
    "controlPlane.checkpoint_failures_max": 1_000,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 5,
}


def write(directory):
    """Two files, one for each subtask of the source."""
    directory.mkdir()
    for half in range(2):
        lines = [
            json.dumps({"id": number, "server": f"server-{number % SERVERS}"})
            for number in range(half, EVENTS, 2)
        ]
        (directory / f"part-{half}.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def check(directory):
    """No row twice, and each saw the values of the one before it in its state."""
    rows = [
        json.loads(line)
        for part in sorted(directory.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    assert set(Counter(row["id"] for row in rows).values()) == {1}
    by_server = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["n"]):
        by_server[row["server"]].append(row)
    for seen in by_server.values():
        ids = [row["id"] for row in seen]
        assert [row["n"] for row in seen] == list(range(1, len(seen) + 1))
        assert [row["before"] for row in seen] == [-1, *ids[:-1]]
        assert [row["recent"] for row in seen] == [ids[max(0, i + 1 - KEPT) : i + 1] for i in range(len(ids))]
    return len(rows)


def test_rows_and_states_of_16_mb(make_cluster, tmp_path, release):
    parameters = {"input": write(tmp_path / "events"), "output": tmp_path / "out", "release": release}
    # Rows come faster than the step takes them, so that barriers overtake some.
    parameters |= {"size_bytes": ROW_BYTES, "rate": 20, "nap_s": 0.6}
    # Rows for the restored job.
    keep_back(release, 0.25)
    cluster = make_cluster(settings=SETTINGS)
    cluster.start_control_plane("flow_wide_states", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    cluster.wait_for(
        lambda status: status["latest_checkpoint"] and status["totals"]["events_out"], "a checkpoint and rows"
    )
    generation = lose_task_manager(cluster, STAGE)["generation"]
    for parallelism in (3, 1):
        rescale_patiently(cluster, STAGE, parallelism)
    savepoint = cluster.directory / "savepoints" / "wide"
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("STOPPED", "")
    assert status["generation"] == generation
    cluster.stop()
    delivered = check(tmp_path / "out")
    assert 0 < delivered < EVENTS

    again = make_cluster(settings=SETTINGS)
    parameters |= {"parallelism": 3, "nap_s": 0, "rate": 50}
    again.start_control_plane("flow_wide_states", parameters, arguments=["--from-savepoint", str(savepoint)])
    for name in ("first", "second"):
        again.start_task_manager(name)
    release.touch()
    assert again.wait_ended() == {"control_plane": 0, "first": 0, "second": 0}
    assert check(tmp_path / "out") == EVENTS
