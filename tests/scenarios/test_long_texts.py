"""Long texts of Parquet, which are read on their way to the subtask of their key, when a task manager is killed."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from experiments.cluster import FINAL_STATES
from tests.scenarios.flows.flow_long_texts import text_of

pytestmark = pytest.mark.scenario

ROWS = 60_000
SETTINGS = {
    "controlPlane.lease_timeout_ms": 5000,
    "taskManager.operator_quota": 20,
    "controlPlane.checkpoint_interval_ms": 200,
    "controlPlane.checkpoint_pause_ms": 50,
    "controlPlane.restart_attempts": 20,
}


def test_each_row_arrives_once_and_whole_when_a_peer_is_killed(make_cluster, tmp_path, release):
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "key": [f"key-{number % 100}" for number in range(ROWS)],
            "payload": list(map(text_of, range(ROWS))),
        }
    )
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rows.parquet"
    pq.write_table(table, path, row_group_size=15_000, use_dictionary=["key"], data_page_size=100_000)
    cluster = make_cluster(settings=SETTINGS)
    parameters = {"input": tmp_path / "in", "output": tmp_path / "out", "us_per_row": 300, "release": release}
    cluster.start_control_plane("flow_long_texts", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    # The rows last for 9 s, unless they are released.
    cluster.wait_for(lambda status: status["totals"]["events_out"] > 0, "rows")
    cluster.processes["second"].popen.kill()
    cluster.start_task_manager("third")
    cluster.wait_for(lambda status: status["generation"] >= 2, "the restart")
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    assert status["generation"] >= 2
    found = [
        json.loads(line)
        for part in (tmp_path / "out").glob("part-*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert all(item["is_right"] for item in found)
    assert sorted(item["id"] for item in found) == list(range(ROWS))


def test_rows_with_texts_that_are_not_utf8_are_put_aside_with_file_and_row(make_cluster, tmp_path, release):
    """To the other process they would go through a socket, whose end refuses such texts, or through shared memory."""
    rows = 3_000
    bad = {"key": {5, 1_999}, "payload": {17, 2_500}}

    def texts(name, values):
        coded = [
            b"\xff\xfe" * 40 if number in bad[name] else text.encode() for number, text in enumerate(values)
        ]
        return pa.array(coded, pa.binary()).view(pa.string())

    columns = {
        "id": pa.array(range(rows), pa.int64()),
        "key": texts("key", [f"key-{number % 100}" for number in range(rows)]),
        "payload": texts("payload", map(text_of, range(rows))),
    }
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "rows.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=1_000, use_dictionary=["key"])
    release.touch()
    cluster = make_cluster(settings={"taskManager.operator_quota": 20})
    parameters = {"input": tmp_path / "in", "output": tmp_path / "out", "us_per_row": 0, "release": release}
    cluster.start_control_plane("flow_long_texts", parameters, exit_when_finished=False)
    for name in ("first", "second"):
        cluster.start_task_manager(name)
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["cause"], status["generation"]) == ("FINISHED", "", 1)
    found = [
        json.loads(line)
        for part in (tmp_path / "out").glob("part-*.jsonl")
        for line in part.read_text().splitlines()
    ]
    assert all(item["is_right"] for item in found)
    wrong = {
        (str(path), row): f"field {name} is not UTF-8" for name, numbers in bad.items() for row in numbers
    }
    assert sorted(item["id"] for item in found) == [n for n in range(rows) if (str(path), n) not in wrong]
    letters = [
        json.loads(line)
        for file in (cluster.directory / "dead_letters").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert {(item["source"], item["position"]): item["reason"] for item in letters} == wrong
    assert len(letters) == len(wrong)
