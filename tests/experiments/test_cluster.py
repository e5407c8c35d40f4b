import json
import signal
import subprocess
import threading
import urllib.error
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from experiments.cluster import Cluster
from experiments.ports import free_port
from experiments.processes import ClusterError, signals_later


def test_free_ports_differ():
    """Of 500 ports drawn by chance from some ten thousand, two would be the same in most cases."""
    assert len({free_port() for _ in range(500)}) == 500


def test_a_signal_is_handled_behind_the_block_that_it_would_interrupt():
    steps = []

    def interrupted():
        with signals_later():
            signal.raise_signal(signal.SIGINT)
            steps.append("whole block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["whole block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.scenario
def test_a_process_is_ended_although_a_signal_comes_while_it_is_started(tmp_path, monkeypatch):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    cluster = Cluster(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cluster.start_control_plane("jobs.throughput", {"input": "x"})
    process = cluster.processes["control_plane"]
    assert process.alive()
    cluster.stop()
    assert process.popen.returncode is not None


@pytest.mark.scenario
def test_waiting_ends_with_the_log_when_the_control_plane_does(tmp_path, forked):
    with Cluster(tmp_path / "cluster") as cluster:
        process = cluster.start_control_plane("jobs.absent", {})
        with pytest.raises(
            ClusterError, match=r"the control plane ended while a status was awaited"
        ) as caught:
            cluster.wait_for(lambda status: False, "a status", 30)
        assert "jobs.absent" in str(caught.value)
        assert process.popen.returncode == 2
        assert cluster.wait_ended(5) == {"control_plane": 2}


class _Foreign(BaseHTTPRequestHandler):
    """The control plane of somebody else."""

    def do_GET(self):
        body = json.dumps({"job": "foreign", "state": "CANCELLED"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.scenario
def test_who_took_a_documented_port_meanwhile_is_not_asked(tmp_path, forked):
    with Cluster(tmp_path, documented_ports=True) as cluster:
        with HTTPServer(("127.0.0.1", cluster.http_port), _Foreign) as foreign:
            threading.Thread(target=foreign.serve_forever).start()
            try:
                cluster.start_control_plane("jobs.throughput", {"input": "x"})
                status = cluster.wait_for(lambda status: True, "a status")
            finally:
                foreign.shutdown()
        assert status["state"] == "WAITING_FOR_TASK_MANAGERS"


@pytest.mark.scenario
def test_a_condition_that_never_holds_is_named(tmp_path, forked):
    with Cluster(tmp_path) as cluster:
        cluster.start_control_plane("jobs.throughput", {"input": "x"})
        cluster.wait_for(lambda status: True, "a status")
        with pytest.raises(ClusterError, match=r"the moon did not come within 0\.2 s"):
            cluster.wait_for(lambda status: status["state"] == "MOON", "the moon", 0.2)
        with pytest.raises(ClusterError, match="not all processes ended"):
            cluster.wait_ended(0.2)


@pytest.mark.scenario
def test_stop_ends_processes_that_do_not_listen(tmp_path, forked):
    cluster = Cluster(tmp_path)
    process = cluster.start_control_plane("jobs.throughput", {"input": "x"})
    cluster.wait_for(lambda status: True, "a status")
    assert process.peak_rss_bytes > 10 << 20
    assert process.cpu_s > 0
    cluster.stop()
    assert process.popen.returncode == 3
    assert cluster.status() is None
    with pytest.raises(urllib.error.URLError):
        cluster.http("GET", "/status")
    assert process.popen.returncode != -signal.SIGKILL
