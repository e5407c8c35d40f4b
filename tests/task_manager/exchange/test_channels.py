"""Credits bound what a channel holds."""

from __future__ import annotations

import threading

import pytest

from task_manager.exchange.channels import CancelledError
from task_manager.exchange.inbox import Inbox
from task_manager.subtasks.mailbox import Mailbox
from tests.task_manager.exchange.local_channels import CHANNEL, batch, local
from weir.errors import ConnectionLostError
from weir.rows.records import Watermark
from weir.testing.manual_clock import ManualClock


def test_batches_go_by_reference_in_order():
    channel, inbox, _ = local()
    first = batch(3)
    channel.send(first)
    channel.send(Watermark(7))
    delivery = inbox.poll(60.0)
    assert delivery.element is first
    assert delivery.channel == CHANNEL
    assert inbox.poll(60.0).element == Watermark(7)
    assert inbox.poll(0.0) is None


def test_credit_is_used_up_by_elements_and_comes_back_with_a_release():
    channel, inbox, waker = local(elements_max=2)
    channel.send(batch(1))
    channel.send(batch(1))
    assert channel.gate.rows_free == 0
    channel.gate.wake_on_release = True
    inbox.poll(60.0).release()
    assert channel.gate.rows_free > 0
    assert waker.woken.is_set()


def test_control_elements_take_no_credit():
    channel, inbox, _ = local(elements_max=1)
    channel.send(Watermark(1))
    assert channel.gate.idle
    inbox.poll(60.0).release()


def test_the_byte_bound_lets_one_large_batch_through_and_no_second():
    channel, _, _ = local(elements_max=100, bytes_max=100)
    assert channel.gate.has_room(10_000)
    channel.send(batch(1000))
    assert not channel.gate.has_room(1)
    assert channel.gate.rows_free == 0


def test_a_slow_receiver_gets_few_rows_and_a_fast_one_many():
    clock = ManualClock()
    channel, inbox, _ = local(elements_max=1000, bytes_max=1 << 30, in_flight_ms=100.0, clock=clock)
    gate = channel.gate
    for _ in range(20):
        channel.send(batch(gate.rows_free))
        delivery = inbox.poll(0.0)
        clock.advance_ms(delivery.element.num_rows * 10)
        delivery.release()
    assert 5 <= gate.rows_free <= 20, "10 ms a row: about 10 rows in 100 ms"
    for _ in range(20):
        channel.send(batch(gate.rows_free))
        delivery = inbox.poll(0.0)
        clock.advance_ms(delivery.element.num_rows * 1e-3)
        delivery.release()
    assert gate.rows_free > 50_000, "1 µs a row: about 100,000 rows in 100 ms"


def test_a_broken_channel_wakes_the_sender_and_takes_nothing_more():
    channel, inbox, waker = local()
    channel.gate.fail(ConnectionLostError("peer 127.0.0.1:1 is gone"))
    assert waker.woken.is_set()
    with pytest.raises(ConnectionLostError):
        channel.send(batch(1))
    assert len(inbox) == 0


def test_routing_commands_run_while_the_sender_waits_and_others_only_between_batches():
    mailbox = Mailbox(Inbox())
    ran: list[str] = []
    mailbox.post(lambda: ran.append("command"))
    mailbox.post_routing(lambda: ran.append("routing"))
    mailbox.wait_for_credit(60.0)
    assert ran == ["routing"]
    mailbox.run_commands()
    assert ran == ["routing", "command"]


def test_cancel_ends_a_wait_for_credit():
    mailbox = Mailbox(Inbox())
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            while True:
                mailbox.wait_for_credit(600.0)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    mailbox.cancel()
    thread.join(60.0)
    assert len(errors) == 1


def test_a_receiver_far_away_that_mostly_waits_gets_more_rows():
    clock = ManualClock()
    channel, inbox, _ = local(clock=clock)
    for _ in range(20):
        channel.send(batch(max(1, min(channel.gate.rows_free, 1000))))
        inbox.busy_share = 0.1
        clock.advance_ms(200)
        inbox.poll(0.0).release()
    assert channel.gate.rows_free >= 500
