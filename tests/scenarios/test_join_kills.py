"""No row that has a partner is told with nulls, and no other answer changes, however often processes are killed."""

import json
import random

import polars as pl
import pytest

from experiments.cluster import FINAL_STATES
from experiments.held_source import keep_back
from tests.scenarios.flows.flow_join_kills import BOUND_MS, WITHIN_MS
from tests.scenarios.losses import lose_task_manager

pytestmark = pytest.mark.scenario

ROWS, RATE, KEYS, KILLS = 30_000, 4_000, 3_000, 3
SETTINGS = {
    "taskManager.batch_size": 200,
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.lease_timeout_ms": 5_000,
    "controlPlane.restart_attempts": 20,
    # Nothing goes by the clock.
    "controlPlane.idle_timeout_ms": 120_000,
}
#: Of which side rows are told without a partner.
TOLD = {"left": (True, False), "full": (True, True)}


def write(path, dice, first_id, lost, burst):
    """Rows out of order, of which those in every second ``burst`` are late for sure; returns those in time.

    A restart within a burst has nothing but the checkpoint to know it from: the next row in time is far. Of every
    ``lost``-th row no partner comes.
    """
    rows, highest_ms, in_time = [], 0, []
    for number in range(ROWS):
        is_late = number // burst % 2 == 1
        behind_ms = dice.randrange(BOUND_MS) + (5 * BOUND_MS if is_late else 0)
        row = {"id": first_id + number, "key": number % KEYS, "at": 2 * number - behind_ms}
        if number % lost == 0:
            row["key"] += first_id + KEYS
        rows.append(row)
        # A source tells how far it is as of each row.
        if row["at"] >= highest_ms - BOUND_MS:
            in_time.append(row)
        highest_ms = max(highest_ms, row["at"])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return in_time


def joined(lefts, rights, tells):
    """In plain Python, as pairs of ids."""
    by_key = {}
    for row in rights:
        by_key.setdefault(row["key"], []).append(row)
    pairs, matched = [], set()
    for left in lefts:
        found = [
            right["id"]
            for right in by_key.get(left["key"], ())
            if WITHIN_MS[0] <= right["at"] - left["at"] <= WITHIN_MS[1]
        ]
        matched.update(found)
        pairs += [(left["id"], right) for right in found]
        if not found and tells[0]:
            pairs.append((left["id"], None))
    if tells[1]:
        pairs += [(None, right["id"]) for right in rights if right["id"] not in matched]
    return sorted(pairs, key=str)


def test_left_and_full_joins_are_those_of_plain_python_over_three_kills(make_cluster, tmp_path, release):
    dice = random.Random(97)
    lefts = write(tmp_path / "left.jsonl", dice, 0, 31, 500)
    rights = write(tmp_path / "right.jsonl", dice, 10 * ROWS, 37, 700)
    cluster = make_cluster(settings=SETTINGS)
    keep_back(release, KILLS / 8)
    parameters = {name: tmp_path / f"{name}.jsonl" for name in ("left", "right")}
    parameters |= {"rate": RATE, "output": tmp_path / "out", "release": release}
    cluster.start_control_plane("flow_join_kills", parameters, exit_when_finished=False)
    for number in range(2):
        cluster.start_task_manager(f"task_manager_{number}")
    for kill in range(KILLS):
        # Somewhere in what is read before more is let go.
        wanted = int(2 * ROWS * (1 + 2 * kill + 1.8 * dice.random()) / 8)
        cluster.wait_for(
            lambda status, wanted=wanted: (
                status["totals"]["events_in"] >= wanted and status["latest_checkpoint"]
            ),
            "rows before a kill",
        )
        cluster.start_task_manager(f"standby_{kill}")
        stage = dice.randrange(len(cluster.status()["stages"]))
        lose_task_manager(cluster, stage)
        keep_back(release, (KILLS - 1 - kill) / 8)
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    late = 2 * ROWS - len(lefts) - len(rights)
    assert late > ROWS // 2
    for how, tells in TOLD.items():
        parts = [part for part in tmp_path.glob(f"out-{how}/part-*") if part.stat().st_size]
        schema = {"id": pl.Int64, "id_right": pl.Int64}
        found = [row for part in parts for row in pl.read_ndjson(part, schema=schema).rows()]
        assert sorted(found, key=str) == joined(lefts, rights, tells), how
        assert status["totals"]["rows_late"][f"{how}_joined"] == late
