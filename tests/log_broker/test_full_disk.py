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

#: More answers than a producer has records under way: some are to records that were sent after a change.
UNDER_WAY_MAX, FRESH = 300, 1_000
#: Between bursts: what is written is read and compared at the end.
PAUSE_S = 0.03


def wait_for_more(load):
    before = len(load.acknowledged)
    wait_for(lambda: len(load.acknowledged) > before + FRESH)


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


def is_refused_clearly(cluster, number):
    """Whether another producer, of whose records some may be written, is told what is wrong."""
    first = number * IDS_OF_A_PRODUCER
    with weir.log.Producer(cluster.addresses, topic="wal", delivery_timeout_s=2) as producer:
        ticket = producer.send_many(range(first, first + 10), [bytes(500_000)] * 10)
        with pytest.raises(WeirError) as raised:
            ticket.result()
    return "No space left on device; make room there" in str(raised.value)


def test_leadership_goes_where_there_is_room_and_full_disks_refuse_clearly_and_heal(tmp_path, disks):
    with LogCluster(tmp_path / "log") as cluster:
        weir.log.create_topic(cluster.addresses, "wal", segment_bytes=1 << 20)
        load = Load(cluster.addresses, "wal", 1, under_way_max=UNDER_WAY_MAX, pause_s=PAUSE_S).start()
        wait_for_more(load)
        full = cluster.leader("wal")

        def has_moved():
            # Whatever a segment had set aside is free again.
            disks[full].fill()
            return cluster.leader("wal") != full

        wait_for(has_moved)
        # A majority has room.
        wait_for_more(load)
        [partition] = weir.log.log_status(cluster.addresses).partitions
        assert any("No space left" in each.trouble for each in partition.replicas if each.broker_id == full)
        # Nobody has; until the last one is full, leadership goes to those that have.
        for disk in disks.values():
            disk.fill()
        producers = itertools.count(2)
        wait_for(lambda: is_refused_clearly(cluster, next(producers)))
        for disk in disks.values():
            disk.free()
        wait_for_more(load)
        load.stop()
        assert load.errors == []
        cluster.wait_until_whole("wal")
        read = [(record.offset, record.id) for record in weir.log.Reader(cluster.addresses, topic="wal")]
        assert not check_history(load.acknowledged, read)
        for number in cluster.ports:
            assert stored_ids(cluster.broker_directory(number) / "wal-0") == read
