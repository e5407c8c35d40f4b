"""Rows of inputs that differ in what may be null, saved in a checkpoint because its barriers overtook them."""

import json
from collections import Counter

import pyarrow as pa
import pytest

from experiments.cluster import FINAL_STATES, files_below
from tests.scenarios.losses import task_manager_of

pytestmark = pytest.mark.scenario

#: So many rows that the slow step is behind until it is released, however late the test looks.
EVENTS, RATE, SERVERS = 20_000, 1_500, 40
SETTINGS = {
    "taskManager.operator_quota": 20,
    "taskManager.batch_size": 50,
    "controlPlane.checkpoint_interval_ms": 300,
    "controlPlane.checkpoint_pause_ms": 100,
    "controlPlane.checkpoint_alignment_timeout_ms": 20,
    "controlPlane.lease_timeout_ms": 5000,
    "controlPlane.restart_attempts": 20,
}


def write(path, first, note_of):
    rows = [
        {"id": number, "server": f"server-{number % SERVERS}", "note": note_of(number)}
        for number in range(first, first + EVENTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, {row["id"]: row["note"] or "none" for row in rows}


def saved_schemas(checkpoints):
    """Of the rows in the checkpoints that are there: whether a note may be null."""
    found = set()
    for path in files_below(checkpoints, "rows-*.arrow"):
        try:
            found.add(pa.ipc.open_file(path.read_bytes()).schema.field("note").nullable)
        except (FileNotFoundError, pa.ArrowInvalid):
            # The checkpoint has expired, or the file is being written.
            continue
    return found


def test_rows_of_both_inputs_come_back_from_an_unaligned_checkpoint(make_cluster, tmp_path, release):
    plain, wanted = write(tmp_path / "plain.jsonl", 0, lambda number: f"note {number}")
    noted, others = write(
        tmp_path / "noted.jsonl", EVENTS, lambda number: None if number % 3 else f"note {number}"
    )
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": plain, "other": noted, "output": tmp_path / "out", "release": release}
    cluster.start_control_plane(
        "flow_union", parameters | {"rate": RATE, "row_ms": 2.0}, exit_when_finished=False
    )
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    checkpoints = cluster.directory / "checkpoints"
    cluster.wait_for(
        lambda status: status["latest_checkpoint"] and saved_schemas(checkpoints) == {False, True},
        "a checkpoint with rows of both inputs",
    )
    stage = next(s["stage"] for s in cluster.status()["stages"] if "both" in s["name"])
    task_manager_of(cluster, stage, -1).popen.kill()
    cluster.wait_for(
        lambda status: status["generation"] >= 2 and status["state"] in ("RUNNING", "FINISHED"),
        "the restart",
    )
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    rows = [
        json.loads(line)
        for part in (tmp_path / "out").glob("part-*")
        for line in part.read_text().splitlines()
    ]
    assert len(rows) == 2 * EVENTS
    assert {row["id"]: row["note"] for row in rows} == wanted | others
    counts = Counter(row["server"] for row in rows)
    assert Counter((row["server"], row["n"]) for row in rows) == Counter(
        (server, n) for server, count in counts.items() for n in range(1, count + 1)
    )
