"""Starting in any order, waiting for what is not there yet, and ports that are taken."""

import re
import socket

import pytest

from experiments.cluster import FINAL_STATES
from experiments.ports import free_port

pytestmark = pytest.mark.scenario

EVENTS = 500


def error_lines(process):
    """Lines of its log that are no log lines of level INFO."""
    lines = process.log_path.read_text().splitlines()
    return [line for line in lines if not re.match(r"\d\d:\d\d:\d\d task_manager\S* INFO ", line)]


def test_waits_for_the_control_plane_and_then_for_slots(make_cluster, tmp_path, write_events):
    """The first task manager comes before the control plane, and has too few slots; the second one brings more."""
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    cluster = make_cluster(task_managers=1, settings={"taskManager.operator_quota": 2})
    first = cluster.start_task_manager("first")
    first.wait_for_text("waiting for the control plane at 127.0.0.1:")
    cluster.start_control_plane("flow_faulty", {"input": events, "parallelism": 2})
    status = cluster.wait_for(lambda status: status["task_managers"], "the first task manager")
    assert status["state"] == "WAITING_FOR_TASK_MANAGERS"
    assert "4" in status["waiting_for"]
    assert "2" in status["waiting_for"]
    assert status["waiting_for"] in cluster.processes["control_plane"].log_path.read_text()
    cluster.start_task_manager("second")
    assert cluster.wait_ended() == {"control_plane": 0, "first": 0, "second": 0}


def test_cancel_while_waiting_for_slots(make_cluster):
    cluster = make_cluster(task_managers=1, settings={"taskManager.operator_quota": 1})
    cluster.start_control_plane("flow_faulty", {"input": "nowhere"})
    cluster.start_task_manager("first")
    cluster.wait_for(lambda status: status["task_managers"], "the task manager")
    assert cluster.http("POST", "/cancel")[0] == 202
    assert cluster.wait_ended() == {"control_plane": 3, "first": 0}


def test_task_managers_that_cannot_start(make_cluster):
    """A port that is taken, by anything or by a task manager; wrong arguments; no control plane in the time given."""
    cluster = make_cluster()
    away = f"127.0.0.1:{cluster.grpc_port}"
    shared = free_port()
    holder = cluster.start("holder", "task_manager", [f"-port={shared}", "--control-plane", away])
    holder.wait_for_text(f"listening on 127.0.0.1:{shared}")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        failing = {
            "busy": ["--port", str(taken)],
            "twin": ["--port", str(shared)],
            "key": ["--set", "taskManager.bath_size=1"],
            "address": ["--control-plane", "somewhere"],
            "lonely": [
                "--port",
                str(free_port()),
                "--control-plane",
                away,
                "--set",
                "taskManager.connect_timeout_s=1",
            ],
        }
        for name, arguments in failing.items():
            cluster.start(name, "task_manager", arguments)
        codes = {name: cluster.processes[name].wait() for name in failing}
    assert codes == {"busy": 1, "twin": 1, "key": 2, "address": 2, "lonely": 1}
    errors = {name: error_lines(cluster.processes[name]) for name in failing}
    assert {name: len(lines) for name, lines in errors.items()} == dict.fromkeys(failing, 1), errors
    assert all(lines[0].startswith("task_manager: error: ") for lines in errors.values())
    assert f"127.0.0.1:{taken}" in errors["busy"][0]
    assert f"127.0.0.1:{shared}" in errors["twin"][0]
    assert "bath_size" in errors["key"][0]
    assert "batch_size" in errors["key"][0]
    assert "'somewhere'" in errors["address"][0]
    assert away in errors["lonely"][0]
    assert "for 1 s" in errors["lonely"][0]
    assert "waiting for the control plane" in cluster.processes["lonely"].log_path.read_text()
    assert holder.alive()
    holder.popen.terminate()
    assert holder.wait() == 0


def test_end_of_stream_ends_a_job_without_rows(make_cluster, tmp_path):
    """An empty input is no error."""
    (tmp_path / "empty.jsonl").write_bytes(b"")
    cluster = make_cluster()
    cluster.start_control_plane("flow_faulty", {"input": tmp_path / "empty.jsonl"}, exit_when_finished=False)
    cluster.start_task_manager()
    cluster.start_task_manager()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end of the job")
    assert (status["state"], status["totals"]["events_in"]) == ("FINISHED", 0)


def test_listening_on_all_addresses_needs_one_to_tell(make_cluster, tmp_path, write_events):
    """Processes bind to 0.0.0.0 and tell each other 127.0.0.1; without that they do not start."""
    events = write_events(tmp_path / "events.jsonl", EVENTS)
    everywhere = {"taskManager.host": "0.0.0.0", "controlPlane.host": "0.0.0.0", "security.insecure": "true"}
    told = {"taskManager.advertised_host": "127.0.0.1", "controlPlane.advertised_host": "127.0.0.1"}
    cluster = make_cluster(settings={**everywhere, **told})
    untold = cluster.start("untold", "task_manager", [], {"taskManager.advertised_host": ""})
    control_plane = cluster.start_control_plane("flow_faulty", {"input": events, "parallelism": 2})
    managers = [cluster.start_task_manager() for _ in range(2)]
    ended = cluster.wait_ended()
    assert ended == {"control_plane": 0, "untold": 2, **{manager.name: 0 for manager in managers}}
    assert "taskManager.advertised_host" in error_lines(untold)[-1]
    assert f"register at 127.0.0.1:{cluster.grpc_port};" in control_plane.log_path.read_text()
    for manager in managers:
        assert f"listening on 127.0.0.1:{manager.port}" in manager.log_path.read_text()
