"""A broker is added, drained and replaced while producers run; leadership goes back to who is to have it."""

import re
import time

import pytest
from typer.testing import CliRunner

import weir.log
from experiments.log_check import check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_load import IDS_OF_A_PRODUCER, Load
from weir.console.log_commands import log_app
from weir.errors import ConfigError

pytestmark = pytest.mark.scenario

UNDER_WAY_MAX, FRESH = 300, 1_000
#: Between bursts: what is written is read and compared at the end.
PAUSE_S = 0.03


@pytest.fixture
def cluster(tmp_path):
    with LogCluster(tmp_path / "log", lease_ms=2_000) as cluster:
        yield cluster


def wait_for_more(load):
    before, until_s = len(load.acknowledged), time.monotonic() + 60
    while len(load.acknowledged) < before + FRESH:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def replicas_of(cluster):
    return [each.replica_ids for each in cluster.status().partitions]


def check(cluster, topic, load):
    load.stop()
    assert load.errors == []
    read = [(record.offset, record.id) for record in weir.log.Reader(cluster.addresses, topic=topic)]
    assert not check_history(load.acknowledged, read, IDS_OF_A_PRODUCER)
    cluster.wait_until_whole(topic)
    [replicas] = replicas_of(cluster)
    for number in replicas:
        stored = stored_ids(cluster.broker_directory(number) / f"{topic}-0")
        assert not check_history(load.acknowledged, stored, IDS_OF_A_PRODUCER)


def test_the_broker_that_leads_is_drained_and_then_a_dead_one_is_replaced_while_leaders_are_killed(cluster):
    weir.log.create_topic(cluster.addresses, "wal")
    load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX, pause_s=PAUSE_S).start()
    wait_for_more(load)
    leader = cluster.leader("wal")
    with pytest.raises(ConfigError, match=f"broker {leader} cannot be drained: .* start another"):
        weir.log.move_replicas(cluster.addresses, drain=leader)
    with pytest.raises(ConfigError, match=r"there is no broker 7: the brokers are \[1, 2, 3\]"):
        weir.log.move_replicas(cluster.addresses, drain=7)
    new = cluster.add()
    wait_for_more(load)
    result = CliRunner().invoke(log_app, ["drain", str(leader), "--brokers", cluster.addresses])
    assert (result.exit_code, result.stdout) == (0, "1 partitions have moved\n")
    [replicas] = replicas_of(cluster)
    assert new in replicas
    assert leader not in replicas
    wait_for_more(load)
    # It has deleted its own, and is not needed any more.
    cluster.wait_until_moved()
    assert not (cluster.broker_directory(leader) / "wal-0").exists()
    cluster.kill(leader)
    wait_for_more(load)
    leader = cluster.leader("wal")
    dead = next(number for number in replicas_of(cluster)[0] if number != leader)
    cluster.kill(dead)
    cluster.add()
    assert weir.log.move_replicas(cluster.addresses, drain=dead) == 1
    cluster.kill(leader)
    cluster.start(leader)
    cluster.wait_until_moved()
    wait_for_more(load)
    assert dead not in replicas_of(cluster)[0]
    check(cluster, "wal", load)


def test_a_new_broker_gets_its_share_and_leadership_goes_back_after_a_death(cluster):
    weir.log.create_topic(cluster.addresses, "wal", partitions=4, replication=2)
    cluster.wait_until_moved()
    new = cluster.add()
    result = CliRunner().invoke(log_app, ["balance", "--brokers", cluster.addresses])
    assert result.exit_code == 0
    assert re.fullmatch("[12] partitions have moved\n", result.stdout)
    cluster.wait_until_moved()
    replicas = replicas_of(cluster)
    assert sum(new in each for each in replicas) == 2
    assert {each[0] for each in replicas} == {1, 2, 3, new}
    cluster.kill(new)
    cluster.start(new)
    cluster.wait_until_moved()
    assert cluster.leader("wal", [each[0] for each in replicas].index(new)) == new


def test_what_a_broker_did_not_hold_is_not_deleted(cluster):
    """As with the folder of another broker, by a wrong flag."""
    weir.log.create_topic(cluster.addresses, "wal", replication=2)
    cluster.wait_until_moved()
    [replicas] = replicas_of(cluster)
    [other] = {1, 2, 3} - set(replicas)
    foreign = cluster.broker_directory(other) / "wal-0" / "precious"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    cluster.stop(other)
    cluster.start(other)
    cluster.wait_for_brokers(3)
    assert weir.log.move_replicas(cluster.addresses) == 0
    assert foreign.exists()
