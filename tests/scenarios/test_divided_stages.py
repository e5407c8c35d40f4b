"""Started from its savepoint, with another parallelism that divides a stage, a job has the state of both steps."""

import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from tests.scenarios.test_stop import SETTINGS, lines

pytestmark = pytest.mark.scenario

EVENTS = 6_000


def run_until_stopped(cluster, parameters, arguments=()):
    cluster.start_control_plane("flow_divided", parameters, arguments=arguments, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")
    savepoint = cluster.directory / "savepoints" / "here"
    savepoint.parent.mkdir()
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert status["state"] == "STOPPED"
    cluster.stop()
    return ["--from-savepoint", str(savepoint)]


def test_both_steps_of_a_divided_stage_go_on(make_cluster, tmp_path, write_events):
    events, release = write_events(tmp_path / "events.jsonl", EVENTS), tmp_path / "release"
    parameters = {"input": events, "output": tmp_path / "out", "release": release, "parallelism": 1}
    keep_back(release, 0.5)
    from_one = run_until_stopped(make_cluster(settings=SETTINGS), parameters)

    parameters["parallelism"] = 3
    keep_back(release, 0.25)
    from_three = run_until_stopped(make_cluster(settings=SETTINGS), parameters, from_one)

    # The counts of a key are with two task managers now, and would have to be with one.
    parameters["parallelism"] = 1
    cluster = make_cluster(settings=SETTINGS)
    refused = cluster.start_control_plane("flow_divided", parameters, arguments=from_three)
    assert refused.wait() != 0
    assert "give 'again' the parallelism that it had" in refused.log_path.read_text()
    cluster.stop()

    parameters["parallelism"] = 2
    release.touch()
    again = make_cluster(settings=SETTINGS)
    again.start_control_plane("flow_divided", parameters, arguments=from_three, exit_when_finished=False)
    for name in ("first", "second"):
        again.start_task_manager(name)
    again.wait_for(lambda status: status["state"] == "FINISHED", "the end of the job")
    rows = lines(tmp_path / "out")
    assert sorted(row["id"] for row in rows) == sorted({row["id"] for row in rows})
    assert len(rows) == EVENTS
    counts = {}
    for row in sorted(rows, key=lambda row: row["id"]):
        counts[row["server"]] = counts.get(row["server"], 0) + 1
        assert (row["n"], row["m"]) == (counts[row["server"]],) * 2
