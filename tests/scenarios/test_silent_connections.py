"""What anybody on the machine can do: connections that say nothing, more than a process may have files open."""

import contextlib
import resource
import socket

import psutil
import pytest

from experiments.page_clusters import PageCluster

pytestmark = pytest.mark.scenario

CONNECTIONS, OF_OTHER_PORTS = 1_100, 300
LOG_BYTES_MAX = 1_000_000


@pytest.fixture
def many_files():
    """As many open files as the connections of this test need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * CONNECTIONS + 6 * OF_OTHER_PORTS + 500), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def listening(process):
    """Ports at which a process listens."""
    found = psutil.Process(process.popen.pid).net_connections("tcp")
    return {each.laddr.port for each in found if each.status == psutil.CONN_LISTEN}


def test_a_job_goes_on_beside_silent_connections(tmp_path, forks, many_files):
    with (
        PageCluster(tmp_path, task_managers=1, popen=forks.popen) as cluster,
        contextlib.ExitStack() as silent,
    ):
        cluster.run_job(events=100_000)
        pages = {int(cluster.status()["task_managers"][0]["http"].rpartition(":")[2]), cluster.http_port}
        ports = {port for process in cluster.processes.values() for port in listening(process)}
        # Of both processes: gRPC, HTTP, calls and questions; rows.
        assert len(ports) == 7
        for port in sorted(ports, key=lambda port: port in pages):
            for _ in range(CONNECTIONS if port in pages else OF_OTHER_PORTS):
                silent.enter_context(contextlib.closing(socket.create_connection(("127.0.0.1", port), 60)))
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
