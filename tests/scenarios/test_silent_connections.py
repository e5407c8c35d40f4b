"""What anybody on the machine can do: connections that say nothing, more than a process may have files open."""

import contextlib
import resource
import socket

import pytest

from experiments.page_clusters import PageCluster

pytestmark = pytest.mark.scenario

CONNECTIONS = 1_100
LOG_BYTES_MAX = 1_000_000


@pytest.fixture
def many_files():
    """As many open files as the connections of this test need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_job_goes_on_beside_silent_connections(tmp_path, forks, many_files):
    with (
        PageCluster(tmp_path, task_managers=1, popen=forks.popen) as cluster,
        contextlib.ExitStack() as silent,
    ):
        cluster.run_job(events=100_000)
        places = [cluster.status()["task_managers"][0]["http"], f"127.0.0.1:{cluster.http_port}"]
        for place in places:
            host, _, port = place.rpartition(":")
            for _ in range(CONNECTIONS):
                silent.enter_context(contextlib.closing(socket.create_connection((host, int(port)), 60)))
        before = cluster.status()
        after = cluster.wait_for(
            lambda status: status["totals"]["events_out"] > before["totals"]["events_out"] + 500,
            "rows after the flood",
        )
        assert (after["state"], after["restarts"]) == ("RUNNING", 0)
        for process in cluster.processes.values():
            text = process.log_path.read_text()
            assert "Too many open files" not in text
            assert len(text) < LOG_BYTES_MAX
