"""A rescale of a stage that is behind: no row comes to its new owner after a time that it was before."""

import json
from collections import Counter

import pytest

from experiments.cluster import FINAL_STATES
from experiments.scaling import rescale

pytestmark = pytest.mark.scenario

EVENTS = 6_000
KEYS = ["slow", *(f"key-{number}" for number in range(9))]


def test_no_session_ends_in_the_middle_when_rows_wait_at_a_switch(make_cluster, tmp_path, release):
    """The input is one split in order, and each key has a row every 10 ms: there is one session of each."""
    keys = [KEYS[number % len(KEYS)] for number in range(EVENTS)]
    rows = ({"id": number, "key": key, "pause_ms": 10} for number, key in enumerate(keys))
    events = tmp_path / "events.jsonl"
    events.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cluster = make_cluster(settings={"taskManager.operator_quota": 20})
    parameters = {"input": events, "output": tmp_path / "out", "release": release, "rate": 10_000}
    cluster.start_control_plane("flow_slow_sessions", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    cluster.wait_for(
        lambda status: status["stages"][0]["subtasks"][0]["backpressured_ratio"] > 0.5, "pressure"
    )
    for parallelism in (3, 2, 4):
        rescale(cluster, 1, parallelism)
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"], status["totals"]["rows_late"]) == ("FINISHED", "", {})
    parts = sorted((tmp_path / "out").glob("part-*.jsonl"))
    sessions = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert {each["key"]: each["rows"] for each in sessions} == Counter(keys)
    assert len(sessions) == len(KEYS)
