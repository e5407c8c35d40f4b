"""A leader's end of the stream to a reader: how much of its time a reader gets, and whose word it waits for."""

import asyncio

import pytest

from log_broker import reading
from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.reading import ReaderStream
from log_broker.storage.partition_log import LogSettings
from log_broker.waiting import EOF
from weir.clock import SystemClock
from weir.protocol.log.entries import entries_in
from weir.rpc import log_pb2

ENTRIES = 20


class Stream:
    """The reader's end, in place of gRPC."""

    def __init__(self, on_entries=lambda: None):
        self.replies = []
        self.ended = asyncio.Event()
        self._on_entries = on_entries

    async def read(self):
        await self.ended.wait()
        return EOF

    async def write(self, reply):
        self.replies.append(reply)
        if reply.entries:
            self._on_entries()
        if reply.is_end:
            self.ended.set()


def leading(tmp_path, kept):
    settings = PartitionSettings(replicas=1, log=kept)
    replica = PartitionReplica(1, PartitionId("wal", 0), settings, tmp_path, SystemClock())
    replica.promise(1)
    replica.report()
    replica.lead(1, {1: replica.machine.incarnation}, 1, 1)
    for _ in range(ENTRIES - 1):
        replica.confirm()
    return replica


@pytest.fixture
def replica(tmp_path):
    replica = leading(tmp_path, LogSettings())
    yield replica
    replica.close()


def read_all(replica, stream_of, **opening):
    async def test():
        stream = stream_of()
        await ReaderStream(replica, log_pb2.ReadOpen(**opening), stream).run(1 << 20)
        return stream.replies

    return asyncio.run(test())


@pytest.mark.parametrize("is_written", [False, True])
def test_a_reader_waits_between_chunks_only_while_producers_write(replica, monkeypatch, is_written):
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 1)
    waits_s, sleep = [], asyncio.sleep

    async def noted(seconds):
        waits_s.append(seconds)
        await sleep(0)

    monkeypatch.setattr(reading.asyncio, "sleep", noted)
    replies = read_all(replica, lambda: Stream(replica.confirm if is_written else lambda: None))
    assert sum(bool(reply.entries) for reply in replies) == len(waits_s) == ENTRIES
    if is_written:
        assert all(0 < seconds <= reading._REST_S_MAX for seconds in waits_s)
    else:
        assert set(waits_s) == {0}


class Stalled(Stream):
    """A reader that gives credit when it is told to."""

    def __init__(self, on_entries=lambda: None):
        super().__init__(on_entries)
        self.credits = asyncio.Queue()

    async def read(self):
        size = await self.credits.get()
        return EOF if size is None else log_pb2.ReadRequest(credit_bytes=size)


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_reader_that_stands_still_gets_what_its_credit_allows_and_holds_nothing(
    tmp_path, monkeypatch, is_removed
):
    monkeypatch.setattr(reading, "_CHUNK_BYTES", 1)
    kept = LogSettings(segment_entries=5, retention_bytes=1 if is_removed else 0)
    replica = leading(tmp_path, kept)

    async def test():
        stream = Stalled()
        run = ReaderStream(replica, log_pb2.ReadOpen(), stream).run(1)
        running = asyncio.create_task(run)
        while not any(reply.entries for reply in stream.replies):
            await asyncio.sleep(0)
        for _ in range(50):
            # Others write, and retention goes on meanwhile.
            replica.tick()
            await asyncio.sleep(0)
        assert sum(bool(reply.entries) for reply in stream.replies) == 1
        stream.credits.put_nowait(1 << 20)
        await asyncio.wait_for(running, 30)
        return [entry.envelope.offset for reply in stream.replies for entry in entries_in(reply.entries)]

    offsets = asyncio.run(test())
    first = replica.log.first_offset
    assert (first > 0) == is_removed
    assert offsets == [0, *range(max(first, 1), ENTRIES)]
    replica.close()


def test_the_latest_end_is_told_once_a_majority_has_confirmed_who_leads(replica):
    (bounds, *_), before = read_all(replica, Stream), replica.machine.end_offset
    assert bounds.bounds.commit_offset == before == ENTRIES
    (bounds, *_) = read_all(replica, Stream, is_latest=True)
    # One entry without meaning is what they have confirmed.
    assert bounds.bounds.commit_offset == before + 1
