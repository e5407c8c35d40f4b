"""Spreading over channels, and when gathered rows leave."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

from task_manager.channels import ChannelLimits, CreditGate, Inbox, LocalChannel
from task_manager.output import BatchPolicy, ChannelWriter, Output, OutputEdge
from weir.graph import Exchange
from weir.keys import hash_keys, key_bytes, key_groups
from weir.protocol.routing import initial_table
from weir.records import KEY_HASH_COLUMN, EndOfStream, Watermark


class NoWaker:
    def wake(self) -> None:
        pass


def batch(keys: list[str], start: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": keys, "n": pa.array(range(start, start + len(keys)), type=pa.int64())}
    )


def writer(policy: BatchPolicy | None = None, elements_max: int = 100) -> tuple[ChannelWriter, Inbox]:
    inbox = Inbox()
    gate = CreditGate(ChannelLimits(elements_max, 1 << 30), NoWaker())
    return ChannelWriter(LocalChannel(gate, inbox, 0), policy or BatchPolicy(1000, 10_000.0)), inbox


def drain(inbox: Inbox) -> list:
    elements = []
    while (delivery := inbox.poll(0.0)) is not None:
        elements.append(delivery.element)
    return elements


def test_rows_leave_at_once_when_the_receiver_is_idle():
    out, inbox = writer()
    out.append(batch(["a"]))
    assert len(inbox) == 1


def test_rows_gather_while_the_receiver_works_and_leave_when_it_is_idle_again():
    out, inbox = writer()
    out.append(batch(["a"]))
    out.append(batch(["b"], 1))
    out.append(batch(["c"], 2))
    assert len(inbox) == 1
    inbox.poll(0.0).release()
    out.flush_if_due(time.monotonic())
    (gathered,) = drain(inbox)
    assert gathered.column("key").to_pylist() == ["b", "c"]


def test_rows_gather_up_to_the_batch_size():
    out, inbox = writer(BatchPolicy(4, 10_000.0))
    out.append(batch(["a"]))
    out.append(batch(["b", "c"], 1))
    assert len(inbox) == 1
    out.append(batch(["d", "e"], 3))
    assert [element.num_rows for element in drain(inbox)] == [1, 4]


def test_rows_leave_when_their_time_is_over():
    out, inbox = writer(BatchPolicy(1000, 10.0))
    out.append(batch(["a"]))
    out.append(batch(["b"]))
    out.flush_if_due(out.deadline_s - 0.001)
    assert len(inbox) == 1
    out.flush_if_due(out.deadline_s)
    assert len(inbox) == 2


def test_control_elements_stay_behind_the_rows_before_them():
    out, inbox = writer()
    out.append(batch(["a"]))
    out.append(batch(["b"]))
    out.send_control(Watermark(5))
    elements = drain(inbox)
    assert [type(element).__name__ for element in elements] == ["RecordBatch", "RecordBatch", "Watermark"]


@pytest.mark.parametrize("subtasks", [1, 3])
def test_hash_exchange_sends_each_group_to_its_owner_and_keeps_order(subtasks):
    table = initial_table(1, subtasks, 128)
    pairs = [writer() for _ in range(subtasks)]
    edge = OutputEdge(Exchange.HASH, [out for out, _ in pairs], ("key",), table.group_to_subtask)
    rows = batch([f"server-{n % 50}" for n in range(500)])
    edge.emit(rows)
    seen = 0
    for index, (_, inbox) in enumerate(pairs):
        for received in drain(inbox):
            hashes = received.column(KEY_HASH_COLUMN).to_numpy()
            assert np.array_equal(hashes, hash_keys(key_bytes(received, ("key",))))
            assert set(table.group_to_subtask[key_groups(hashes, 128)]) == {index}
            assert received.column("n").to_pylist() == sorted(received.column("n").to_pylist())
            seen += received.num_rows
    assert seen == 500


def test_a_second_hash_exchange_replaces_the_hash_of_the_first():
    out, inbox = writer()
    edge = OutputEdge(Exchange.HASH, [out], ("key",), np.zeros(128, dtype=np.int32))
    stale = batch(["a", "b"]).append_column(
        pa.field(KEY_HASH_COLUMN, pa.uint64()), pa.array([1, 2], type=pa.uint64())
    )
    edge.emit(stale)
    (received,) = drain(inbox)
    assert received.schema.names == ["key", "n", KEY_HASH_COLUMN]
    assert received.column(KEY_HASH_COLUMN).to_pylist() != [1, 2]


def test_round_robin_takes_turns_and_broadcast_sends_to_all():
    for exchange, expected in ((Exchange.ROUND_ROBIN, [2, 1]), (Exchange.BROADCAST, [3, 3])):
        pairs = [writer(BatchPolicy(1, 0.0)) for _ in range(2)]
        edge = OutputEdge(exchange, [out for out, _ in pairs])
        for n in range(3):
            edge.emit(batch([f"k{n}"]))
        assert [len(drain(inbox)) for _, inbox in pairs] == expected


def test_output_counts_rows_once_and_sends_control_on_every_channel():
    first, second = writer(), writer()
    output = Output([OutputEdge(Exchange.BROADCAST, [first[0], second[0]])])
    output.emit(batch(["a", "b"]))
    output.broadcast(EndOfStream())
    assert output.rows == 2
    for _, inbox in (first, second):
        assert isinstance(drain(inbox)[-1], EndOfStream)
