"""Brokers as processes that die, stand still and lose bytes: what was acknowledged is read once, in order."""

import pytest

import weir.log
from experiments.log_check import check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_load import IDS_OF_A_PRODUCER, Load
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario

#: More answers than a producer has records under way: some are to records that were sent after a failure.
UNDER_WAY_MAX, FRESH = 300, 1_000


@pytest.fixture
def cluster(tmp_path):
    with LogCluster(tmp_path / "log", lease_ms=2_000) as cluster:
        yield cluster


def read_all(cluster, topic):
    reader = weir.log.Reader(cluster.addresses, topic=topic)
    return [(record.offset, record.id) for record in reader]


def answers(loads):
    return sum(len(load.acknowledged) for load in loads)


def check(cluster, topic, loads):
    for load in loads:
        load.stop()
        assert load.errors == []
    acknowledged = {key: value for load in loads for key, value in load.acknowledged.items()}
    assert acknowledged
    assert not check_history(acknowledged, read_all(cluster, topic), IDS_OF_A_PRODUCER)
    cluster.wait_until_whole(topic)
    for number in cluster.ports:
        stored = stored_ids(cluster.broker_directory(number) / f"{topic}-0")
        assert not check_history(acknowledged, stored, IDS_OF_A_PRODUCER)


def test_leaders_are_killed_under_load_and_nothing_acknowledged_is_lost_doubled_or_out_of_order(cluster):
    weir.log.create_topic(cluster.addresses, "wal")
    loads = [Load(cluster.addresses, "wal", number, under_way_max=UNDER_WAY_MAX).start() for number in (1, 2)]
    for _ in range(4):
        before = answers(loads)
        wait_for(lambda before=before: answers(loads) > before + FRESH)
        leader = cluster.leader("wal")
        cluster.kill(leader)
        before = answers(loads)
        wait_for(lambda before=before: answers(loads) > before + 2 * FRESH)
        cluster.start(leader)
        cluster.wait_until_whole("wal", is_level=False)
    check(cluster, "wal", loads)


def test_a_leader_that_stood_still_acknowledges_nothing_when_it_comes_back(cluster):
    weir.log.create_topic(cluster.addresses, "wal")
    load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX).start()
    wait_for(lambda: len(load.acknowledged) > FRESH)
    leader = cluster.leader("wal")
    cluster.pause(leader)
    before = len(load.acknowledged)
    wait_for(lambda: len(load.acknowledged) > before + 2 * FRESH)
    cluster.resume(leader)
    assert cluster.leader("wal") != leader
    check(cluster, "wal", [load])


def test_a_flipped_bit_on_one_replica_costs_nothing_and_is_told(cluster):
    weir.log.create_topic(cluster.addresses, "wal")
    load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX).start()
    wait_for(lambda: len(load.acknowledged) > FRESH)
    load.stop()
    cluster.wait_until_whole("wal")
    broken = cluster.leader("wal")
    cluster.kill(broken)
    (segment,) = (cluster.broker_directory(broken) / "wal-0").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    cluster.start(broken)
    cluster.wait_until_whole("wal")
    (partition,) = cluster.status().partitions
    (replica,) = [each for each in partition.replicas if each.broker_id == broken]
    assert "another checksum than was written" in replica.trouble
    check(cluster, "wal", [load])


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_each_durability_survives_the_death_of_a_leader(cluster, durability):
    weir.log.create_topic(cluster.addresses, "wal", durability=durability, retention_bytes=1 << 30)
    load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX).start()
    wait_for(lambda: len(load.acknowledged) > FRESH)
    leader = cluster.leader("wal")
    cluster.kill(leader)
    before = len(load.acknowledged)
    wait_for(lambda: len(load.acknowledged) > before + 2 * FRESH)
    cluster.start(leader)
    load.stop()
    assert load.errors == []
    assert not check_history(load.acknowledged, read_all(cluster, "wal"), IDS_OF_A_PRODUCER)
    cluster.wait_until_whole("wal")
