import json

import pytest

pytestmark = pytest.mark.scenario

GOOD = 3_000
BAD = [
    b'{"id": "one", "server": "a"}',
    b'{"id": 1}',
    b"\xff\xfe\x00binary",
    b'{"id": 1, "server": ["a"]}',
    b'{"id": 1.5, "server": "a"}',
    b"[]",
    b"null",
    b'{"id": 1, "server": "a"',
    b'{"id": 1, "server": "\xc3"}',
    b'{"id": 99999999999999999999, "server": "a"}',
]


def test_bad_records_are_put_aside_and_counted(make_cluster, tmp_path):
    """Two files, read by two subtasks; every bad record is in a dead-letter file with its position."""
    directory = tmp_path / "events"
    directory.mkdir()
    expected = {}
    for number in range(2):
        path, content = directory / f"part-{number}.jsonl", b""
        for position in range(GOOD // 2):
            if position % 100 == 50:
                bad = BAD[position // 100 % len(BAD)]
                expected[str(path), len(content)] = len(bad)
                content += bad + b"\n"
            content += json.dumps({"id": position, "server": f"server-{position % 5}"}).encode() + b"\n"
        path.write_bytes(content)

    cluster = make_cluster()
    cluster.start_control_plane("flow_faulty", {"input": directory}, exit_when_finished=False)
    cluster.start_task_manager("first")
    cluster.start_task_manager("second")
    status = cluster.wait_for(lambda status: status["state"] in ("FINISHED", "FAILED"), "the end of the job")
    assert status["state"] == "FINISHED", status["cause"]
    totals = status["totals"]
    assert (totals["events_in"], totals["events_out"]) == (GOOD, GOOD)
    assert totals["events_rejected"] == len(expected)
    assert totals["distinct_keys"] == 5
    letters = [
        json.loads(line)
        for path in (cluster.directory / "dead_letters").rglob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert {(item["source"], item["position"]): item["length"] for item in letters} == expected
    assert len(letters) == len(expected)
    assert all(item["reason"] for item in letters)
