"""The inbox wakes whoever waits, when enough is there."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from task_manager.exchange.inbox import Delivery, Inbox, RowsWanted, Wave, no_release
from tests.task_manager.exchange.local_channels import CHANNEL, batch, local
from weir.rows.records import Barrier, Watermark
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId


def test_wake_ends_a_poll_without_an_element():
    inbox = Inbox()
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(inbox.poll(600.0)))
    thread.start()
    inbox.wake()
    thread.join(60.0)
    assert results == [None]


def test_waiting_batches_are_taken_together_up_to_a_control_element_or_another_schema():
    channel, inbox, _ = local(elements_max=100)
    other = pa.RecordBatch.from_pydict({"m": pa.array([1])})
    for element in (batch(1), batch(2), batch(4), Watermark(5), batch(8), other):
        channel.send(element)
    first = inbox.poll(0.0)
    assert [d.element.num_rows for d in inbox.poll_rows(RowsWanted(5, 1 << 20), first.element.schema)] == [2]
    assert [d.element.num_rows for d in inbox.poll_rows(RowsWanted(5, 1 << 20), first.element.schema)] == [4]
    assert inbox.poll_rows(RowsWanted(5, 1 << 20), first.element.schema) == []
    assert inbox.poll(0.0).element == Watermark(5)
    assert [d.element.num_rows for d in inbox.poll_rows(RowsWanted(100, 1 << 20), first.element.schema)] == [
        8
    ]
    assert inbox.poll_rows(RowsWanted(100, 1 << 20), first.element.schema) == []
    assert inbox.poll(0.0).element is other


def test_elements_gather_and_a_wake_up_ends_that():
    channel, inbox, _ = local()
    began_s = time.monotonic()
    channel.send(batch(1))
    assert inbox.wait_for_one(600.0)
    threading.Timer(0.02, lambda: channel.send(batch(2))).start()
    inbox.gather(0.1)
    assert time.monotonic() - began_s >= 0.09
    assert [inbox.poll(0.0).element.num_rows for _ in range(2)] == [1, 2]
    channel.send(batch(3))
    inbox.wake()
    assert not inbox.wait_for_one(600.0)
    inbox.gather(600.0)
    assert inbox.poll(600.0).element.num_rows == 3


def test_enough_elements_end_a_wait_for_more():
    channel, inbox, _ = local()
    channel.send(batch(1))
    threading.Timer(0.02, lambda: channel.send(batch(2))).start()
    inbox.gather(600.0, 2)
    assert len(inbox) == 2


def test_a_round_ends_when_all_of_it_is_here_or_its_time_is_over():
    channel, inbox, _ = local()
    assert inbox.await_round(0.001, 2) == 0
    channel.send(batch(1))
    threading.Timer(0.02, lambda: channel.send(batch(2))).start()
    assert inbox.await_round(600.0, 2) == 2
    # Both have gathered: what is left of them is not waited for.
    inbox.poll(0.0)
    assert inbox.await_round(600.0, 2) == 1
    inbox.poll(0.0)
    channel.send(batch(3))
    assert inbox.await_round(0.001, 2) == 1
    inbox.poll(0.0)
    inbox.wake()
    assert inbox.await_round(600.0, 2) == 0
    assert inbox.poll(600.0) is None


def test_nothing_to_gather_is_the_end_of_the_wait():
    inbox = Inbox()
    assert not inbox.wait_for_one(0.001)
    inbox.wake()
    assert not inbox.wait_for_one(600.0)
    assert inbox.poll(600.0) is None


def test_what_has_gathered_comes_without_another_wait():
    """Control elements between rows cut them into pieces, and each piece would wait."""
    inbox = Inbox()
    elements = [Watermark(1), Watermark(2), Watermark(3)]
    for element in elements:
        inbox.put(Delivery(CHANNEL, element, no_release))
    assert inbox.wait_for_one(0.0)
    inbox.gather(0.001)
    assert inbox.poll(60.0).element == elements[0]
    assert inbox.poll_watermark().element == elements[1]
    assert not inbox.wait_for_one(60.0)
    assert inbox.poll(60.0).element == elements[2]
    assert inbox.poll_watermark() is None


def test_a_rest_lasts_whatever_comes_and_a_wake_up_ends_it():
    channel, inbox, _ = local()
    threading.Timer(0.02, lambda: channel.send(batch(1))).start()
    began_s = time.monotonic()
    inbox.rest(0.1)
    assert time.monotonic() - began_s >= 0.09
    # What has come meanwhile is taken at once.
    assert not inbox.wait_for_one(600.0)
    assert inbox.poll(600.0).element.num_rows == 1
    threading.Timer(0.02, inbox.wake).start()
    inbox.rest(600.0)
    assert not inbox.wait_for_one(600.0)
    assert inbox.poll(600.0) is None
    inbox.wake()
    inbox.rest(600.0)
    assert inbox.poll(600.0) is None


def test_nobody_rests_before_what_had_gathered_is_taken():
    inbox = Inbox()
    for time_ms in range(3):
        inbox.put(Delivery(CHANNEL, Watermark(time_ms), no_release))
    inbox.rest(0.001)
    inbox.poll(600.0)
    inbox.rest(600.0)
    inbox.poll(600.0)
    inbox.rest(600.0)
    assert inbox.poll(600.0).element == Watermark(2)


def test_what_comes_after_a_rest_wakes():
    channel, inbox, _ = local()
    inbox.rest(0.001)
    threading.Timer(0.02, lambda: channel.send(batch(1))).start()
    assert inbox.wait_for_one(600.0)
    assert inbox.poll(600.0).element.num_rows == 1


def test_rows_of_other_inputs_are_left_where_the_input_counts_and_others_pass_them_by():
    """Rows of a join's inputs arrive in turn: taken one by one, each would cost as much as all of its input."""
    inbox = Inbox()
    rows = batch(2)
    for edge_index in (0, 0, 1, 0, 1):
        inbox.put(Delivery(ChannelId(CHANNEL.producer, CHANNEL.consumer, edge_index), rows, no_release))
    put(inbox, Watermark(1))
    inbox.put(Delivery(ChannelId(CHANNEL.producer, CHANNEL.consumer, 0), rows, no_release))
    inbox.gather(0.0)
    # Not more than are wanted, and never those after something else than rows.
    assert len(inbox.poll_rows(RowsWanted(3, 1 << 20), rows.schema, 0)) == 1
    assert len(inbox.poll_rows(RowsWanted(100, 1 << 20), rows.schema, 0)) == 2
    assert inbox.poll_rows(RowsWanted(100, 1 << 20), rows.schema, 0) == []
    # What was passed by has gathered as well.
    assert inbox.has_gathered
    left = inbox.poll_rows(RowsWanted(100, 1 << 20), rows.schema)
    assert [item.channel.edge_index for item in left] == [1, 1]
    assert inbox.poll(60.0).element == Watermark(1)
    assert inbox.poll(60.0).channel.edge_index == 0


OTHER = ChannelId(SubtaskId(0, 1), SubtaskId(1, 0))


def put(inbox, element, channel=CHANNEL):
    inbox.put(Delivery(channel, element, no_release))


@pytest.mark.parametrize("element", [Watermark(7), Barrier(1)])
def test_a_wave_is_whole_when_every_channel_has_brought_its_watermark_or_its_barrier(element):
    inbox = Inbox()
    put(inbox, batch(1))
    put(inbox, element)
    # Twice the same channel is not two channels.
    put(inbox, element)
    timer = threading.Timer(0.05, put, (inbox, element, OTHER))
    timer.start()
    assert inbox.await_wave(0.0, 10.0, 10.0, 2) is Wave.WHOLE
    timer.join()
    # What was there is taken without another wait.
    for _ in range(4):
        assert inbox.await_wave(10.0, 10.0, 10.0, 2) is Wave.WHOLE
        assert inbox.poll(0.0) is not None
    # It counts once.
    assert inbox.await_wave(0.0, 0.0, 0.0, 2) is Wave.TORN


def test_a_wave_ends_a_rest_and_other_elements_do_not():
    inbox = Inbox()
    put(inbox, batch(1))
    began_s = time.monotonic()
    assert inbox.await_wave(0.1, 0.0, 0.0, 1) is Wave.TORN
    assert time.monotonic() - began_s >= 0.09
    inbox.poll(0.0)
    put(inbox, Watermark(7))
    assert inbox.await_wave(10.0, 0.0, 0.0, 1) is Wave.WHOLE


def test_what_was_missing_in_a_wave_makes_it_whole_later():
    inbox = Inbox()
    put(inbox, Watermark(7))
    assert inbox.await_wave(0.0, 0.0, 0.0, 2) is Wave.TORN
    inbox.poll(0.0)
    put(inbox, Watermark(7), OTHER)
    assert inbox.await_wave(10.0, 10.0, 10.0, 2) is Wave.WHOLE


def test_a_watermark_between_two_waves_is_no_part_of_the_next():
    clock = ManualClock()
    inbox = Inbox(clock)
    # One too many.
    put(inbox, Watermark(7))
    clock.advance_ms(20)
    put(inbox, Watermark(8), OTHER)
    assert inbox.await_wave(0.0, 0.0, 0.0, 2, apart_s=0.01) is Wave.TORN
    put(inbox, Watermark(8))
    assert inbox.await_wave(10.0, 10.0, 10.0, 2, apart_s=0.01) is Wave.WHOLE


def test_rows_of_some_channels_are_left():
    inbox = Inbox()
    rows = batch(2)
    for channel in (OTHER, OTHER, CHANNEL, OTHER):
        put(inbox, rows, channel)
    assert len(inbox.poll_rows(RowsWanted(100, 1 << 20), rows.schema, but={CHANNEL})) == 2
    assert inbox.poll_rows(RowsWanted(100, 1 << 20), rows.schema, but={CHANNEL}) == []


def test_a_wake_up_ends_the_wait_for_a_wave_and_takes_nothing():
    inbox = Inbox()
    put(inbox, batch(1))
    inbox.wake()
    assert inbox.await_wave(10.0, 10.0, 10.0, 2) is Wave.WOKEN
    assert not inbox.has_gathered
    assert inbox.await_wave(0.0, 0.0, 0.0, 2) is Wave.TORN
    assert inbox.has_gathered


def test_other_things_to_do_end_the_wait_for_a_wave_and_do_not_begin_it_anew():
    clock = ManualClock()
    inbox = Inbox(clock)
    put(inbox, batch(1))
    for _ in range(3):
        due_s = clock.monotonic_s() - 0.001
        assert inbox.await_wave(0.0, 0.0, 0.01, 2, due_s=due_s) is Wave.DUE
        assert not inbox.has_gathered
        clock.advance_ms(3)
    clock.advance_ms(1)
    # However much there is to do: rows wait for a wave, and no longer.
    assert inbox.await_wave(0.0, 0.0, 0.01, 2, due_s=clock.monotonic_s() - 1) is Wave.TORN
    assert inbox.poll(0.0) is not None
    put(inbox, Watermark(7))
    put(inbox, Watermark(7), OTHER)
    assert inbox.await_wave(0.0, 0.0, 0.01, 2, due_s=0.0) is Wave.WHOLE


def test_where_all_inputs_are_idle_it_is_waited_for_the_first():
    inbox = Inbox()
    began_s = time.monotonic()
    assert inbox.await_wave(0.0, 0.05, 0.0, 0) is Wave.TORN
    assert time.monotonic() - began_s >= 0.04
