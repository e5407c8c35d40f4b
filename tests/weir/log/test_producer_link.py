"""A producer's stream: what an answer means that comes when its stream is of no use any more."""

import pytest

from weir.clock import SystemClock
from weir.errors import ConfigError
from weir.log import Producer
from weir.log.cluster import Cluster
from weir.log.producer_link import ProducerLink
from weir.log.queue import BatchQueue
from weir.rpc import log_pb2


def opened(epoch):
    return log_pb2.ProduceReply(opened=log_pb2.ProduceOpened(producer_epoch=epoch))


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
    # The next stream takes the id over, so that no number means two records.
    link._asked_to_take_over = True
    assert link._take(opened(2))
    assert (link._outbox.epoch, link._outbox.next_sequence) == (2, 0)


@pytest.mark.parametrize("producer_id", [0, -1, 1 << 64])
def test_an_id_that_brokers_cannot_remember_is_refused(producer_id):
    with pytest.raises(ConfigError, match=r"producer_id=.* is not possible"):
        Producer("127.0.0.1:1", topic="wal", producer_id=producer_id)
