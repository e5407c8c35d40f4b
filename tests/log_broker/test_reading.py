"""A leader's end of the stream to a reader: how much of its time a reader gets, and whose word it waits for."""

import asyncio

import pytest

from log_broker import reading
from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.reading import ReaderStream
from log_broker.waiting import EOF
from weir.clock import SystemClock
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


@pytest.fixture
def replica(tmp_path):
    replica = PartitionReplica(
        1, PartitionId("wal", 0), PartitionSettings(replicas=1), tmp_path, SystemClock()
    )
    replica.promise(1)
    replica.report()
    replica.lead(1, {1: replica.machine.incarnation}, 1, 1)
    for _ in range(ENTRIES - 1):
        replica.confirm()
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


def test_the_latest_end_is_told_once_a_majority_has_confirmed_who_leads(replica):
    (bounds, *_), before = read_all(replica, Stream), replica.machine.end_offset
    assert bounds.bounds.commit_offset == before == ENTRIES
    (bounds, *_) = read_all(replica, Stream, is_latest=True)
    # One entry without meaning is what they have confirmed.
    assert bounds.bounds.commit_offset == before + 1
