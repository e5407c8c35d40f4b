"""Spreading over channels: which rows go where, in which order, and who waits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import batch, channel, drain, edge_of, never_waits
from weir.clock import SystemClock
from weir.keys.hashing import hash_keys, key_bytes, key_groups
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table
from weir.rows.records import KEY_HASH_COLUMN, Barrier, EndOfStream, Watermark
from weir.testing import ManualClock
from weir.types import SubtaskId


@pytest.mark.parametrize("subtasks", [1, 3])
def test_hash_exchange_sends_each_group_to_its_owner_and_keeps_order(subtasks):
    table = initial_table(1, subtasks, 128)
    links = [channel(index) for index in range(subtasks)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in enumerate(links)},
        BatchPolicy(1000, 10_000.0),
        table.group_to_subtask,
    )
    Output([edge], never_waits, SystemClock()).emit(batch([f"server-{n % 50}" for n in range(500)]))
    seen = 0
    for index, (_, inbox) in enumerate(links):
        for received in drain(inbox):
            hashes = received.column(KEY_HASH_COLUMN).to_numpy()
            assert np.array_equal(hashes, hash_keys(key_bytes(received, ("key",))))
            assert set(table.group_to_subtask[key_groups(hashes, 128)]) == {index}
            assert received.column("n").to_pylist() == sorted(received.column("n").to_pylist())
            seen += received.num_rows
    assert seen == 500


@pytest.mark.parametrize("text_bytes", [1, 10_000])
def test_deliveries_of_a_hash_exchange_say_how_large_they_are(text_bytes):
    links = [channel(index) for index in range(2)]
    table = initial_table(1, 2, 128).group_to_subtask
    edge = OutputEdge(
        edge_of(Exchange.HASH), {i: link for i, (link, _) in enumerate(links)}, BatchPolicy(1000, 1.0), table
    )
    Output([edge], never_waits, SystemClock()).emit(batch([f"{n:0{text_bytes}d}" for n in range(200)]))
    deliveries = [inbox.poll(0.0) for _, inbox in links]
    for delivery, writer in zip(deliveries, edge.writers, strict=True):
        # Parts of a small batch are estimated by their share of the rows; padding of buffers counts.
        assert delivery.size_bytes == pytest.approx(delivery.element.nbytes, rel=0.2)
        assert writer.bytes_sent == delivery.size_bytes


def test_consumers_in_other_processes_are_served_first():
    (near, _), (far, _) = channel(0), channel(1)
    far.is_remote = True
    edge = OutputEdge(edge_of(Exchange.BROADCAST), {0: near, 1: far}, BatchPolicy(1000, 1.0))
    assert [writer.channel for writer in edge.writers] == [far, near]
    (added, _) = channel(2)
    added.is_remote = True
    edge.reroute(2, None, {2: added}, [1])
    assert [writer.channel for writer in edge.writers] == [added, near]


def test_rows_have_left_for_other_processes_before_a_consumer_here_is_woken():
    (near, inbox), (far, _) = channel(0), channel(1)
    far.is_remote, done = True, []
    far.flush = lambda: done.append("flushed")
    put = inbox.put
    inbox.put = lambda delivery: (done.append(type(delivery.element).__name__), put(delivery))
    edge = OutputEdge(edge_of(Exchange.BROADCAST), {0: near, 1: far}, BatchPolicy(1000, 1.0))
    output = Output([edge], never_waits, SystemClock())
    output.emit(batch(["a"]))
    output.broadcast(Barrier(1))
    assert done == ["flushed", "RecordBatch", "flushed", "Barrier"]


def test_what_is_held_leaves_for_other_processes_as_one():
    remote, inbox = channel(0)
    flushed = []
    remote.is_remote, remote.flush = True, lambda: flushed.append(len(inbox))
    output = Output(
        [OutputEdge(edge_of(Exchange.BROADCAST), {0: remote}, BatchPolicy(1000, 10_000.0))],
        never_waits,
        SystemClock(),
    )
    output.is_held = True
    output.emit(batch(["a"]))
    output.broadcast(Watermark(7))
    assert flushed == []
    output.let_go()
    assert flushed == [2]
    output.is_held = True
    output.emit(batch(["b"]))
    # The end is not held.
    output.finish()
    assert flushed[-1] == 4


def test_a_second_hash_exchange_replaces_the_hash_of_the_first():
    link, inbox = channel()
    edge = OutputEdge(
        edge_of(Exchange.HASH), {0: link}, BatchPolicy(1000, 10.0), np.zeros(128, dtype=np.int32)
    )
    stale = batch(["a", "b"]).append_column(
        pa.field(KEY_HASH_COLUMN, pa.uint64()), pa.array([1, 2], type=pa.uint64())
    )
    Output([edge], never_waits, SystemClock()).emit(stale)
    (received,) = drain(inbox)
    assert received.schema.names == ["key", "n", KEY_HASH_COLUMN]
    assert received.column(KEY_HASH_COLUMN).to_pylist() != [1, 2]


def test_round_robin_takes_turns_and_broadcast_sends_to_all():
    for exchange, expected in ((Exchange.ROUND_ROBIN, [1, 2]), (Exchange.BROADCAST, [3, 3])):
        links = [channel(index) for index in range(2)]
        edge = OutputEdge(
            edge_of(exchange), {index: link for index, (link, _) in enumerate(links)}, BatchPolicy(1, 0.0)
        )
        output = Output([edge], never_waits, SystemClock())
        for n in range(3):
            output.emit(batch([f"k{n}"]))
        assert [len(drain(inbox)) for _, inbox in links] == expected


def test_a_sender_without_credit_waits_until_there_is_some():
    link, inbox = channel(elements_max=1)
    waits = []

    def release_one(timeout_s: float) -> None:
        waits.append(timeout_s)
        inbox.poll(0.0).release()

    edge = OutputEdge(edge_of(Exchange.FORWARD), {0: link}, BatchPolicy(1, 0.0))
    output = Output([edge], release_one, SystemClock())
    output.emit(batch(["a"]))
    assert not waits
    output.emit(batch(["b"]))
    # Whoever sends may do something else first.
    assert not waits
    assert not output.has_room()
    output.emit(batch(["c"]))
    assert waits
    assert output.waited_s > 0
    output.finish()
    assert isinstance(drain(inbox)[-1], EndOfStream)


def test_rows_that_wait_on_a_channel_are_told_with_their_age():
    clock = ManualClock()
    link, inbox = channel(elements_max=1, clock=clock)
    output = Output(
        [OutputEdge(edge_of(Exchange.ROUND_ROBIN), {0: link}, BatchPolicy(1000, 0.0))],
        never_waits,
        clock,
    )
    assert output.queues() == []
    output.emit(batch(["a", "b"]))
    output.emit(batch(["c"]))
    clock.advance_ms(10)
    (queue,) = output.queues()
    assert (queue.consumer, queue.rows) == (SubtaskId(1, 0), 3)
    assert queue.age_s == pytest.approx(0.01)
    inbox.poll(0.0).release()
    output.pump()
    assert output.queues()[0].rows == 1
    inbox.poll(0.0).release()
    assert output.queues() == []
