"""A leader's end of the stream from a producer: what it does not take, since every reader would meet it."""

import asyncio

import pytest

from log_broker.partition import PartitionId, PartitionReplica, PartitionSettings
from log_broker.producing import ProducerStream
from log_broker.waiting import EOF
from weir.clock import SystemClock
from weir.protocol.log.entries import CONTROL, PRODUCER_EPOCH_MAX, Header, checksum, header_bytes
from weir.rpc import log_pb2
from weir.rpc.log_wire import produce_request

BODY = bytes(12)
GOOD = Header(0, 1, 0, 0, 7, 1, 0, len(BODY), len(BODY))
LZ4 = 1


class Stream:
    """The producer's end, in place of gRPC."""

    def __init__(self, messages):
        self._messages = list(messages)
        self.replies = []

    async def read(self):
        return self._messages.pop(0) if self._messages else EOF

    async def write(self, reply):
        self.replies.append(reply)


@pytest.fixture
def replica(tmp_path):
    replica = PartitionReplica(
        1, PartitionId("wal", 0), PartitionSettings(replicas=1), tmp_path, SystemClock()
    )
    replica.promise(1)
    replica.report()
    replica.lead(1, {1: replica.machine.incarnation}, 1, 1)
    yield replica
    replica.close()


def send(replica, *headers):
    async def test():
        messages = [
            produce_request(checksum(header_bytes(header) + BODY), header_bytes(header), BODY)
            for header in headers
        ]
        stream = Stream(messages)
        opening = log_pb2.ProduceOpen(producer_id=7, producer_epoch=1, acks=log_pb2.ACKS_ALL)
        await asyncio.wait_for(ProducerStream(replica, opening, stream).run(), 30)
        return stream.replies

    return asyncio.run(test())


def take_over(replica, last_epoch):
    async def test():
        opening = log_pb2.ProduceOpen(producer_id=7, last_epoch=last_epoch, acks=log_pb2.ACKS_ALL)
        stream = Stream([])
        await asyncio.wait_for(ProducerStream(replica, opening, stream).run(), 30)
        return stream.replies[0]

    return asyncio.run(test())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # A reader would make room for it.
        ({"flags": LZ4, "raw_bytes": (4 << 30) - 1}, "cannot be one of 4294967295: 8388608 are possible"),
        ({"raw_bytes": 13}, "a body of 12 bytes cannot be one of 13"),
        ({"record_count": 2}, "2 records are not possible in 12 bytes"),
        ({"record_count": (4 << 30) - 1}, "4294967295 records are not possible"),
        ({"body_bytes": 11}, "a batch with a body of 11 bytes has 12"),
        ({"flags": CONTROL}, "only leaders write it"),
        (
            {"producer_id": 8},
            "a batch of producer 8 and epoch 1 came in the stream of producer 7 and epoch 1",
        ),
        ({"producer_id": 0}, "a batch of producer 0"),
        ({"producer_epoch": 2}, "a batch of producer 7 and epoch 2"),
        ({"flags": 3}, "flags 0x3 is not possible"),
    ],
)
def test_a_batch_that_no_producer_makes_is_not_taken(replica, changes, message):
    before = replica.machine.end_offset
    replies = send(replica, GOOD, GOOD._replace(sequence=1, **changes), GOOD._replace(sequence=1))
    # What came before it has its answer, and the stream ends there.
    assert [answer.sequence for reply in replies for answer in reply.answers] == [0]
    assert message in replies[-1].message
    assert replica.machine.end_offset == before + 1


def test_a_producer_that_is_silent_hears_that_another_broker_leads(replica, caplog):
    async def test():
        stream, is_over = Stream([]), asyncio.Event()

        async def read():
            await is_over.wait()
            return EOF

        stream.read = read
        opening = log_pb2.ProduceOpen(producer_id=7, producer_epoch=1, acks=log_pb2.ACKS_ALL)
        running = asyncio.create_task(ProducerStream(replica, opening, stream).run())
        while not stream.replies:
            await asyncio.sleep(0)
        replica.promise(2)
        while len(stream.replies) < 2:
            await asyncio.sleep(0)
        is_over.set()
        await asyncio.wait_for(running, 30)
        return stream.replies[-1].message

    assert asyncio.run(test()) == "this broker no longer leads"
    assert caplog.text == ""


def test_a_batch_of_an_epoch_that_was_given_up_is_not_taken_for_one_of_the_next(replica):
    """It lay in a connection that was cut off, while its producer had taken its id over from itself."""
    assert take_over(replica, 1).opened.producer_epoch == 2
    (reply,) = send(replica, GOOD)
    assert reply.is_fenced


def test_a_producer_that_names_the_last_epoch_there_is_gets_no_other_one(replica):
    before = replica.machine.end_offset
    reply = take_over(replica, PRODUCER_EPOCH_MAX)
    assert (reply.is_fenced, reply.message) == (True, "producer 7 has no epoch left; use another producer_id")
    assert replica.machine.end_offset == before
