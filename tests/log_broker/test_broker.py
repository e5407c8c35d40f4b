"""A broker's process, apart from being called: what its partitions share, and that one of them stops no other."""

import asyncio
import errno
import fcntl
import os

import pytest

from log_broker import broker as broker_module
from log_broker.broker import Broker
from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.partition import PartitionId
from weir.clock import SystemClock
from weir.errors import AddressInUseError, ConfigError
from weir.process.owned_directory import owned_directory
from weir.rpc import log_pb2

PARTITIONS = 16


def view_of(broker, *, epoch=1, leader=0, config=1, replicas=(1,), loss_epoch=0):
    names = [log_pb2.PartitionName(topic="wal", partition=number) for number in range(PARTITIONS)]
    members = {name: replica.machine.incarnation for name, replica in broker.replicas.items()}
    return log_pb2.ClusterView(
        topics=[
            log_pb2.TopicSettings(
                topic="wal",
                partitions=PARTITIONS,
                replication=1,
                durability="memory",
                retention_bytes=1 << 20,
            )
        ],
        partitions=[
            log_pb2.PartitionView(
                name=name,
                epoch=epoch,
                leader_id=leader,
                replica_ids=replicas,
                loss_epoch=loss_epoch,
                members=[
                    log_pb2.Member(
                        broker_id=1, incarnation=members.get(PartitionId(name.topic, name.partition), 0)
                    )
                ],
                config=config,
            )
            for name in names
        ],
    )


def with_broker(tmp_path, test):
    async def run():
        broker = Broker(1, tmp_path, SystemClock())
        try:
            broker.apply(view_of(broker))
            broker.reports()
            test(broker)
        finally:
            await broker.close()

    asyncio.run(run())


def test_the_newest_entries_of_all_partitions_together_have_a_bound(tmp_path):
    def test(broker):
        shares = [replica.log.recent_bytes_max for replica in broker.replicas.values()]
        assert len(shares) == PARTITIONS
        assert sum(shares) == broker_module._RECENT_BYTES_MAX
        # A replica that begins anew has no more.
        replica = broker.replicas[PartitionId("wal", 3)]
        replica.damaged(LogDamagedError("a flipped bit"))
        assert replica.log.recent_bytes_max == shares[0]

    with_broker(tmp_path, test)


@pytest.mark.parametrize(
    "error", [LogDamagedError("it is gone"), LogWriteError("it is full"), OSError("it is broken")]
)
def test_a_partition_that_cannot_begin_stops_no_other_one_and_says_so_once(tmp_path, caplog, error):
    def test(broker):
        broken = broker.replicas[PartitionId("wal", 3)]
        before = broken.machine.incarnation

        def fail(*_):
            raise error

        broken.lead = fail
        for _ in range(3):
            broker.apply(view_of(broker, leader=1))
            broker.reports()
        leading = [name for name, replica in broker.replicas.items() if replica.machine.leading_epoch]
        assert len(leading) == PARTITIONS - 1
        is_damaged = isinstance(error, LogDamagedError)
        assert (broken.machine.incarnation != before) == is_damaged
        if not is_damaged:
            assert caplog.text.count(str(error)) == 1

    with_broker(tmp_path, test)


def test_nothing_is_done_that_an_older_record_says(tmp_path):
    """A controller that was replaced, and has not noticed it, may tell an earlier set of replicas of the same epoch."""

    def test(broker):
        broker.apply(view_of(broker, leader=1))
        broker.apply(view_of(broker, leader=1, config=3))
        before = {name: replica.machine for name, replica in broker.replicas.items()}
        # A leader that counted by it would acknowledge what no majority has.
        broker.apply(view_of(broker, leader=1, config=2, replicas=(1, 2, 3)))
        assert {(machine.config, machine.replicas) for machine in before.values()} == {(3, 1)}
        # Nor is a replica deleted that was no one by then.
        broker.apply(view_of(broker, config=2, replicas=(2, 3)))
        assert {name: replica.machine for name, replica in broker.replicas.items()} == before
        # An old record that was put back, above all that brokers have promised.
        broker.apply(view_of(broker, epoch=2, config=1))
        broker.apply(view_of(broker, epoch=2, config=2, replicas=(2, 3)))
        assert not broker.replicas

    with_broker(tmp_path, test)


def test_a_loss_that_was_accepted_is_known_to_every_replica(tmp_path):
    def test(broker):
        broker.apply(view_of(broker, leader=1))
        machine = broker.replicas[PartitionId("wal", 0)].machine
        assert machine.commit_offset == 1
        broker.apply(view_of(broker, epoch=2, loss_epoch=2))
        assert machine.commit_offset == 0

    with_broker(tmp_path, test)


def without_locks(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def test_a_directory_has_one_broker(tmp_path, monkeypatch):
    with (
        owned_directory(tmp_path / "1", "broker"),
        pytest.raises(AddressInUseError, match="is in use by another broker"),
        owned_directory(tmp_path / "1", "broker"),
    ):
        pass
    with owned_directory(tmp_path / "1", "broker"):
        pass
    with monkeypatch.context() as patch:
        # As on a network's file system that knows no locks.
        patch.setattr(fcntl, "flock", without_locks)
        with (
            pytest.raises(ConfigError, match=r"--dir .*/1: No locks available; name another directory"),
            owned_directory(tmp_path / "1", "broker"),
        ):
            pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"--dir .*file/1: .*; name another directory"),
        owned_directory(tmp_path / "file" / "1", "broker"),
    ):
        pass
