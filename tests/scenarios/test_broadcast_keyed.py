"""Broadcast steps on real task managers: rows that wait, state by key, and rules, through kill -9 and a rescale."""

import json

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from experiments.soak import rescale
from experiments.soak_check import write_events
from tests.scenarios.flows.flow_broadcast_keyed import BAD_EVERY, BAD_FACTOR
from tests.scenarios.losses import lose_task_manager
from tests.scenarios.test_recovery import SETTINGS

pytestmark = pytest.mark.scenario

EVENTS, RATE, SERVERS = 6_000, 2_000, 50
FACTORS = [1, 2, BAD_FACTOR, 3, 4, 5]
STAGE = 2


def checkpoints(cluster, more):
    before = cluster.status()["latest_checkpoint"] or 0
    cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= before + more, "checkpoints")


def test_rows_wait_and_each_subtask_applies_each_rule_once(make_cluster, tmp_path):
    events = write_events(tmp_path / "events.jsonl", EVENTS, SERVERS, 3)
    rules, output = tmp_path / "rules.jsonl", tmp_path / "out"
    rules.write_text("".join(json.dumps({"factor": factor}) + "\n" for factor in FACTORS))
    release, rules_release = tmp_path / "release", tmp_path / "rules_release"
    keep_back(release, 0.5)
    keep_back(rules_release, 1)
    cluster = make_cluster(task_managers=1, settings=SETTINGS | {"controlPlane.poison_attempts": 1})
    parameters = {
        "input": events, "rules": rules, "output": output, "rate": RATE,
        "release": release, "rules_release": rules_release,
    }  # fmt: skip
    cluster.start_control_plane("flow_broadcast_keyed", parameters, exit_when_finished=False)
    # Both subtasks of the step are in one process, also after the restarts.
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: status["totals"]["events_in"] >= EVENTS // 4, "rows that wait")
    checkpoints(cluster, 2)
    cluster.start_task_manager("second")
    lose_task_manager(cluster, STAGE)
    cluster.wait_for(lambda status: status["totals"]["events_in"] >= EVENTS // 2, "more rows that wait")
    assert cluster.status()["totals"]["events_out"] == 0

    keep_back(rules_release, 0)
    cluster.wait_for(lambda status: status["totals"]["events_out"] >= EVENTS // 4, "rows")
    checkpoints(cluster, 2)
    cluster.start_task_manager("third")
    lose_task_manager(cluster, STAGE)
    rescale(cluster, STAGE, 3)
    release.touch()
    rules_release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")

    found = pl.concat([pl.read_ndjson(part) for part in sorted(output.glob("part-*")) if part.stat().st_size])
    rows = pl.read_ndjson(events).select("id", "server").filter(pl.col("id") % BAD_EVERY != 7)
    expected = rows.sort("id").with_columns(n=pl.int_range(1, pl.len() + 1).over("server"))
    told = found.filter(pl.col("id") >= 0).sort("id")
    assert told.select("id", "server", "n").equals(expected), "each row counts once, a bad one does not"
    good = len(FACTORS) - 1
    assert told["applied"].min() >= 1, "no row comes before the first rule"
    assert told["applied"].max() == good, "a rule is applied once, a bad one not at all"
    ends = found.filter(pl.col("id") == -1).sort("server")
    counts = rows.group_by("server").len("n").sort("server").cast({"n": pl.Int64})
    assert ends.select("server", "n").equals(counts)
    assert ends["applied"].unique().to_list() == [good]
    letters = [
        json.loads(json.loads(line)["raw"])
        for path in (cluster.directory / "dead_letters").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {letter["factor"] for letter in letters if "factor" in letter} == {BAD_FACTOR}
    bad = {number for number in range(EVENTS) if number % BAD_EVERY == 7}
    assert {letter["id"] for letter in letters if "id" in letter} == bad
