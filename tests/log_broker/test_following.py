"""A follower's end of the stream from its leader: what it tells, and when."""

import asyncio
import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from log_broker import partition
from log_broker.broker import Broker
from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.replication import follow
from log_broker.waiting import EOF
from tests.log_broker.waiting import wait_for
from weir.clock import SystemClock
from weir.protocol.log.entries import ENVELOPE_BYTES, HEADER_BYTES, DamagedEntryError
from weir.rpc import log_pb2

#: Of an entry without records.
SIZE = ENVELOPE_BYTES + HEADER_BYTES
STARTS = (0, SIZE, 2 * SIZE)


class Stream:
    """The leader's end, in place of gRPC: refuses two writes at a time, as gRPC does."""

    def __init__(self):
        self.requests = asyncio.Queue()
        self.replies = []
        self._writes = 0

    async def read(self):
        return await self.requests.get()

    async def write(self, reply):
        self._writes += 1
        assert self._writes == 1, "two writes at a time"
        await asyncio.sleep(0.001)
        self._writes -= 1
        self.replies.append(reply)


def replica_of(tmp_path, durability):
    """A replica that has led an epoch and has three entries, of which its successor knows one."""
    settings = PartitionSettings(durability=durability)
    replica = PartitionReplica(1, PartitionId("wal", 0), settings, tmp_path, SystemClock())
    replica.promise(1)
    replica.report()
    replica.lead(1, {1: replica.machine.incarnation}, 3, 1)
    replica.confirm()
    replica.confirm()
    replica.machine.made_durable(3)
    return replica


async def _told(replica):
    """What a leader of epoch 2, which cuts this log at offset 1, hears."""
    stream = Stream()
    following = asyncio.create_task(follow(replica, log_pb2.ReplicateOpen(epoch=2, leader_id=2), stream))
    syncing = asyncio.create_task(replica.sync_forever())
    while not stream.replies:
        await asyncio.sleep(0.001)
    # Long enough for whatever a follower might say by itself.
    await asyncio.sleep(0.05)
    before_cut = len(stream.replies)
    request = log_pb2.ReplicateRequest(has_cut=True, cut_offset=1)
    stream.requests.put_nowait(request.SerializeToString())
    while len(stream.replies) < 2:
        await asyncio.sleep(0.001)
    stream.requests.put_nowait(EOF)
    await following
    syncing.cancel()
    return before_cut, stream.replies


def test_nothing_is_told_as_durable_that_the_leader_has_not_cut(tmp_path):
    for durability in ("os", "fsync"):
        replica = replica_of(tmp_path / durability, durability)
        before_cut, replies = asyncio.run(_told(replica))
        assert before_cut == 1, durability
        assert replies[0].end_offset == 3
        assert [reply.durable_offset for reply in replies[1:]] == [1], durability


async def _told_after_a_later_epoch(replica):
    """What the leader of epoch 2 hears of a follower that leads epoch 3 and makes its own entries durable."""
    stream = Stream()
    following = asyncio.create_task(follow(replica, log_pb2.ReplicateOpen(epoch=2, leader_id=2), stream))
    syncing = asyncio.create_task(replica.sync_forever())
    request = log_pb2.ReplicateRequest(has_cut=True, cut_offset=1)
    stream.requests.put_nowait(request.SerializeToString())
    while len(stream.replies) < 2:
        await asyncio.sleep(0.001)
    replica.promise(3)
    replica.report()
    replica.lead(3, {1: replica.machine.incarnation}, 3, 1)
    replica.confirm()
    while replica.machine.durable_offset < replica.machine.end_offset:
        await asyncio.sleep(0.001)
    # Long enough for whatever it might say by itself.
    await asyncio.sleep(0.05)
    stream.requests.put_nowait(EOF)
    await following
    syncing.cancel()
    return stream.replies


def test_an_old_leader_does_not_hear_what_is_durable_under_a_later_one(tmp_path):
    replies = asyncio.run(_told_after_a_later_epoch(replica_of(tmp_path, "fsync")))
    assert [reply.durable_offset for reply in replies[1:]] == [1]


def test_a_promise_that_is_not_stored_is_kept_and_told_to_nobody(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "os")

    def full(*_, **__):
        raise LogWriteError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(replica._place, "save", full)
        with pytest.raises(LogWriteError):
            replica.promise(7)
        # It leads no more, and accepts no older leader.
        assert replica.machine.leading_epoch == 0
        assert not replica.machine.accepts(6)
        assert replica.report().promised_epoch == 1
        assert not replica.machine.may_lead(7, {1: replica.machine.incarnation})
        # Nor the new one, whose entries would be votes.
        with pytest.raises(LogWriteError):
            asyncio.run(follow(replica, log_pb2.ReplicateOpen(epoch=7, leader_id=2), Stream()))
    replica.promise(7)
    assert replica.report().promised_epoch == 7
    again = PartitionReplica(1, replica.name, replica.settings, tmp_path, SystemClock())
    assert again.machine.promised_epoch == 7


def test_a_replica_that_cannot_write_says_so_until_there_is_room(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "os")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(LogWriteError):
            replica.confirm()
    assert replica.report().cannot_write
    with monkeypatch.context() as patch:
        patch.setattr(replica._place, "room_bytes", lambda: 1000)
        replica.confirm()
        assert replica.report().cannot_write
    replica.confirm()
    assert not replica.report().cannot_write


@pytest.mark.parametrize("moved", [0, 1, 2])
@pytest.mark.parametrize("is_backwards", [False, True])
def test_a_crash_while_data_is_moved_away_leaves_a_new_replica_and_all_of_the_data(
    tmp_path, monkeypatch, moved, is_backwards
):
    replica = replica_of(tmp_path, "os")
    before = replica.machine.incarnation
    files = sorted((path for path in tmp_path.iterdir() if path.is_file()), reverse=is_backwards)
    replace, done = os.replace, []

    def dies(*paths):
        if len(done) == moved:
            raise SystemExit
        done.append(paths)
        replace(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", dies)
        patch.setattr(Path, "iterdir", lambda _: iter(files))
        with pytest.raises(SystemExit):
            replica.damaged(LogDamagedError("a flipped bit"))
    again = PartitionReplica(1, replica.name, replica.settings, tmp_path, SystemClock())
    if not moved:
        # Nothing has happened.
        assert again.machine.incarnation == before
        return
    assert again.machine.end_offset == 0
    assert again.machine.incarnation != before
    assert {path.name for path in (tmp_path / "aside").iterdir()} == {path.name for path in files}


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_after_the_machine_went_down_only_what_was_synced_counts_and_nothing_is_deleted(
    tmp_path, monkeypatch, durability
):
    replica = replica_of(tmp_path, durability)
    before = replica.machine.incarnation
    monkeypatch.setattr(partition, "boot_id", lambda: "another")
    again = PartitionReplica(1, replica.name, replica.settings, tmp_path, SystemClock())
    if durability == "fsync":
        assert (again.machine.incarnation, again.machine.end_offset) == (before, 3)
        return
    assert "the machine went down" in again.trouble
    assert (again.machine.incarnation != before, again.machine.end_offset) == (True, 0)
    # Until others have filled it: a majority may be gone, and then somebody wants it back.
    assert list((tmp_path / "aside").glob("*.log"))
    again.drop_aside()
    assert not (tmp_path / "aside").exists()


def test_an_orderly_end_counts_also_if_the_machine_goes_down(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "os")
    replica.close()
    monkeypatch.setattr(partition, "boot_id", lambda: "another")
    again = PartitionReplica(1, replica.name, replica.settings, tmp_path, SystemClock())
    assert (again.trouble, again.machine.end_offset) == ("", 3)


def test_a_broken_disk_makes_a_silent_replica_that_heals(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "os")
    before = replica.machine.incarnation

    def broken(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def told():
        with pytest.raises(LogWriteError, match="cannot be moved away: Input/output error"):
            await follow(replica, log_pb2.ReplicateOpen(epoch=2, leader_id=2), Stream())

    with monkeypatch.context() as patch:
        for name in ("replace", "ftruncate", "fsync"):
            patch.setattr(os, name, broken)
        replica.damaged(LogDamagedError("a flipped bit"))
        assert replica.machine.leading_epoch == 0
        assert replica.machine.incarnation != before
        assert replica.report().promised_epoch == 0
        asyncio.run(told())
    replica.promise(3)
    assert replica.report().promised_epoch == 3
    assert list((tmp_path / "aside").glob("*.log"))


def test_a_replica_that_cannot_be_cut_is_damaged(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "os")

    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(LogDamagedError, match="cannot be cut"):
            replica.cut(1)


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, os.strerror(errno.EIO)), LogDamagedError("it is absent")]
)
def test_what_cannot_be_synced_is_not_trusted(error, tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "fsync")
    before = replica.machine.incarnation

    def broken(*_):
        raise error

    async def sync():
        syncing = asyncio.create_task(replica.sync_forever())
        while replica.machine.incarnation == before:
            await asyncio.sleep(0.001)
        syncing.cancel()

    if isinstance(error, OSError):
        monkeypatch.setattr(os, "fdatasync", broken)
    else:
        monkeypatch.setattr(replica.log, "to_sync", broken)
    asyncio.run(asyncio.wait_for(sync(), 30))
    assert "cannot be synced" in replica.trouble
    assert replica.machine.leading_epoch == 0


def test_with_fsync_a_start_syncs_what_a_killed_process_has_left(tmp_path, monkeypatch):
    replica = replica_of(tmp_path, "fsync")
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    PartitionReplica(1, replica.name, replica.settings, tmp_path, SystemClock())
    assert {file.stat().st_ino for file in tmp_path.glob("*.log")} <= set(synced)


def test_what_is_of_no_use_any_more_is_deleted_beside_the_event_loop(tmp_path, monkeypatch):
    deleting, may_end = threading.Event(), threading.Event()
    rmtree = shutil.rmtree

    def slow(folder):
        deleting.set()
        assert may_end.wait(30)
        rmtree(folder)

    replica = replica_of(tmp_path / "wal-0", "os")
    replica.damaged(LogDamagedError("a flipped bit"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", slow)
        # Neither waits for gigabytes to be deleted.
        replica.drop_aside()
        assert not (tmp_path / "wal-0" / "aside").exists()
        replica.remove()
        assert not (tmp_path / "wal-0").exists()
        assert deleting.wait(30)
        may_end.set()
        wait_for(lambda: not list(tmp_path.iterdir()))


def test_what_a_process_did_not_delete_any_more_the_next_one_does(tmp_path):
    for parent in (tmp_path, tmp_path / "wal-0"):
        (parent / ".removed-1a2b").mkdir(parents=True)
    Broker(1, tmp_path, SystemClock())
    PartitionReplica(1, PartitionId("wal", 0), PartitionSettings(), tmp_path / "wal-0", SystemClock())
    wait_for(lambda: not list(tmp_path.rglob(".removed-*")))


def test_entries_that_do_not_follow_each_other_are_not_written(tmp_path):
    replica = replica_of(tmp_path / "1", "os")
    other = replica_of(tmp_path / "2", "os")
    first, second, third = (
        (tmp_path / "2" / f"{0:020d}.log").read_bytes()[start:][:SIZE] for start in STARTS
    )
    assert other.machine.end_offset == 3
    replica.begin_at(0, {"lineage": [], "producers": []})
    with pytest.raises(DamagedEntryError, match="at offset 2 came behind one that ends at 1"):
        replica.append_entries(first + third)
    assert (replica.machine.end_offset, replica.log.end_offset) == (0, 0)
    replica.append_entries(first + second + third)
    assert (replica.machine.end_offset, replica.log.end_offset) == (3, 3)
