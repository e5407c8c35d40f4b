"""A reader whose brokers say of each other that they lead, and one that is asked for what cannot be."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from weir.errors import ConfigError, ConnectionLostError
from weir.log import Reader
from weir.log.batches import body_of
from weir.protocol.log.entries import checksum, envelope_bytes, header_bytes
from weir.rpc import log_pb2, log_pb2_grpc
from weir.testing.manual_clock import ManualClock


class Leading(log_pb2_grpc.LogBrokerServicer):
    """A broker that says that it leads, and whose stream ends after the first batch, and after the last one."""

    address = ""

    def Metadata(self, request, context):
        name = log_pb2.PartitionName(topic=request.topic)
        view = log_pb2.PartitionView(name=name, leader_id=1, leader_address=self.address)
        return log_pb2.MetadataReply(
            partitions=[view], brokers=[log_pb2.BrokerAddress(broker_id=1, address=self.address)]
        )

    def Read(self, requests, context):
        offset = next(requests).open.start_offset
        yield log_pb2.ReadReply(entries=entry(offset), is_end=offset > 0)


class Redirecting(Leading):
    """A broker that has heard that it leads, and does not."""

    def Read(self, requests, context):
        yield log_pb2.ReadReply(leader_address=self.address)


def entry(offset):
    body = body_of([offset], [b"x"], "none")
    batch = header_bytes(body.header(7, 1, offset, 0)) + body.content
    return envelope_bytes(len(batch), 1, offset, 1000, checksum(batch)) + batch


@contextlib.contextmanager
def served(broker):
    server = grpc.server(ThreadPoolExecutor(2))
    log_pb2_grpc.add_LogBrokerServicer_to_server(broker, server)
    broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield broker.address
    finally:
        server.stop(None).wait()


def test_brokers_that_send_it_on_and_on_end_a_reader():
    with served(Redirecting()) as address:
        with pytest.raises(ConnectionLostError, match="partition wal/0: nobody leads at the moment"):
            list(Reader(address, topic="wal", timeout_s=0.2))
        with pytest.raises(ConfigError, match="partitions 0 to 0, no -1"):
            list(Reader(address, topic="wal", partition=-1))


def test_a_reader_that_takes_its_time_for_what_it_has_looks_for_the_leader_all_the_same():
    clock = ManualClock()
    with served(Leading()) as address:
        offsets = []
        for record in Reader(address, topic="wal", timeout_s=10, clock=clock):
            offsets.append(record.offset)
            clock.advance_ms(60_000)
    assert offsets == [0, 1]


@pytest.mark.parametrize("values", [{"start": -1}, {"start_ms": -5}, {"start_id": 1 << 63}])
def test_a_place_that_cannot_be_is_refused_at_once(values):
    with pytest.raises(ConfigError, match="is not possible"):
        Reader("127.0.0.1:1", topic="wal", **values)
