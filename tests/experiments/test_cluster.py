import signal
import urllib.error

import pytest

from experiments.cluster import Cluster, ClusterError, free_port


def test_free_ports_differ():
    assert len({free_port() for _ in range(20)}) > 1


@pytest.mark.scenario
def test_waiting_ends_with_the_log_when_the_control_plane_does(tmp_path):
    with Cluster(tmp_path / "cluster") as cluster:
        process = cluster.start_control_plane("jobs.absent", {})
        with pytest.raises(
            ClusterError, match=r"the control plane ended while a status was awaited"
        ) as caught:
            cluster.wait_for(lambda status: False, "a status", 30)
        assert "jobs.absent" in str(caught.value)
        assert process.popen.returncode == 2
        assert cluster.wait_ended(5) == {"control_plane": 2}


@pytest.mark.scenario
def test_a_condition_that_never_holds_is_named(tmp_path):
    with Cluster(tmp_path) as cluster:
        cluster.start_control_plane("jobs.throughput", {"input": "x"})
        cluster.wait_for(lambda status: True, "a status")
        with pytest.raises(ClusterError, match=r"the moon did not come within 0\.2 s"):
            cluster.wait_for(lambda status: status["state"] == "MOON", "the moon", 0.2)
        with pytest.raises(ClusterError, match="not all processes ended"):
            cluster.wait_ended(0.2)


@pytest.mark.scenario
def test_stop_ends_processes_that_do_not_listen(tmp_path):
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
