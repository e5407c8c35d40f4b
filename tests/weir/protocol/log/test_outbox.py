"""The order in which batches are sent, sent again and answered."""

import pytest

from weir.errors import InvalidTransitionError
from weir.protocol.log.outbox import Outbox


@pytest.fixture
def outbox():
    return Outbox(in_flight_max=3, in_flight_bytes_max=100, epoch=1)


def send(outbox, *items, size_bytes=10, deadline_ms=1000):
    for item in items:
        assert outbox.has_room()
        outbox.add(item, size_bytes, deadline_ms)
        assert outbox.to_send().item == item


def test_what_has_no_answer_is_sent_again_in_order_before_anything_new(outbox):
    send(outbox, "a", "b", "c")
    outbox.answered(0)
    outbox.disconnected()
    assert not outbox.has_room()
    assert [outbox.to_send().item for _ in range(2)] == ["b", "c"]
    assert outbox.to_send() is None
    send(outbox, "d")
    assert [(sent.sequence, sent.attempts) for sent in outbox.unanswered] == [(1, 2), (2, 2), (3, 1)]


def test_batches_and_bytes_under_way_are_bounded_but_one_batch_always_goes(outbox):
    send(outbox, "a", size_bytes=1000)
    assert not outbox.has_room()
    outbox.answered(0)
    send(outbox, "b", "c", "d")
    assert not outbox.has_room()


def test_answers_come_in_order_and_old_ones_are_nothing(outbox):
    send(outbox, "a", "b")
    with pytest.raises(InvalidTransitionError, match="batch 1 came before that to 0"):
        outbox.answered(1)
    assert outbox.answered(0).item == "a"
    assert outbox.answered(0) is None


def test_all_that_is_under_way_expires_with_the_oldest(outbox):
    send(outbox, "a")
    send(outbox, "b", deadline_ms=5000)
    assert outbox.expired(999) == []
    assert [sent.item for sent in outbox.expired(1000)] == ["a", "b"]
    outbox.begin_epoch(2)
    send(outbox, "c")
    assert (outbox.unanswered[0].sequence, outbox.epoch) == (0, 2)
    with pytest.raises(InvalidTransitionError, match="under way"):
        outbox.begin_epoch(3)


def test_a_batch_that_was_numbered_when_the_stream_broke_goes_on_the_next_one(outbox):
    send(outbox, "a")
    outbox.disconnected()
    outbox.add("b", 10, 1000)
    assert [outbox.to_send().item, outbox.to_send().item] == ["a", "b"]
