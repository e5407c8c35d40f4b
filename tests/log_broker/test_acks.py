"""What an acknowledgement of each kind says, and what it does not: the table of docs/log.md."""

import time

import pytest

import weir.log
from experiments.log_cluster import LogCluster
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario


@pytest.fixture
def cluster(tmp_path):
    # Brokers that stand still for a while are not replaced.
    with LogCluster(tmp_path / "log", lease_ms=20_000) as cluster:
        weir.log.create_topic(cluster.addresses, "wal")
        yield cluster


def followers(cluster):
    leader = cluster.leader("wal")
    return leader, [number for number in cluster.ports if number != leader]


def read_ids(cluster):
    return [record.id for record in weir.log.Reader(cluster.addresses, topic="wal")]


def test_all_needs_a_majority_and_one_slow_follower_holds_nobody_up(cluster):
    _, (first, second) = followers(cluster)
    with weir.log.Producer(cluster.addresses, topic="wal", delivery_timeout_s=2) as producer:
        producer.send(1, b"x").result()
        cluster.pause(first)
        producer.send(2, b"x").result()
        cluster.pause(second)
        with pytest.raises(weir.log.LogUnknownError, match="not known to be written"):
            producer.send(3, b"x").result()
        cluster.resume(first)
        cluster.resume(second)
        until_s = time.monotonic() + 30
        while True:
            # The producer takes its id over first, so that nothing of the third record comes later.
            try:
                producer.send(4, b"x").result()
                break
            except (weir.log.LogUnknownError, weir.log.LogRejectedError):
                # Rejected: the leader is busy, too, and did not answer in time.
                assert time.monotonic() < until_s
    ids = read_ids(cluster)
    assert ids[:2] == [1, 2]
    assert ids.count(3) <= 1
    assert ids[-1] == 4


def test_what_only_the_leader_has_acknowledged_dies_with_it(cluster):
    leader, others = followers(cluster)
    with weir.log.Producer(cluster.addresses, topic="wal", acks="all") as producer:
        producer.send(1, b"x").result()
    for number in others:
        cluster.pause(number)
    with weir.log.Producer(f"127.0.0.1:{cluster.ports[leader]}", topic="wal", acks=1) as producer:
        assert producer.send(2, b"x").result() > 0
    cluster.kill(leader)
    for number in others:
        cluster.resume(number)
    wait_for(lambda: cluster.leader("wal") in others)
    assert read_ids(cluster) == [1]


def test_what_nobody_has_confirmed_dies_with_the_leader_or_with_its_producer(cluster):
    leader, others = followers(cluster)
    elsewhere = ",".join(f"127.0.0.1:{cluster.ports[number]}" for number in others)
    with weir.log.Producer(elsewhere, topic="wal", acks=0) as producer:
        assert producer.send(1, b"x").result() == -1
        wait_for(lambda: read_ids(cluster) == [1])
        cluster.pause(leader)
        assert producer.send(2, b"x").result(30) == -1
    cluster.kill(leader)
    wait_for(lambda: cluster.leader("wal") in others)
    assert read_ids(cluster) == [1]
    # Without any broker, a record that waits for others has its time, too.
    with weir.log.Producer(elsewhere, topic="wal", delivery_timeout_s=1) as producer:
        producer.send(3, b"x").result()
        for number in others:
            cluster.kill(number)
        wait_for(lambda: "does not answer" in producer._link.complaint)
        with pytest.raises(
            (weir.log.LogRejectedError, weir.log.LogUnknownError), match="within the delivery timeout"
        ):
            producer.send(4, b"x").result(30)
