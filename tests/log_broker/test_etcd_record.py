"""Controllers whose record is in a real etcd: one leads, and the other takes over while producers go on."""

import base64
import json
import signal
import subprocess
import sys
import urllib.request

import pytest

import weir.log
from experiments.etcd_server import etcd_server
from experiments.log_check import check_history
from experiments.log_cluster import STANDBY, LogCluster
from experiments.log_load import Load
from experiments.ports import free_port, is_free
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario

FRESH = 500


def _goes_on(load):
    before = len(load.acknowledged)
    wait_for(lambda: len(load.acknowledged) > before + FRESH)


def _replace_leader(cluster, load):
    """Kill the leader, which only a controller can replace, and start it again."""
    leader = cluster.leader("wal")
    cluster.kill(leader)
    wait_for(lambda: cluster.leader("wal") != leader)
    _goes_on(load)
    cluster.start(leader)
    cluster.wait_until_whole("wal", is_level=False)


def _says(cluster, number, text):
    return text in cluster.log_path(number).read_text()


def test_a_second_controller_takes_over_from_one_that_dies_and_from_one_that_sleeps(tmp_path):
    with (
        etcd_server(tmp_path) as etcd,
        LogCluster(tmp_path / "log", etcd=etcd.removeprefix("http://")) as cluster,
    ):
        weir.log.create_topic(cluster.addresses, "wal", segment_bytes=1 << 20)
        cluster.start(STANDBY)
        wait_for(lambda: _says(cluster, STANDBY, "another controller of the log leads"))
        load = Load(cluster.addresses, "wal", 1, under_way_max=300, pause_s=0.03).start()
        _goes_on(load)
        cluster.kill(0)
        wait_for(lambda: _says(cluster, STANDBY, "listening on"))
        cluster.wait_for_brokers(3)
        _replace_leader(cluster, load)
        # The first one waits, and the second one sleeps.
        cluster.start(0)
        wait_for(lambda: _says(cluster, 0, "another controller of the log leads"))
        cluster.pause(STANDBY)
        wait_for(lambda: cluster.log_path(0).read_text().count("listening on") == 2)
        cluster.wait_for_brokers(3)
        _replace_leader(cluster, load)
        weir.log.create_topic(cluster.addresses, "more")
        # Awake, it has nothing to say any more.
        cluster.resume(STANDBY)
        assert cluster.exit_code(STANDBY) == 1
        assert _says(cluster, STANDBY, "another controller may lead") or _says(
            cluster, STANDBY, "another controller of the log leads"
        )
        assert not _says(cluster, STANDBY, "Traceback")
        # A controller that leads says so, also while nothing changes.
        for number in cluster.ports:
            assert cluster.log_path(number).read_text().count("it is silent") <= 1
        _goes_on(load)
        load.stop()
        assert load.errors == []
        cluster.wait_until_whole("wal")
        read = [(record.offset, record.id) for record in weir.log.Reader(cluster.addresses, topic="wal")]
        assert not check_history(load.acknowledged, read)
        assert {each.topic for each in weir.log.log_status(cluster.addresses).partitions} == {"wal", "more"}


def _keys(etcd, prefix):
    """How many keys begin so, as etcd says itself."""
    first, behind = (
        base64.b64encode(text.encode()).decode() for text in (prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))
    )
    asked = json.dumps({"key": first, "range_end": behind, "count_only": True}).encode()
    with urllib.request.urlopen(f"{etcd}/v3/kv/range", data=asked, timeout=10) as reply:
        return int(json.load(reply).get("count", 0))


def test_a_log_of_one_machine_has_its_record_in_etcd(tmp_path):
    port = next(port for port in iter(free_port, 0) if all(map(is_free, range(port - 1, port + 1))))
    with etcd_server(tmp_path) as etcd:
        command = [sys.executable, "-m", "weir", "log", "start", "--brokers", "1", "--port", str(port)]
        command += ["--http-port", "0", "--dir", tmp_path / "log", "--name", "mine"]
        command += ["--etcd", etcd.removeprefix("http://")]
        with open(tmp_path / "output.txt", "ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            # It waits for those that have just been started.
            weir.log.create_topic(f"127.0.0.1:{port}", "wal", replication=1)
            with weir.log.Producer(f"127.0.0.1:{port}", topic="wal") as producer:
                assert producer.send(1, b"data").result() >= 0
            assert _keys(etcd, "/weir-log/mine") > 0
            assert not (tmp_path / "log" / "controller").exists()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, (tmp_path / "output.txt").read_text()
