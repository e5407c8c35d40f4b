"""What each durability loses, and when: lines of the table of docs/log.md; those of ``acks`` are in ``test_acks``."""

import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import weir.log
from experiments.log_cluster import LogCluster
from log_broker.storage.places import DirectoryPlace
from tests.log_broker.waiting import wait_for
from weir.console.log_commands import log_app
from weir.errors import ConfigError, WeirError

pytestmark = pytest.mark.scenario

TOPICS = ("fsync", "os", "memory")
IDS = list(range(100))


def read_ids(cluster, topic):
    return [record.id for record in weir.log.Reader(cluster.addresses, topic=topic)]


def wait_until_whole(cluster):
    for topic in TOPICS:
        cluster.wait_until_whole(topic)


def lose_what_is_not_kept(cluster, number, *, has_disk=False):
    """Of a broker that is killed: its disk with "fsync", what its machine had not written with "os"."""
    directory = cluster.broker_directory(number)
    if not has_disk:
        shutil.rmtree(directory / "fsync-0")
    place = DirectoryPlace(directory / "os-0")
    document = place.load("replica.json")
    # The machine has another one after it went down.
    place.save("replica.json", document | {"boot_id": "another"})


def partition_of(cluster, topic):
    (found,) = [each for each in weir.log.log_status(cluster.addresses).partitions if each.topic == topic]
    return found


def is_left_alone(address):
    """Whether only this broker is there, and has told what it has."""
    try:
        status = weir.log.log_status(address)
    except WeirError:
        return False
    return len(status.brokers) == 1 and all(len(each.replicas) == 1 for each in status.partitions)


def create_topics(cluster):
    for topic in TOPICS:
        weir.log.create_topic(
            cluster.addresses,
            topic,
            durability=topic,
            retention_bytes=1 << 26 if topic == "memory" else 0,
        )
        with weir.log.Producer(cluster.addresses, topic=topic, acks="all") as producer:
            producer.send_many(IDS, [b"x"] * len(IDS)).result()
    wait_until_whole(cluster)


def check_that_a_minority_loses_nothing(cluster):
    cluster.kill(1)
    lose_what_is_not_kept(cluster, 1)
    cluster.start(1)
    cluster.wait_for_brokers(3)
    wait_until_whole(cluster)
    assert [read_ids(cluster, topic) for topic in TOPICS] == [IDS] * 3
    assert "the machine went down before all was on disk" in next(
        each.trouble for each in partition_of(cluster, "os").replicas if each.broker_id == 1
    )
    with pytest.raises(ConfigError, match="3 of 3 replicas are there with all that they had"):
        weir.log.accept_loss(cluster.addresses, "os", 0, 1)


def wait_until_all_have_told(cluster):
    cluster.wait_for_brokers(3)
    wait_for(lambda: all(len(partition_of(cluster, topic).replicas) == 3 for topic in TOPICS))


def lose_a_majority(cluster):
    """All three machines, and the disks of two, the leader among them, whoever that is."""
    for number in cluster.ports:
        cluster.kill(number)
    for number in cluster.ports:
        lose_what_is_not_kept(cluster, number, has_disk=number == 3)
    for number in cluster.ports:
        cluster.start(number)
    wait_until_all_have_told(cluster)


def salvage(cluster, number):
    """What was not synced is whole here, and nobody had to sync it: nothing was deleted."""
    cluster.kill(number)
    command = [sys.executable, "-m", "weir", "log", "broker", "--salvage", "os/0"]
    command += ["--dir", str(cluster.broker_directory(number))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stdout.startswith("os/0: whole up to offset"), result.stderr
    cluster.start(number)
    wait_until_all_have_told(cluster)


def accept_losses(cluster):
    # Broker 3 has nothing of it.
    with pytest.raises(ConfigError, match="broker 2 has more, up to offset"):
        weir.log.accept_loss(cluster.addresses, "os", 0, 3)
    for topic in TOPICS:
        assert partition_of(cluster, topic).leader_id == 0
        with pytest.raises(WeirError, match="nobody leads"):
            weir.log.Producer(cluster.addresses, topic=topic, delivery_timeout_s=0.1)
        broker = 2 if topic == "os" else 3
        command = ["accept-loss", f"{topic}/0", str(broker), "--brokers", cluster.addresses]
        result = CliRunner().invoke(log_app, command)
        assert result.exit_code == 0, result.output
        assert f"{topic}/0: broker {broker} leads with what it has" in result.stdout
    wait_for(lambda: all(len(partition_of(cluster, topic).replica_ids) == 3 for topic in TOPICS))
    wait_until_whole(cluster)
    assert [read_ids(cluster, topic) for topic in TOPICS] == [IDS, IDS, []]


def check_that_it_goes_on_as_before(cluster):
    for topic in TOPICS:
        with weir.log.Producer(cluster.addresses, topic=topic) as producer:
            producer.send(100, b"x").result()
    cluster.kill(3)
    assert [read_ids(cluster, topic) for topic in TOPICS] == [[*IDS, 100], [*IDS, 100], [100]]


def accept_a_loss_that_one_broker_does_not_hear_of(cluster):
    """Broker 1 is cut off, and knows more to be committed than what is left: it need not be started again."""
    cluster.pause(1)
    cluster.kill(2)
    lose_what_is_not_kept(cluster, 2)
    cluster.start(2)
    left = f"127.0.0.1:{cluster.ports[2]}"
    wait_for(lambda: is_left_alone(left))
    assert weir.log.accept_loss(left, "os", 0, 2) == 0
    # The answer was lost.
    assert weir.log.accept_loss(left, "os", 0, 2) == 0
    cluster.resume(1)
    cluster.start(3)
    cluster.wait_for_brokers(3)
    wait_for(lambda: len(partition_of(cluster, "os").replica_ids) == 3)
    cluster.wait_until_whole("os")
    assert read_ids(cluster, "os") == []


def test_a_minority_loses_nothing_and_a_majority_is_an_operators_decision(tmp_path):
    with LogCluster(tmp_path / "log") as cluster:
        create_topics(cluster)
        check_that_a_minority_loses_nothing(cluster)
        lose_a_majority(cluster)
        salvage(cluster, 2)
        accept_losses(cluster)
        check_that_it_goes_on_as_before(cluster)
        accept_a_loss_that_one_broker_does_not_hear_of(cluster)
