"""A reader whose brokers say of each other that they lead, and one that is asked for what cannot be."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from weir.errors import ConfigError, ConnectionLostError
from weir.log import Reader
from weir.rpc import log_pb2, log_pb2_grpc


class Redirecting(log_pb2_grpc.LogBrokerServicer):
    """A broker that has heard that it leads, and does not."""

    address = ""

    def Metadata(self, request, context):
        name = log_pb2.PartitionName(topic=request.topic)
        view = log_pb2.PartitionView(name=name, leader_id=1, leader_address=self.address)
        return log_pb2.MetadataReply(
            partitions=[view], brokers=[log_pb2.BrokerAddress(broker_id=1, address=self.address)]
        )

    def Read(self, requests, context):
        yield log_pb2.ReadReply(leader_address=self.address)


def test_brokers_that_send_it_on_and_on_end_a_reader():
    server, broker = grpc.server(ThreadPoolExecutor(2)), Redirecting()
    log_pb2_grpc.add_LogBrokerServicer_to_server(broker, server)
    broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(ConnectionLostError, match="partition wal/0: nobody leads at the moment"):
            list(Reader(broker.address, topic="wal", timeout_s=0.2))
        with pytest.raises(ConfigError, match="partitions 0 to 0, no -1"):
            list(Reader(broker.address, topic="wal", partition=-1))
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize("values", [{"start": -1}, {"start_ms": -5}, {"start_id": 1 << 63}])
def test_a_place_that_cannot_be_is_refused_at_once(values):
    with pytest.raises(ConfigError, match="is not possible"):
        Reader("127.0.0.1:1", topic="wal", **values)
