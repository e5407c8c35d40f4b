"""Spreading over channels, when gathered rows leave, and switching consumers at a batch boundary."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.channels import Inbox, LocalChannel
from task_manager.exchange.credits import IDLE_BATCHES, ChannelLimits, CreditGate
from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from weir.clock import Clock, SystemClock
from weir.errors import ConnectionLostError
from weir.graph import Edge, Exchange
from weir.keys import hash_keys, key_bytes, key_groups
from weir.protocol.routing import initial_table, rescaled
from weir.records import KEY_HASH_COLUMN, Barrier, EndOfStream, Idle, RouteMarker, Watermark
from weir.testing import ManualClock
from weir.types import ChannelId, SubtaskId


class NoWaker:
    def wake(self) -> None:
        pass


def batch(keys: list[str], start: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"key": keys, "n": pa.array(range(start, start + len(keys)), type=pa.int64())}
    )


def channel(
    index: int = 0, elements_max: int = 100, clock: Clock | None = None
) -> tuple[LocalChannel, Inbox]:
    inbox = Inbox()
    gate = CreditGate(ChannelLimits(elements_max, 1 << 30, 1e6), NoWaker(), clock or SystemClock())
    gate._rows_max = 1e9
    return LocalChannel(gate, inbox, ChannelId(SubtaskId(0, 0), SubtaskId(1, index))), inbox


def writer(
    policy: BatchPolicy | None = None, elements_max: int = 100, clock: Clock | None = None
) -> tuple[ChannelWriter, Inbox]:
    link, inbox = channel(elements_max=elements_max, clock=clock)
    return ChannelWriter(link, policy or BatchPolicy(1000, 10_000.0)), inbox


def edge_of(exchange: Exchange) -> Edge:
    return Edge(0, 1, exchange, ("key",) if exchange is Exchange.HASH else (), 0)


def drain(inbox: Inbox) -> list:
    elements = []
    while (delivery := inbox.poll(0.0)) is not None:
        elements.append(delivery.element)
        delivery.release()
    return elements


def keep_busy(out: ChannelWriter, inbox: Inbox) -> None:
    """Put so many batches in flight that the receiver counts as busy."""
    for _ in range(IDLE_BATCHES):
        add(out, batch(["busy"]))
    assert len(inbox) == IDLE_BATCHES


def add(out: ChannelWriter, element) -> None:
    out.add(element)
    out.pump(out._clock.monotonic_s())


def never_waits(timeout_s: float) -> None:
    raise AssertionError("the output waited for credit")


def test_rows_leave_at_once_when_the_receiver_is_idle():
    out, inbox = writer()
    add(out, batch(["a"]))
    assert len(inbox) == 1


def test_rows_gather_while_the_receiver_works_and_leave_when_it_has_little_to_do():
    out, inbox = writer()
    keep_busy(out, inbox)
    for n, key in enumerate("bc"):
        add(out, batch([key], n))
    assert len(inbox) == IDLE_BATCHES
    inbox.poll(0.0).release()
    out.pump(time.monotonic())
    gathered = drain(inbox)[-1]
    assert gathered.column("key").to_pylist() == ["b", "c"]


def test_rows_gather_up_to_the_batch_size():
    out, inbox = writer(BatchPolicy(4, 10_000.0))
    keep_busy(out, inbox)
    add(out, batch(["b", "c"], 1))
    assert len(inbox) == IDLE_BATCHES
    add(out, batch(["d", "e"], 3))
    assert [inbox.poll(0.0).element.num_rows for _ in range(IDLE_BATCHES + 1)] == [1] * IDLE_BATCHES + [4]


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
def test_rows_of_a_block_leave_as_if_they_came_alone_also_when_their_consumers_change(exchange, consumers):
    keys = [f"k{n % 37}" for n in range(300)]
    block = batch(keys)
    sent = []
    for is_ahead in (False, True):
        links = [channel(index) for index in range(4)]
        table = initial_table(1, consumers, 128)
        edge = OutputEdge(
            edge_of(exchange),
            {index: links[index][0] for index in range(consumers)},
            BatchPolicy(1000, 0.0),
            table.group_to_subtask,
        )
        output = Output([edge], never_waits, SystemClock())
        for first in range(0, 300, 10):
            if first == 150:
                new, _ = rescaled(table, consumers + 1)
                added = {consumers: links[consumers][0]}
                routes = new.group_to_subtask if exchange is Exchange.HASH else None
                output.reroute(edge.edge, 2, routes, added, [])
            if is_ahead:
                output.emit_ahead(block, first, first + 10)
            else:
                output.emit(block.slice(first, 10))
        rows = [
            [row for item in drain(inbox) if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]
            for _, inbox in links
        ]
        sent.append((rows, output.rows, output.batches))
    assert sent[0] == sent[1]
    assert sum(map(len, sent[0][0])) >= 300


class LateNumbers:
    """Column ``n``, which a batch lacks."""

    place, constants = 1, ()

    def __init__(self, numbers: pa.Array) -> None:
        self.numbers, self.size_bytes = numbers, numbers.nbytes

    def divided(self, order, ends, rooms=()):
        ordered = self.numbers.take(pa.array(order))
        return [ordered.slice(first, end - first) for first, end in itertools.pairwise(ends)]

    def put_into(self, batch, values):
        return batch.add_column(1, "n", values)

    def joined(self, batch):
        return self.put_into(batch, self.numbers)


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("is_narrowed", [False, True])
def test_rows_of_which_a_column_comes_late_go_where_others_go(exchange, consumers, is_narrowed):
    rows = batch([f"key-{number % 7}" for number in range(50)])
    edge = replace(edge_of(exchange), columns=("key",), is_narrowed=is_narrowed)
    table = initial_table(1, consumers, 128).group_to_subtask
    received = []
    for is_late in (False, True):
        links = {index: channel(index) for index in range(consumers)}
        outputs = OutputEdge(
            edge, {index: link for index, (link, _) in links.items()}, BatchPolicy(1000, 10_000.0), table
        )
        output = Output([outputs], never_waits, SystemClock())
        if is_late:
            output.emit_late(rows.drop_columns(["n"]), LateNumbers(rows.column("n")))
        else:
            output.emit(rows)
        output.finish()
        received.append([drain(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]
    is_of_use = exchange is Exchange.HASH and not is_narrowed
    assert output.late_columns_but() == (("key",) if is_of_use else None)


@pytest.mark.parametrize("bytes_max", [1 << 30, 4000])
def test_rows_of_which_a_column_comes_late_leave_in_batches_that_need_not_be_cut(bytes_max, monkeypatch):
    """A batch that is cut is copied once more where memory is shared."""
    added = []
    add = ChannelWriter.add

    def noted(self, element, size_bytes=None):
        added.append(element)
        add(self, element, size_bytes)

    monkeypatch.setattr(ChannelWriter, "add", noted)
    rows = batch([f"key-{number % 7}" for number in range(600)])
    table = initial_table(1, 2, 128).group_to_subtask
    links = {index: channel(index) for index in range(2)}
    for link, _ in links.values():
        link.batch_bytes_max = bytes_max
    writers = {index: link for index, (link, _) in links.items()}
    outputs = OutputEdge(edge_of(Exchange.HASH), writers, BatchPolicy(100, 0.0), table)
    output = Output([outputs], never_waits, SystemClock())
    output.emit_late(rows.drop_columns(["n"]), LateNumbers(rows.column("n")))
    output.finish()
    parts = [element for element in added if isinstance(element, pa.RecordBatch)]
    assert sum(part.num_rows for part in parts) == 600
    assert all(part.num_rows <= 100 and part.nbytes <= bytes_max for part in parts)


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("is_narrowed", [False, True])
def test_picked_rows_go_where_they_would_go_as_a_batch_of_their_own(exchange, consumers, is_narrowed):
    hashed_before = pa.array(np.arange(50, dtype=np.uint64))
    rows = batch([f"key-{number % 7}" for number in range(50)]).append_column(KEY_HASH_COLUMN, hashed_before)
    edge = replace(edge_of(exchange), columns=("key",), is_narrowed=is_narrowed)
    table = initial_table(1, consumers, 128).group_to_subtask
    # Many, a few, and one.
    picks = [np.arange(0, 50, 2), np.arange(40, 50), np.array([17])]
    received = []
    for is_picked in (False, True):
        links = {index: channel(index) for index in range(consumers)}
        outputs = OutputEdge(
            edge, {index: link for index, (link, _) in links.items()}, BatchPolicy(1000, 10_000.0), table
        )
        output = Output([outputs], never_waits, SystemClock())
        for picked in picks:
            if is_picked:
                output.emit_picked(rows, picked)
            else:
                output.emit(rows.take(pa.array(picked)))
        assert (output.rows, output.batches) == (36, 3)
        output.finish()
        received.append([drain(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]


def wide_batch(rows: int, row_bytes: int, start: int = 0) -> pa.RecordBatch:
    """Rows of one number and one long text."""
    texts = [f"{n:08d}" + "x" * (row_bytes - 8) for n in range(start, start + rows)]
    return pa.RecordBatch.from_pydict({"n": list(range(start, start + rows)), "text": texts})


def bounded_writer(bytes_in_flight: int, bytes_waiting: float = float("inf")) -> tuple[ChannelWriter, Inbox]:
    """A channel of so many bytes, with a buffer of so many before it."""
    inbox = Inbox()
    gate = CreditGate(ChannelLimits(100, bytes_in_flight, 1e6), NoWaker(), SystemClock())
    gate._rows_max = 1e9
    link = LocalChannel(gate, inbox, ChannelId(SubtaskId(0, 0), SubtaskId(1, 0)))
    return ChannelWriter(link, BatchPolicy(1 << 20, 0.0, float("inf"), bytes_waiting)), inbox


def test_rows_that_wait_are_bounded_by_bytes():
    """A buffer of 32,768 rows of 100 KB would hold 3 GB."""
    out, inbox = bounded_writer(64 << 10, bytes_waiting=1 << 20)
    added = 0
    while not out.is_full:
        add(out, wide_batch(10, 10_000, added))
        added += 10
    assert added * 10_000 < (2 << 20)
    rows = []
    while len(rows) < added:
        delivery = inbox.poll(0.0)
        rows += delivery.element.column("n").to_pylist()
        delivery.release()
        out.pump(time.monotonic())
    assert rows == list(range(added))
    assert not out.is_full


def test_a_batch_of_many_bytes_leaves_in_pieces_that_fit_the_channel():
    out, inbox = bounded_writer(1 << 20)
    rows = wide_batch(400, 20_000)
    add(out, rows)
    pieces = []
    while sum(piece.num_rows for piece in pieces) < 400:
        waiting = len(inbox)
        assert waiting >= 2, "one is worked on while the next one comes"
        delivery = inbox.poll(0.0)
        pieces.append(delivery.element)
        assert delivery.size_bytes <= 1 << 19
        delivery.release()
        out.pump(time.monotonic())
        if out.is_empty:
            pieces += drain(inbox)
    assert pa.concat_batches(pieces).equals(rows)


def test_a_single_row_larger_than_the_channel_passes_alone():
    out, inbox = bounded_writer(64 << 10)
    add(out, wide_batch(3, 1 << 20))
    for _ in range(3):
        assert len(inbox) == 1
        delivery = inbox.poll(0.0)
        assert delivery.element.num_rows == 1
        delivery.release()
        out.pump(time.monotonic())


def test_large_batches_are_not_joined():
    """Joining copies every byte, and saves nothing."""
    out, inbox = bounded_writer(1 << 30)
    keep_busy(out, inbox)
    drain(inbox)
    out.channel.gate.take(1, 1 << 30)
    for start in (0, 2):
        add(out, wide_batch(2, 1 << 20, start))
    out.channel.gate.release(1)
    out.pump(time.monotonic())
    assert [item.num_rows for item in drain(inbox)] == [2, 2]


def test_rows_leave_when_their_time_is_over():
    # Long enough that it does not run out while the test gets here.
    out, inbox = writer(BatchPolicy(1000, 100_000.0))
    keep_busy(out, inbox)
    add(out, batch(["b"]))
    out.pump(out.deadline_s - 0.001)
    assert len(inbox) == IDLE_BATCHES
    out.pump(out.deadline_s)
    assert len(inbox) == IDLE_BATCHES + 1


def test_control_elements_stay_behind_the_rows_before_them():
    out, inbox = writer()
    add(out, batch(["a"]))
    add(out, batch(["b"]))
    add(out, Watermark(5))
    kinds = [type(inbox.poll(0.0).element).__name__ for _ in range(3)]
    assert kinds == ["RecordBatch", "RecordBatch", "Watermark"]


def stalled_edge():
    """Two consumers, one of which takes one batch only; its sender has a row for it that waits."""
    before = initial_table(1, 2, 128)
    links = [channel(0, elements_max=1), channel(1)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in enumerate(links)},
        BatchPolicy(1, 10_000.0),
        before.group_to_subtask,
    )
    names = [f"server-{n}" for n in range(100)]
    owners = before.group_to_subtask[key_groups(hash_keys(key_bytes(batch(names), ("key",))), 128)]
    slow = [name for name, owner in zip(names, owners, strict=True) if owner == 0][:2]
    output = Output([edge], lambda seconds: pytest.fail("it waits"), SystemClock())
    for edge_row in slow:
        edge.add(batch([edge_row]))
    output.pump()
    return output, links, before


def test_a_watermark_waits_for_the_rows_before_it_on_all_channels():
    """A rescale may move a row that waits to a consumer for which it would be late."""
    output, [(_, slow), (_, fast)], _ = stalled_edge()
    for time_ms in range(100):
        output.broadcast(Watermark(time_ms))
    assert drain(fast) == []
    first = slow.poll(0.0)
    assert first.element.num_rows == 1
    first.release()
    output.pump()
    assert drain(slow)[1:] == [Watermark(0), Watermark(99)]
    assert drain(fast) == [Watermark(0), Watermark(99)]


def test_rows_end_the_idleness_that_was_not_told_yet():
    output, [(_, slow), (_, fast)], _ = stalled_edge()
    output.broadcast(Watermark(5))
    output.broadcast(Idle())
    output._edges[0].add(batch(["server-1"]))
    for _ in range(3):
        drain(slow)
        output.pump()
    assert Idle() not in drain(fast)


def test_no_row_that_moves_at_a_switch_comes_after_a_watermark_that_it_was_before():
    output, [(_, slow), (_, fast)], before = stalled_edge()
    output.broadcast(Watermark(5))
    after, _ = rescaled(before, (1,))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {}, [0])
    moved = drain(fast)
    assert [type(element).__name__ for element in moved] == ["RouteMarker", "RecordBatch", "Watermark"]
    assert [type(element).__name__ for element in drain(slow)] == [
        "RecordBatch",
        "RouteMarker",
        "EndOfStream",
    ]


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


def test_rows_of_a_block_leave_at_once_and_nobody_looks_again():
    (near, inbox), (far, _) = channel(0), channel(1)
    far.is_remote, done = True, []
    far.flush = lambda: done.append("flushed")
    put = inbox.put
    inbox.put = lambda delivery: (done.append(type(delivery.element).__name__), put(delivery))
    table = initial_table(1, 2, 128).group_to_subtask
    edge = OutputEdge(edge_of(Exchange.HASH), {0: near, 1: far}, BatchPolicy(1000, 1.0), table)
    output = Output([edge], never_waits, SystemClock())
    block = batch([f"key {number}" for number in range(100)])
    output.emit_ahead(block, 0, 50)
    assert done == ["flushed", "RecordBatch"]
    assert output.pump() == float("inf")
    assert done == ["flushed", "RecordBatch"]
    # But once: a broken channel is seen without rows, too.
    far.gate.fail(ConnectionLostError("gone"))
    with pytest.raises(ConnectionLostError):
        output.pump()


def test_a_block_is_divided_before_the_first_of_its_rows_is_due():
    table = initial_table(1, 2, 128).group_to_subtask
    links = {index: channel(index)[0] for index in range(2)}
    edge = OutputEdge(edge_of(Exchange.HASH), links, BatchPolicy(1000, 1.0), table)
    output = Output([edge], never_waits, SystemClock())
    block = batch([f"key {number}" for number in range(100)])
    output.divide_ahead(block)
    divided = edge._divided
    assert divided.block is block
    output.emit_ahead(block, 0, 50)
    assert edge._divided is divided
    # Others are not divided.
    alone = OutputEdge(edge_of(Exchange.BROADCAST), links, BatchPolicy(1000, 1.0))
    alone.divide_ahead(block)
    assert alone._divided is None


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
    assert waits
    assert output.waited_s > 0
    output.finish()
    assert isinstance(drain(inbox)[-1], EndOfStream)


def test_reroute_moves_unsent_rows_marks_every_channel_and_ends_retired_ones():
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0, 2))
    links = [channel(index, elements_max=1) for index in range(3)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {0: links[0][0], 1: links[1][0]},
        BatchPolicy(10_000, 10_000.0),
        before.group_to_subtask,
    )
    output = Output([edge], never_waits, SystemClock())
    output.emit(batch([f"server-{n}" for n in range(100)]))
    output.emit(batch([f"server-{n}" for n in range(100)], 100))
    output.broadcast(Watermark(77))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {2: links[2][0]}, [1])
    received = [drain(inbox) for _, inbox in links]
    while (more := [drain(inbox) for _, inbox in links]) != [[], [], []] or not all(
        out.is_empty for out in edge.writers
    ):
        output.pump()
        received = [old + new for old, new in zip(received, more, strict=True)]
    assert isinstance(received[1][-1], EndOfStream)
    assert isinstance(received[1][-2], RouteMarker)
    rows: list[int] = []
    for index, elements in enumerate(received):
        marker = next(at for at, element in enumerate(elements) if isinstance(element, RouteMarker))
        assert elements[marker] == RouteMarker(after.version)
        for at, element in enumerate(elements):
            if isinstance(element, pa.RecordBatch):
                table = before if at < marker else after
                groups = key_groups(element.column(KEY_HASH_COLUMN).to_numpy(), 128)
                assert set(table.group_to_subtask[groups]) == {index}
                rows += element.column("n").to_pylist()
        if index != 1:
            assert elements[-1] == Watermark(77), "behind every row that it was behind before"
    assert sorted(rows) == list(range(200))


@pytest.mark.parametrize("has_key_groups", [False, True])
def test_copies_that_wait_at_a_reroute_go_to_all_consumers_of_before_and_to_no_other(has_key_groups):
    """Two of three retire, one of which has credit for one batch only; another one comes."""
    table = initial_table(1, 3, 128)
    after, _ = rescaled(table, (0, 3))
    routes = [each.group_to_subtask if has_key_groups else None for each in (table, after)]
    links = [channel(0, elements_max=2), channel(1), channel(2, elements_max=1), channel(3)]
    edge = OutputEdge(
        edge_of(Exchange.BROADCAST),
        {index: link for index, (link, _) in enumerate(links[:3])},
        BatchPolicy(100, 10_000.0),
        routes[0],
    )
    waits = []

    def reroute_once(timeout_s: float) -> None:
        waits.append(timeout_s)
        output.reroute(edge_of(Exchange.BROADCAST), after.version, routes[1], {3: links[3][0]}, [1, 2])

    output = Output([edge], reroute_once, SystemClock())
    for start in range(0, 15, 3):
        output.emit(batch(["a", "b", "c"], start))
    assert not waits
    assert [len(inbox) for _, inbox in links] == [2, 5, 1, 0]
    output.broadcast(Watermark(7))
    reroute_once(0.0)
    output.emit(batch(["d"], 15))
    received: list[list] = [[] for _ in links]
    while any(more := [drain(inbox) for _, inbox in links]):
        received = [old + new for old, new in zip(received, more, strict=True)]
        output.pump()

    def rows(elements: list) -> list[int]:
        return [n for e in elements if isinstance(e, pa.RecordBatch) for n in e.column("n").to_pylist()]

    before = list(range(15))
    assert [rows(elements) for elements in received] == [[*before, 15], before, before, [15]]
    assert all(isinstance(received[index][-1], EndOfStream) for index in (1, 2))
    assert Watermark(7) in received[0]
    for elements in received[:3] if has_key_groups else ():
        assert rows(elements[: elements.index(RouteMarker(after.version))]) == before


def test_an_input_without_keys_of_a_stage_with_key_groups_has_markers_too():
    """An owner waits for those of all its inputs."""
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, old_inbox), (new, new_inbox) = channel(0), channel(1)
    edge = OutputEdge(
        edge_of(Exchange.ROUND_ROBIN), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask
    )
    output = Output([edge], never_waits, SystemClock())
    output.reroute(edge_of(Exchange.ROUND_ROBIN), after.version, after.group_to_subtask, {1: new}, [])
    assert [drain(inbox) for inbox in (old_inbox, new_inbox)] == [[RouteMarker(after.version)]] * 2


def test_a_reroute_while_the_rest_is_sent_loses_nothing():
    """One consumer has credit for all, the other one for nothing: its rows go to the first one when it retires."""
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0,))
    links = [channel(0), channel(1, elements_max=1)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {index: link for index, (link, _) in enumerate(links)},
        BatchPolicy(10_000, 10_000.0),
        before.group_to_subtask,
    )
    waits = []

    def reroute_once(timeout_s: float) -> None:
        waits.append(timeout_s)
        output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {}, [1])

    output = Output([edge], reroute_once, SystemClock())
    for start in (0, 100):
        output.emit(batch([f"server-{n}" for n in range(100)], start))
    output.finish()
    assert len(waits) == 1
    received = [drain(inbox) for _, inbox in links]
    rows = [
        n
        for part in received
        for e in part
        if isinstance(e, pa.RecordBatch)
        for n in e.column("n").to_pylist()
    ]
    assert sorted(rows) == list(range(200))
    for elements in received:
        assert sum(isinstance(element, EndOfStream) for element in elements) == 1
        assert isinstance(elements[-1], EndOfStream)
        assert RouteMarker(after.version) in elements


def test_a_reroute_after_the_end_tells_new_consumers_only():
    before = initial_table(1, 2, 128)
    after, _ = rescaled(before, (0, 2))
    links = [channel(index) for index in range(3)]
    edge = OutputEdge(
        edge_of(Exchange.HASH),
        {0: links[0][0], 1: links[1][0]},
        BatchPolicy(10_000, 10_000.0),
        before.group_to_subtask,
    )
    output = Output([edge], never_waits, SystemClock())
    output.emit(batch(["a", "b"]))
    output.finish()
    assert [isinstance(drain(inbox)[-1], EndOfStream) for _, inbox in links[:2]] == [True, True]
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {2: links[2][0]}, [1])
    assert [drain(inbox) for _, inbox in links] == [[], [], [RouteMarker(after.version), EndOfStream()]]


def test_a_new_consumer_learns_the_watermark_that_the_others_have():
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, _), (new, inbox) = channel(0), channel(1)
    edge = OutputEdge(edge_of(Exchange.HASH), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask)
    output = Output([edge], never_waits, SystemClock())
    output.broadcast(Watermark(5))
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {1: new}, [])
    assert drain(inbox) == [RouteMarker(after.version), Watermark(5)]


def test_a_new_consumer_learns_that_nothing_comes_for_now():
    """A barrier since then changes nothing about it."""
    before = initial_table(1, 1, 128)
    after, _ = rescaled(before, 2)
    (old, _), (new, inbox) = channel(0), channel(1)
    edge = OutputEdge(edge_of(Exchange.HASH), {0: old}, BatchPolicy(1000, 10.0), before.group_to_subtask)
    output = Output([edge], never_waits, SystemClock())
    for element in (Watermark(5), Idle(), Barrier(1)):
        output.broadcast(element)
    output.reroute(edge_of(Exchange.HASH), after.version, after.group_to_subtask, {1: new}, [])
    assert drain(inbox) == [RouteMarker(after.version), Watermark(5), Idle()]


def test_rows_that_wait_for_credit_for_long_hold_the_sender_back():
    clock = ManualClock()
    policy = BatchPolicy(1000, 10_000.0, age_ms_max=20.0)
    out, inbox = writer(policy, elements_max=IDLE_BATCHES, clock=clock)
    keep_busy(out, inbox)
    add(out, batch(["a", "b"]))
    assert not out.is_full
    assert out.rows == 2
    clock.advance_ms(21)
    assert out.is_full
    assert out.age_s(clock.monotonic_s()) == pytest.approx(0.021)
    drain(inbox)
    out.pump(clock.monotonic_s())
    assert not out.is_full
    assert (out.rows, out.age_s(clock.monotonic_s())) == (0, 0.0)


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
