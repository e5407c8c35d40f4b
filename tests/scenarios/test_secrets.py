"""A secret is planted in every setting and parameter, and looked for wherever Weir writes."""

import re

import pytest

pytestmark = pytest.mark.scenario

PLANTED = "pl4nted-S3cret-99"
PAGES = (
    "/status",
    "/plan",
    "/configuration",
    "/history",
    "/logs?entries=400",
    "/checkpoints",
    "/restores",
    "/report",
    "/rescales",
)


def test_a_failing_job_tells_no_secret(make_cluster, tmp_path, write_events):
    events = write_events(tmp_path / "events.jsonl", 2_000)
    cluster = make_cluster(
        settings={
            "controlPlane.state_path": "",
            "security.secret_file": str(tmp_path / "secret"),
            "taskManager.cassandra.username": "weir",
            "taskManager.cassandra.password": PLANTED,
            "prometheus.job_name": f"http://user:{PLANTED}@host/",
        },
        task_managers=1,
    )
    parameters = {"input": events, "sink_password": PLANTED, "place": f"db://u:{PLANTED}@db.example/x"}
    cluster.start_control_plane("flow_secrets", parameters, exit_when_finished=False)
    cluster.start_task_manager()
    status = cluster.wait_for(lambda status: status["state"] == "FAILED", "the failure")
    assert re.search(r"the server refused '\*+' at db:\S+db.example/x", status["cause"]), status["cause"]
    for page in PAGES:
        _, answer = cluster.http("GET", page)
        assert PLANTED not in str(answer), page
    cluster.stop()
    written = [
        path for path in tmp_path.rglob("*") if path.is_file() and path.suffix in (".log", ".json", ".jsonl")
    ]
    assert any(path.suffix == ".log" for path in written)
    for path in written:
        assert PLANTED not in path.read_text(errors="replace"), path
