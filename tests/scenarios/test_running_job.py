"""A job that runs: its pages, metrics, watermarks and latencies, and cancelling it."""

import re
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from experiments.cluster import Cluster
from experiments.ports import free_port

pytestmark = pytest.mark.scenario

BATCH_TIMEOUT_MS = 10
TRICKLE_EVENTS = 75


class PushGateway(HTTPServer):
    """Keeps the last body pushed to each path."""

    def __init__(self):
        self.bodies = {}
        super().__init__(("127.0.0.1", 0), PushHandler)


class PushHandler(BaseHTTPRequestHandler):
    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies[self.path] = body.decode()
        self.send_response(200)
        self.end_headers()

    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def gateway():
    with PushGateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def running(tmp_path_factory, environment, write_events, gateway, forks):
    """The trickle job, with metrics; it runs until it is cancelled."""
    directory = tmp_path_factory.mktemp("running")
    events = write_events(directory / "events.jsonl", 100_000)
    settings = {
        "controlPlane.idle_timeout_ms": 300,
        "controlPlane.watermark_interval": 0.1,
        "controlPlane.out_of_order_grace_period": 0.5,
        "taskManager.batch_timeout_ms": BATCH_TIMEOUT_MS,
        "taskManager.operator_quota": 6,
        "prometheus.enabled": "true",
        "prometheus.push_enabled": "true",
        "prometheus.pushgateway_port": gateway.server_port,
        "prometheus.push_interval_ms": 200,
        "prometheus.job_name": "scenario",
    }
    with Cluster(
        directory / "cluster", environment=environment, settings=settings, popen=forks.popen
    ) as cluster:
        cluster.zout = directory / "zout"
        parameters = {"input": events, "output": cluster.zout, "trickle_events": TRICKLE_EVENTS}
        cluster.start_control_plane("flow_trickle", parameters, exit_when_finished=False)
        cluster.metrics_ports = [free_port(), free_port()]
        for port in cluster.metrics_ports:
            arguments = ["--port", str(free_port()), "--prometheus-port", str(port)]
            arguments += ["--control-plane", f"127.0.0.1:{cluster.grpc_port}"]
            cluster.start(f"task_manager_{port}", "task_manager", arguments)
        cluster.wait_for(lambda status: status["state"] == "RUNNING", "the running job")
        yield cluster


def subtasks(status, name):
    return next(stage["subtasks"] for stage in status["stages"] if name in stage["name"])


def test_an_idle_source_does_not_hold_back_watermarks(running):
    """The idle source sends its second event only after 1,000 s."""
    status = running.wait_for(
        lambda status: all(item["watermark_ms"] for item in subtasks(status, "both_count")),
        "the first watermark",
    )
    first_ms = min(item["watermark_ms"] for item in subtasks(status, "both_count"))
    running.wait_for(
        lambda status: all(item["watermark_ms"] > first_ms + 1500 for item in subtasks(status, "both_count")),
        "1.5 s of event time",
    )
    status = running.status()
    assert [item["records_out"] for item in subtasks(status, "idle")] == [1]
    assert abs(status["totals"]["last_event_ms"] - subtasks(status, "both_count")[0]["watermark_ms"]) < 10_000


def test_watermarks_are_shown_of_each_channel_with_their_lag(running):
    def has_all(status):
        return all(
            any(channel["is_idle"] for channel in item["input_watermarks"])
            and any(channel["watermark_ms"] for channel in item["input_watermarks"])
            for item in subtasks(status, "both")
        )

    status = running.wait_for(has_all, "an idle channel, and one with a watermark")
    [both] = subtasks(status, "both")
    producers = {stage["name"]: stage["stage"] for stage in status["stages"]}
    idle, busy = both["input_watermarks"]
    assert [idle["stage"], busy["stage"]] == [producers["idle"], producers["busy"]]
    assert (idle["is_idle"], busy["is_idle"]) == (True, False)
    assert -5_000 < busy["watermark_lag_ms"] < 60_000
    assert both["watermark_lag_ms"] >= busy["watermark_lag_ms"]


def test_a_source_waits_for_one_of_its_group_that_is_far_behind(running):
    def apart(status):
        [far], [near] = subtasks(status, "far"), subtasks(status, "near")
        return far["is_held_back"] and near["records_in"] > 60 and far["records_in"] - near["records_in"]

    [far] = subtasks(running.wait_for(apart, "a source that is held back"), "far")
    # What is decoded at a time leaves at once.
    ahead = far["records_in"]
    running.wait_for(
        lambda status: subtasks(status, "far")[0]["watermark_ms"] is not None,
        "the watermark of what it has read",
    )
    assert ahead < 60_000, "of 100,000 that it would have read otherwise"


def test_single_events_leave_within_the_batch_timeout(running):
    """Of the fastest five: the rest shows how busy the machine is, and is measured by the benchmark."""
    running.wait_for(
        lambda status: {item["state"] for item in subtasks(status, "out")} == {"FINISHED"}, "the trickle"
    )
    files = [path for path in running.zout.glob("trickle-*.txt") if not path.is_symlink()]
    latencies_ms = sorted(
        float(line.split(",")[1]) for path in files for line in path.read_text().splitlines()
    )
    assert len(latencies_ms) == TRICKLE_EVENTS
    assert latencies_ms[4] < BATCH_TIMEOUT_MS + 10, latencies_ms


def test_status_of_a_running_job(running):
    status = running.status()
    assert status["state"] == "RUNNING"
    assert status["totals"]["events_in"] > 0
    assert status["totals"]["events_per_second"] > 0
    # A source that is not paced may be a moment faster than the control plane is told.
    assert status["started_ms"] <= status["totals"]["first_event_ms"] + 100
    assert status["totals"]["first_event_ms"] <= status["totals"]["last_event_ms"]
    assert status["ended_ms"] is None
    assert sorted(item["subtasks"] for item in status["task_managers"]) == [4, 5]
    # The lease of these tests.
    assert all(0 <= item["heartbeat_age_ms"] < 20_000 for item in status["task_managers"])
    assert {item["state"] for item in subtasks(status, "busy")} == {"RUNNING"}
    for stage in status["stages"]:
        for item in stage["subtasks"]:
            ratios = item["busy_ratio"] + item["idle_ratio"] + item["backpressured_ratio"]
            assert 0 <= ratios <= 1.001


def page(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        return reply.read().decode()


def check_metrics(text):
    found = re.findall(r"^weir_subtask_records_in_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    assert found, text[:500]
    assert all('job="trickle"' in labels for labels, _ in found)
    return sum(float(value) for _, value in found)


def test_metrics_pages_of_task_managers(running):
    assert sum(check_metrics(page(port)) for port in running.metrics_ports) > 0
    pattern = r"^weir_latency_seconds_count\{.*\} (\S+)$"
    deadline_s = time.monotonic() + 60
    while not any(float(n) for port in running.metrics_ports for n in re.findall(pattern, page(port), re.M)):
        assert time.monotonic() < deadline_s, "no row reached a sink and was counted"
        time.sleep(0.05)


def test_metrics_reach_the_pushgateway(running, gateway):
    deadline_s = time.monotonic() + 120
    while len(gateway.bodies) < 2 or sum(map(check_metrics, list(gateway.bodies.values()))) == 0:
        assert time.monotonic() < deadline_s, "no push of both with rows within 120 s"
        time.sleep(0.05)
    assert all(path.startswith("/metrics/job/scenario/instance/127.0.0.1") for path in gateway.bodies)


def test_cancel(running):
    """Last in this file: it ends the job, and not the processes."""
    code, body = running.http("POST", "/cancel")
    assert (code, body["accepted"]) == (202, True)
    status = running.wait_for(lambda status: status["state"] == "CANCELLED", "the end of the job")
    assert status["cause"] == ""
    code, body = running.http("POST", "/cancel")
    assert code == 409
    states = {item["state"] for stage in status["stages"] for item in stage["subtasks"]}
    assert states == {"FINISHED", "CANCELED"}
    assert all(process.alive() for process in running.processes.values())
