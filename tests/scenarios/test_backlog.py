"""A slow step over a backlog: checkpoints go on, and a failure throws no progress away."""

import json
import time

import pytest

from experiments.cluster import FINAL_STATES

pytestmark = pytest.mark.scenario

EVENTS = 50_000


@pytest.fixture(scope="module")
def events(tmp_path_factory, write_events):
    return write_events(tmp_path_factory.mktemp("backlog") / "events.jsonl", EVENTS)


def complete(cluster):
    """The checkpoints that are complete, oldest first."""
    return [item for item in reversed(cluster.http("GET", "/checkpoints")[1]) if item["state"] == "COMPLETE"]


def delivered(output):
    """The ids in the files of the sink."""
    parts = sorted(output.glob("part-*.jsonl"))
    return [json.loads(line)["id"] for part in parts for line in part.read_text().splitlines()]


def test_checkpoints_are_made_whatever_a_row_takes(make_cluster, events, tmp_path):
    """Four jobs at the same time: they sleep."""
    clusters = []
    for s_per_row in (0.05, 0.6):
        for chained in (False, True):
            cluster = make_cluster(task_managers=1)
            parameters = {"input": events, "s_per_row": s_per_row, "chained": chained}
            parameters["output"] = tmp_path / f"out_{len(clusters)}"
            cluster.start_control_plane("flow_backlog", parameters)
            cluster.start_task_manager("first")
            clusters.append(cluster)
    for cluster in clusters:
        cluster.wait_for(lambda _, cluster=cluster: len(complete(cluster)) >= 2, "two checkpoints", 45)
        # The first rows of a step of which nothing is known take their time.
        assert complete(cluster)[-1]["duration_ms"] < 10_000
        assert cluster.status()["restarts"] == 0
        assert cluster.http("POST", "/cancel")[0] == 202


def test_a_kill_does_not_throw_away_what_a_slow_step_has_done(make_cluster, events, tmp_path):
    settings = {"controlPlane.restart_attempts": 3, "controlPlane.lease_timeout_ms": 5000}
    cluster = make_cluster(settings, task_managers=1)
    cluster.start_control_plane(
        "flow_backlog", {"input": events, "output": tmp_path / "out", "s_per_row": 0.05}
    )
    cluster.start_task_manager("first")
    cluster.wait_for(
        lambda status: status["totals"]["events_out"] >= 60 and complete(cluster), "some rows", timeout_s=40
    )
    cluster.processes["first"].popen.kill()
    first = len(complete(cluster))
    cluster.start_task_manager("second")
    cluster.wait_for(lambda _: len(complete(cluster)) >= first + 3, "checkpoints after it", timeout_s=40)
    began_s = time.monotonic()
    savepoint = cluster.directory / "savepoints" / "kept"
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    cluster.wait_ended()
    assert time.monotonic() - began_s < 30
    ids = delivered(tmp_path / "out")
    assert len(ids) >= 60
    assert sorted(ids) == list(range(len(ids)))


def test_checkpoints_go_on_when_the_source_has_ended(make_cluster, write_events, tmp_path):
    """Rows that wait for a slow step are in them: they are neither lost with a process nor all taken again."""
    events = 700
    settings = {"controlPlane.restart_attempts": 3, "controlPlane.lease_timeout_ms": 5000}
    cluster = make_cluster(settings, task_managers=1)
    path = write_events(tmp_path / "events.jsonl", events)
    slow = tmp_path / "slow"
    slow.touch()
    cluster.start_control_plane(
        "flow_backlog", {"input": path, "output": tmp_path / "out", "s_per_row": 0.02, "slow": slow}
    )
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: status["totals"]["events_in"] == events, "the end of the source", 40)
    at_end = len(complete(cluster))
    cluster.wait_for(lambda _: len(complete(cluster)) >= at_end + 2, "checkpoints after it", 10)
    cluster.processes["first"].popen.kill()
    # What is left has nothing more to show.
    slow.unlink()
    cluster.start_task_manager("second")
    cluster.wait_ended()
    assert sorted(delivered(tmp_path / "out")) == list(range(events))


def test_rows_that_waited_for_rules_go_on_in_parts(make_cluster, write_events, tmp_path):
    """They are no batch of a channel: checkpoints have what is left of them, also after a kill."""
    events, go, slow = 3_000, tmp_path / "go", tmp_path / "slow"
    path = write_events(tmp_path / "events.jsonl", events)
    settings = {"controlPlane.restart_attempts": 3, "controlPlane.lease_timeout_ms": 5000}
    cluster = make_cluster(settings, task_managers=1)
    slow.touch()
    parameters = {"input": path, "output": tmp_path / "out", "s_per_row": 0.05, "go": go, "slow": slow}
    cluster.start_control_plane("flow_backlog", parameters, exit_when_finished=False)
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: status["totals"]["events_in"] >= events, "all rows, which wait", 60)
    go.touch()
    cluster.wait_for(lambda status: status["totals"]["events_out"] >= 20, "some rows", 40)
    before = len(complete(cluster))
    cluster.wait_for(lambda _: len(complete(cluster)) >= before + 3, "checkpoints meanwhile", timeout_s=40)
    cluster.processes["first"].popen.kill()
    first = len(complete(cluster))
    cluster.start_task_manager("second")
    cluster.wait_for(lambda _: len(complete(cluster)) >= first + 3, "checkpoints after it", timeout_s=60)
    status = cluster.status()
    assert 20 <= status["totals"]["events_out"] < events
    slow.unlink()
    cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job", 60)
    assert sorted(delivered(tmp_path / "out")) == list(range(events))
