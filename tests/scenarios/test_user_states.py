"""Declared states of every kind go through rescales, kill -9, a savepoint and a changed job like a built-in count."""

import bisect
import json
import signal
from collections import Counter, defaultdict

import pytest

from experiments.cluster import FINAL_STATES, files_below
from experiments.held_source import keep_back
from experiments.scaling import rescale
from tests.scenarios.losses import lose_task_manager

pytestmark = pytest.mark.scenario

EVENTS = 6_000
KEPT = 50
GAP = 30
STAGE = 1
STATES = ("count", "digits", "most", "recent", "text", "total", "versions", "visits", "windows")
SETTINGS = {
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 5,
    # What the savepoint covers is all rows up to one, also on a slow machine: its barriers overtake none.
    "controlPlane.checkpoint_alignment_timeout_ms": 3_600_000,
}


class Model:
    """The states of one key in plain Python."""

    def __init__(self):
        self.n, self.text, self.recent, self.digits, self.most, self.total = 0, "", [], Counter(), 0, 0.0
        self.ids, self.windows, self.visit = [], Counter(), [0, -GAP - 1, 0]

    def row(self, number, server):
        self.n += 1
        self.text = f"{self.text[-20:]}.{number}"
        self.recent = [] if number % 997 == 0 else [*self.recent, number][-KEPT:]
        self.digits[number % 10] += 1
        self.most = max(self.most, number % 1_000)
        self.total += number / 2
        self.ids.append(number)
        before = bisect.bisect_right(self.ids, number - 1_000)
        then = self.ids[before - 1] if before else None
        self.windows[number - number % 500] += 1
        windows = [count for start, count in sorted(self.windows.items()) if start >= number - 1_500]
        start, end, rows = self.visit
        self.visit = [start, number, rows + 1] if number - end <= GAP else [number, number, 1]
        digits = [part for item in sorted(self.digits.items()) for part in item]
        values = (number, server, self.n, self.text, list(self.recent), digits, self.most, self.total)
        names = ("id", "server", "n", "text", "recent", "digits", "most", "total")
        timed = {"then": then, "windows": windows, "visit": self.visit}
        return dict(zip(names, values, strict=True)) | timed


def check(directory, count):
    """Every id once, with what the states of its server were then; returns the rows by id."""
    rows = [
        json.loads(line)
        for part in sorted(directory.glob("part-*.jsonl"))
        for line in part.read_text().splitlines()
    ]
    assert Counter(row["id"] for row in rows) == dict.fromkeys(range(count), 1)
    rows.sort(key=lambda row: row["id"])
    models = defaultdict(Model)
    for row in rows:
        expected = models[row["server"]].row(row["id"], row["server"])
        assert {name: row[name] for name in expected} == expected
    return rows


def state_ids(directory):
    manifest = json.loads(max(files_below(directory, "manifests/*.json")).read_text())
    return {name: number for name, number in manifest["state_ids"].items() if name.startswith("states/")}


def check_a_changed_state_is_refused(cluster, parameters, start):
    cluster.start_control_plane("flow_states", {**parameters, "version": "changed"}, arguments=start)
    cluster.start_task_manager("first")
    assert cluster.wait_ended()["control_plane"] != 0
    log = cluster.processes["control_plane"].log_path.read_text()
    refused = [line for line in log.splitlines() if "state 'text'" in line]
    assert refused, log
    assert "step 'states'" in refused[0]
    assert "Traceback" not in log


def test_every_kind_of_state(make_cluster, tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    # Not so fast that a slow machine is far behind when the savepoint is made.
    parameters = {"input": events, "output": tmp_path / "out", "release": tmp_path / "release", "rate": 400}
    # Rows for what happens later, and some that are left when the job is stopped.
    keep_back(parameters["release"], 0.5)
    cluster = make_cluster(settings=SETTINGS)
    control_plane = cluster.start_control_plane("flow_states", parameters, exit_when_finished=False)
    for name in ("first", "second", "standby"):
        cluster.start_task_manager(name)
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 1, "a checkpoint")

    for parallelism, kept_back in ((3, 0.4), (1, 0.3), (2, 0.2)):
        rescale(cluster, STAGE, parallelism)
        seen = cluster.status()["totals"]["events_out"]
        keep_back(parameters["release"], kept_back)
        cluster.wait_for(lambda status, seen=seen: status["totals"]["events_out"] > seen, "further rows")
    latest = cluster.status()["latest_checkpoint"]
    cluster.wait_for(lambda status: status["latest_checkpoint"] > latest, "a checkpoint of the new owners")

    lose_task_manager(cluster, STAGE)
    status = cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "rows after the restart")
    # Rows wait for no flush, and nothing pretends to know how many keys there are.
    subtasks = status["stages"][STAGE]["subtasks"]
    assert all(subtask["distinct_keys"] is None for subtask in subtasks)

    savepoint = cluster.directory / "savepoints" / "monday"
    assert cluster.http("POST", f"/stop?savepoint={savepoint}")[0] == 202
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("STOPPED", "")
    delivered = status["totals"]["events_out"]
    assert 0 < delivered < EVENTS
    check(tmp_path / "out", delivered)
    control_plane.popen.send_signal(signal.SIGTERM)
    assert control_plane.wait() == 0
    cluster.stop()
    before = state_ids(savepoint)
    assert sorted(before) == [f"states/{name}" for name in STATES]

    start = ["--from-savepoint", str(savepoint)]
    check_a_changed_state_is_refused(make_cluster(settings=SETTINGS, task_managers=1), parameters, start)

    again = make_cluster(settings=SETTINGS)
    arguments = {**parameters, "version": "added", "parallelism": 3, "rate": 100_000}
    again.start_control_plane("flow_states", arguments, arguments=start)
    for name in ("first", "second"):
        again.start_task_manager(name)
    restored = again.wait_for(lambda status: status["latest_checkpoint"], "the savepoint")[
        "latest_checkpoint"
    ]
    again.wait_for(lambda status: status["latest_checkpoint"] > restored, "a checkpoint of its own")
    after = state_ids(again.directory / "checkpoints")
    assert {name: number for name, number in after.items() if name in before} == before
    assert after["states/extra"] not in before.values()
    (tmp_path / "release").touch()
    assert again.wait_ended() == {"control_plane": 0, "first": 0, "second": 0}
    rows = check(tmp_path / "out", EVENTS)
    extra = Counter()
    for row in rows[delivered:]:
        extra[row["server"]] += 1
        assert row["extra"] == extra[row["server"]], "an added state starts empty"
