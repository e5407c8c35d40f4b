"""Brokers whose disks are full: they refuse clearly, lose nothing acknowledged, and go on once there is room."""

import itertools

import pytest

import weir.log
from experiments.log_check import check_history, stored_ids
from experiments.log_cluster import LogCluster
from experiments.log_load import IDS_OF_A_PRODUCER, Load
from experiments.small_disk import NoSmallDiskError, SmallDisk
from tests.log_broker.waiting import wait_for
from weir.errors import WeirError

pytestmark = pytest.mark.scenario

FRESH, UNDER_WAY_MAX = 1_000, 300


@pytest.fixture
def disks(tmp_path):
    """A file system of its own for each broker, by number."""
    found = {}
    try:
        for number in (1, 2, 3):
            found[number] = SmallDisk(tmp_path / "log" / str(number), 256 << 20)
        yield found
    except NoSmallDiskError as error:
        pytest.skip(str(error))
    finally:
        for disk in found.values():
            disk.close()


def test_full_disks_refuse_clearly_and_heal(tmp_path, disks):
    with LogCluster(tmp_path / "log") as cluster:
        weir.log.create_topic(cluster.addresses, "wal", segment_bytes=1 << 20)
        load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX).start()
        wait_for(lambda: len(load.acknowledged) > FRESH)
        leader = cluster.leader("wal")
        follower = next(number for number in cluster.ports if number != leader)
        # A majority has room.
        disks[follower].fill()
        before = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > before + 2 * FRESH)
        # Nobody has.
        for disk in disks.values():
            disk.fill()

        # Each is another producer, of whose records some may be written: they are none of those before them.
        producers = itertools.count(2)

        def is_refused_clearly():
            first = next(producers) * IDS_OF_A_PRODUCER
            with weir.log.Producer(cluster.addresses, topic="wal", delivery_timeout_s=2) as producer:
                ticket = producer.send_many(range(first, first + 10), [bytes(500_000)] * 10)
                with pytest.raises(WeirError) as raised:
                    ticket.result()
            return "No space left on device; make room there" in str(raised.value)

        # Until the last one is full, leadership goes to those that have room.
        wait_for(is_refused_clearly)
        for disk in disks.values():
            disk.free()
        before = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > before + 2 * FRESH)
        load.stop()
        assert load.errors == []
        cluster.wait_until_whole("wal")
        read = [(record.offset, record.id) for record in weir.log.Reader(cluster.addresses, topic="wal")]
        assert not check_history(load.acknowledged, read)
        for number in cluster.ports:
            assert stored_ids(cluster.broker_directory(number) / "wal-0") == read


def test_leadership_goes_to_a_broker_whose_disk_has_room(tmp_path, disks):
    with LogCluster(tmp_path / "log") as cluster:
        weir.log.create_topic(cluster.addresses, "wal", segment_bytes=1 << 20)
        load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX).start()
        wait_for(lambda: len(load.acknowledged) > FRESH)
        full = cluster.leader("wal")

        def has_moved():
            # Whatever a segment had set aside is free again.
            disks[full].fill()
            return cluster.leader("wal") != full

        wait_for(has_moved)
        before = len(load.acknowledged)
        wait_for(lambda: len(load.acknowledged) > before + 2 * FRESH)
        [partition] = weir.log.log_status(cluster.addresses).partitions
        assert any("No space left" in each.trouble for each in partition.replicas if each.broker_id == full)
        disks[full].free()
        load.stop()
        assert load.errors == []
        cluster.wait_until_whole("wal")
        read = [(record.offset, record.id) for record in weir.log.Reader(cluster.addresses, topic="wal")]
        assert not check_history(load.acknowledged, read)
