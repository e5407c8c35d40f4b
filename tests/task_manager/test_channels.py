"""Credits bound what a channel holds, and the inbox wakes whoever waits."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from task_manager.channels import CancelledError, ChannelLimits, CreditGate, Inbox, LocalChannel
from weir.errors import ConnectionLostError
from weir.records import Watermark


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(rows), type=pa.int64())})


class Waker:
    def __init__(self) -> None:
        self.woken = threading.Event()

    def wake(self) -> None:
        self.woken.set()


def local(elements_max: int = 2, bytes_max: int = 1 << 20) -> tuple[LocalChannel, Inbox, Waker]:
    inbox, waker = Inbox(), Waker()
    return LocalChannel(CreditGate(ChannelLimits(elements_max, bytes_max), waker), inbox, 3), inbox, waker


def in_thread(call) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, errors


def test_batches_go_by_reference_in_order():
    channel, inbox, _ = local()
    first = batch(3)
    channel.send(first)
    channel.send(Watermark(7))
    delivery = inbox.poll(1.0)
    assert delivery.element is first
    assert delivery.channel_index == 3
    assert inbox.poll(1.0).element == Watermark(7)
    assert inbox.poll(0.0) is None


def test_a_sender_without_credit_waits_for_a_release():
    channel, inbox, _ = local(elements_max=1)
    channel.send(batch(1))
    second = batch(2)
    thread, errors = in_thread(lambda: channel.send(second))
    delivery = inbox.poll(1.0)
    assert thread.is_alive()
    assert len(inbox) == 0
    delivery.release()
    assert inbox.poll(5.0).element is second
    thread.join(5.0)
    assert not errors


def test_the_byte_bound_lets_one_large_batch_through_and_no_second():
    channel, _, _ = local(elements_max=100, bytes_max=100)
    channel.send(batch(1000))
    assert not channel.gate.has_room(1)


@pytest.mark.parametrize("end", ["cancel", "fail"])
def test_a_waiting_sender_is_let_go(end):
    channel, inbox, waker = local(elements_max=1)
    channel.send(batch(1))
    thread, errors = in_thread(lambda: channel.send(batch(1)))
    if end == "cancel":
        channel.gate.cancel()
    else:
        channel.gate.fail(ConnectionLostError("peer 127.0.0.1:1 is gone"))
        assert waker.woken.is_set()
    thread.join(5.0)
    assert isinstance(errors[0], CancelledError if end == "cancel" else ConnectionLostError)
    assert len(inbox) == 1


def test_the_release_that_makes_the_receiver_idle_wakes_a_sender_that_holds_rows():
    channel, inbox, waker = local()
    channel.send(batch(1))
    assert not channel.gate.idle
    channel.gate.wake_when_idle = True
    inbox.poll(1.0).release()
    assert channel.gate.idle
    assert waker.woken.is_set()


def test_wake_ends_a_poll_without_an_element():
    inbox = Inbox()
    results: list[object] = []
    thread, errors = in_thread(lambda: results.append(inbox.poll(60.0)))
    inbox.wake()
    thread.join(5.0)
    assert results == [None]
    assert not errors
