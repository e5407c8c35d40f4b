"""Two control planes and a real etcd: one leads, the other waits, takes over and lets the job go on."""

import threading
import time

import pytest
import requests
from etcd3gw.client import Etcd3Client

from experiments.cluster import FINAL_STATES
from experiments.etcd_server import etcd_server
from experiments.ports import free_port
from experiments.soak import JOB
from experiments.soak_check import check_output, write_events
from weir.errors import CheckpointError
from weir.records.etcd_keeper import EtcdKeeper

pytestmark = pytest.mark.scenario


@pytest.fixture
def etcd(tmp_path):
    """The address of a server of this test's own."""
    with etcd_server(tmp_path) as url:
        yield url


def wait_until(condition, what, timeout_s=120):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not come"
        time.sleep(0.05)


def test_one_leads_and_only_it_writes(etcd):
    lost = []
    first, second = (
        EtcdKeeper([etcd], "/weir/job", lambda name=name: lost.append(name)) for name in ("1", "2")
    )
    first.lead()
    assert first.load() is None
    first.save(b"one")
    with pytest.raises(CheckpointError, match="another control plane leads"):
        second.save(b"two")
    first.close()
    second.lead()
    assert second.load() == b"one"
    second.save(b"two")
    with pytest.raises(CheckpointError, match="another control plane leads"):
        first.save(b"three")
    second.close()
    assert lost == []


def test_a_claim_whose_answer_was_lost_is_a_claim(etcd, monkeypatch):
    ask, answers = Etcd3Client.transaction, []

    def losing_the_first(client, transaction):
        answers.append(ask(client, transaction))
        if len(answers) == 1:
            raise requests.ConnectionError
        return answers[-1]

    monkeypatch.setattr(Etcd3Client, "transaction", losing_the_first)
    keeper = EtcdKeeper([etcd, etcd], "/weir/job", lambda: None)
    leading = threading.Thread(target=keeper.lead, daemon=True)
    leading.start()
    leading.join(20)
    try:
        assert not leading.is_alive()
        assert [bool(answer.get("succeeded")) for answer in answers] == [True, False]
        keeper.save(b"one")
        assert keeper.load_beside("history") is None
        keeper.save_beside("history", b"\x00two")
        assert (keeper.load(), keeper.load_beside("history")) == (b"one", b"\x00two")
    finally:
        keeper.close()


def test_no_etcd_is_one_clear_error():
    keeper = EtcdKeeper([f"127.0.0.1:{free_port()}"], "/weir/job", lambda: None)
    with pytest.raises(CheckpointError, match=r"no etcd endpoint answers .*controlPlane\.etcd_endpoints"):
        keeper.lead()


def test_a_second_control_plane_takes_over(make_cluster, etcd, tmp_path, release):
    settings = {
        "taskManager.operator_quota": 20,
        "controlPlane.checkpoint_interval_ms": 300,
        "controlPlane.restart_attempts": 20,
        "controlPlane.etcd_endpoints": etcd,
        # Shorter than the leader's lease: with a job, they wait longer.
        "taskManager.connect_timeout_s": 1,
    }
    cluster = make_cluster(settings=settings)
    events = write_events(tmp_path / "events.jsonl", 8_000, 300, 7)
    parameters = {"input": events, "output": tmp_path / "out", "rate": 500, "release": release}
    cluster.start_control_plane(JOB, parameters, exit_when_finished=False)
    cluster.wait_for(lambda _: True, "the first status")
    standby_port = free_port()
    for name in ("first", "second"):
        both = f"127.0.0.1:{cluster.grpc_port},127.0.0.1:{standby_port}"
        cluster.start(name, "task_manager", ["--port", str(free_port()), "--control-plane", both])
    before = cluster.wait_for(lambda status: (status["latest_checkpoint"] or 0) >= 2, "two checkpoints")
    leader = cluster.processes.pop("control_plane")
    cluster.grpc_port = standby_port
    standby = cluster.start_control_plane(JOB, parameters, exit_when_finished=False, name="standby")
    wait_until(lambda: "another control plane leads" in standby.log_path.read_text(), "the second one")
    leader.popen.kill()
    leader.popen.wait()
    for name in ("first", "second"):
        cluster.processes[name].wait_for_text(f"registered at the control plane 127.0.0.1:{standby_port}")
    latest = cluster.status()["latest_checkpoint"]
    status = cluster.wait_for(lambda status: status["latest_checkpoint"] > latest + 1, "a checkpoint")
    assert (status["job_id"], status["generation"]) == (before["job_id"], 1)
    release.touch()
    status = cluster.wait_for(lambda status: status["state"] in FINAL_STATES, "the end")
    assert (status["state"], status["cause"]) == ("FINISHED", "")
    check_output(events, tmp_path / "out")
