"""A producer's stream: what an answer means that comes when its stream is of no use any more."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from weir.clock import SystemClock
from weir.errors import ConfigError
from weir.log import Producer, producer_link
from weir.log.cluster import Cluster
from weir.log.producer_link import ProducerLink
from weir.log.queue import BatchQueue
from weir.rpc import log_pb2, log_pb2_grpc


def opened(epoch):
    return log_pb2.ProduceReply(opened=log_pb2.ProduceOpened(producer_epoch=epoch))


def first_request(link):
    return log_pb2.ProduceRequest.FromString(next(link._requests(0))).open


def test_an_epoch_that_was_given_up_is_not_begun_again():
    clock = SystemClock()
    link = ProducerLink(
        Cluster("127.0.0.1:1"),
        BatchQueue(clock, 0.0, 1 << 20),
        clock,
        topic="wal",
        partition=0,
        acks=log_pb2.ACKS_ALL,
        compression="none",
        in_flight_max=5,
        producer_id=7,
        takes_over=False,
    )
    assert link._take(opened(1))
    # The delivery timeout of what is under way is over, while the leader of this stream, which was silent, answers.
    link._outbox.next_sequence = 9
    link._takes_over = True
    assert not link._take(opened(1))
    assert (link._outbox.epoch, link._outbox.next_sequence) == (1, 9)
    assert first_request(link).last_epoch == 0
    # The next stream takes the id over, so that no number means two records.
    link._asked_to_take_over = True
    # The leader may not have met the epoch of what comes late.
    assert (first_request(link).producer_epoch, first_request(link).last_epoch) == (0, 1)
    assert link._take(opened(2))
    assert (link._outbox.epoch, link._outbox.next_sequence) == (2, 0)
    assert first_request(link).last_epoch == 0


@pytest.mark.parametrize("producer_id", [0, -1, 1 << 64])
def test_an_id_that_brokers_cannot_remember_is_refused(producer_id):
    with pytest.raises(ConfigError, match=r"producer_id=.* is not possible"):
        Producer("127.0.0.1:1", topic="wal", producer_id=producer_id)


class Silent(log_pb2_grpc.LogBrokerServicer):
    """A broker that does not answer to the first stream, as one that stands still, and to others as a leader does."""

    address = ""
    streams = 0

    def Metadata(self, request, context):
        name = log_pb2.PartitionName(topic=request.topic)
        view = log_pb2.PartitionView(name=name, leader_id=1, leader_address=self.address)
        return log_pb2.MetadataReply(
            partitions=[view], brokers=[log_pb2.BrokerAddress(broker_id=1, address=self.address)]
        )

    def Produce(self, requests, context):
        self.streams += 1
        if self.streams == 1:
            is_over = threading.Event()
            context.add_callback(is_over.set)
            is_over.wait()
            return
        next(requests)
        yield opened(1)
        for sequence, _ in enumerate(requests):
            yield log_pb2.ProduceReply(answers=[log_pb2.BatchAnswer(sequence=sequence, offset=40 + sequence)])


@pytest.mark.parametrize("producer_id", [None, 77])
def test_a_leader_that_does_not_open_a_stream_is_left(monkeypatch, producer_id):
    monkeypatch.setattr(producer_link, "_SILENCE_S", 0.1)
    server, broker = grpc.server(ThreadPoolExecutor(4)), Silent()
    log_pb2_grpc.add_LogBrokerServicer_to_server(broker, server)
    broker.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with Producer(broker.address, topic="wal", producer_id=producer_id) as producer:
            assert producer.send(1, b"x").result(20) == 40
        assert broker.streams == 2
    finally:
        server.stop(None).wait()
