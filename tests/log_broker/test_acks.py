"""What an acknowledgement of each kind says, and what it does not: the table of docs/log.md."""

import itertools
import time

import pytest

import weir.log
from experiments.log_cluster import LogCluster
from tests.log_broker.waiting import wait_for

pytestmark = pytest.mark.scenario


NAMES = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    # Brokers that stand still for a while are not replaced.
    with LogCluster(tmp_path_factory.mktemp("log"), lease_ms=20_000) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster):
    name = next(NAMES)
    weir.log.create_topic(cluster.addresses, name)
    return name


def followers(cluster, topic):
    leader = cluster.leader(topic)
    return leader, [number for number in cluster.ports if number != leader]


def read_ids(cluster, topic):
    return [record.id for record in weir.log.Reader(cluster.addresses, topic=topic)]


def test_all_needs_a_majority_and_one_slow_follower_holds_nobody_up(cluster, topic):
    _, (first, second) = followers(cluster, topic)
    with weir.log.Producer(cluster.addresses, topic=topic, delivery_timeout_s=2) as producer:
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
    ids = read_ids(cluster, topic)
    assert ids[:2] == [1, 2]
    assert ids.count(3) <= 1
    assert ids[-1] == 4


def test_what_only_the_leader_has_acknowledged_dies_with_it(cluster, topic):
    leader, others = followers(cluster, topic)
    with weir.log.Producer(cluster.addresses, topic=topic, acks="all") as producer:
        producer.send(1, b"x").result()
    for number in others:
        cluster.pause(number)
    with weir.log.Producer(f"127.0.0.1:{cluster.ports[leader]}", topic=topic, acks=1) as producer:
        assert producer.send(2, b"x").result() > 0
    cluster.kill(leader)
    for number in others:
        cluster.resume(number)
    wait_for(lambda: cluster.leader(topic) in others)
    assert read_ids(cluster, topic) == [1]
    cluster.start(leader)
    cluster.wait_for_brokers(3)


def test_what_nobody_has_confirmed_dies_with_the_leader_or_with_its_producer(cluster, topic):
    leader, others = followers(cluster, topic)
    elsewhere = ",".join(f"127.0.0.1:{cluster.ports[number]}" for number in others)
    with weir.log.Producer(elsewhere, topic=topic, acks=0) as producer:
        assert producer.send(1, b"x").result() == -1
        wait_for(lambda: read_ids(cluster, topic) == [1])
        cluster.pause(leader)
        assert producer.send(2, b"x").result(30) == -1
    cluster.kill(leader)
    wait_for(lambda: cluster.leader(topic) in others)
    assert read_ids(cluster, topic) == [1]
    # Without any broker, a record that waits for others has its time, too.
    with weir.log.Producer(elsewhere, topic=topic, delivery_timeout_s=1) as producer:
        producer.send(3, b"x").result()
        # This is the last test of the file.
        for number in others:
            cluster.kill(number)
        wait_for(lambda: "does not answer" in producer._link.complaint)
        with pytest.raises(
            (weir.log.LogRejectedError, weir.log.LogUnknownError), match="within the delivery timeout"
        ):
            producer.send(4, b"x").result(30)
