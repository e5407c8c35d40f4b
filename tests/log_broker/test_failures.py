"""Brokers as processes that die and lose bytes: what was acknowledged is read once, in order."""

import pytest

import weir.log
from experiments.log_check import check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_load import IDS_OF_A_PRODUCER, Load
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario

#: More answers than a producer has records under way: some are to records that were sent after a failure.
UNDER_WAY_MAX, FRESH = 300, 1_000
#: Between bursts: what is written is read and compared at the end.
PAUSE_S = 0.03


def wait_for_more(load):
    before = len(load.acknowledged)
    wait_for(lambda: len(load.acknowledged) > before + FRESH)


def flip_a_bit(directory):
    (segment,) = directory.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)


def trouble_of(cluster, topic, number):
    partition = next(each for each in cluster.status().partitions if each.topic == topic)
    return next(each.trouble for each in partition.replicas if each.broker_id == number)


def check(cluster, topic, load):
    assert load.errors == []
    reader = weir.log.Reader(cluster.addresses, topic=topic)
    read = [(record.offset, record.id) for record in reader]
    assert not check_history(load.acknowledged, read, IDS_OF_A_PRODUCER)
    cluster.wait_until_whole(topic)
    if topic == "memory":
        return
    for number in cluster.ports:
        stored = stored_ids(cluster.broker_directory(number) / f"{topic}-0")
        assert not check_history(load.acknowledged, stored, IDS_OF_A_PRODUCER)


def test_leaders_are_killed_under_load_and_nothing_acknowledged_is_lost_doubled_or_out_of_order(tmp_path):
    """Of each durability, and one of them finds a flipped bit when it comes back: it costs nothing, and is told."""
    with LogCluster(tmp_path / "log", lease_ms=2_000) as cluster:
        loads = {}
        for number, topic in enumerate(("os", "memory", "fsync"), 1):
            weir.log.create_topic(cluster.addresses, topic, durability=topic, retention_bytes=1 << 30)
            loads[topic] = Load(
                cluster.addresses, topic, number, under_way_max=UNDER_WAY_MAX, pause_s=PAUSE_S
            ).start()
        for topic, load in loads.items():
            wait_for_more(load)
            leader = cluster.leader(topic)
            cluster.kill(leader)
            wait_for_more(load)
            if topic == "os":
                flip_a_bit(cluster.broker_directory(leader) / "os-0")
            cluster.start(leader)
            for each in loads:
                cluster.wait_until_whole(each, is_level=False)
            if topic == "os":
                assert "another checksum than was written" in trouble_of(cluster, topic, leader)
        for load in loads.values():
            load.stop()
        for topic, load in loads.items():
            check(cluster, topic, load)
