"""Rows of blocks, picked rows, and rows of which a column comes late go where rows of their own batch would go."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from task_manager.exchange.output import Output
from task_manager.exchange.output_edge import OutputEdge
from task_manager.exchange.writer import BatchPolicy
from tests.task_manager.exchange.made_channels import batch, channel, drain, edge_of, never_waits
from weir.clock import SystemClock
from weir.errors import ConnectionLostError
from weir.plan.graph import Exchange
from weir.protocol.routing import initial_table, rescaled
from weir.rows.records import KEY_HASH_COLUMN, Block


class LateNumbers:
    """Column ``n``, which a batch lacks."""

    place, constants, kept = 1, (), None

    def __init__(self, numbers: pa.Array, is_good: np.ndarray | None = None) -> None:
        self.numbers, self.size_bytes, self._is_good = numbers, numbers.nbytes, is_good

    def divided(self, order, ends, rooms=()):
        if self._is_good is not None:
            return None
        ordered = self.numbers.take(pa.array(order))
        return [ordered.slice(first, end - first) for first, end in itertools.pairwise(ends)]

    def put_into(self, batch, values):
        return batch.add_column(1, "n", values)

    def joined(self, batch):
        self.kept = self._is_good
        whole = self.put_into(batch, self.numbers)
        return whole if self.kept is None else whole.filter(pa.array(self.kept))


def rows_in(inbox) -> list[dict]:
    return [row for item in drain(inbox) if isinstance(item, pa.RecordBatch) for row in item.to_pylist()]


def emit_all(output: Output, block: Block) -> None:
    output.emit_block(block, 0, block.columns.num_rows, block.columns.num_rows)


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
def test_rows_of_a_block_leave_as_if_they_came_alone_also_when_their_consumers_change(exchange, consumers):
    keys = [f"k{n % 37}" for n in range(300)]
    rows_of_block = batch(keys)
    block = Block(rows_of_block)
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
                output.emit_block(block, first, first + 10, 10)
            else:
                output.emit(rows_of_block.slice(first, 10))
        rows = [rows_in(inbox) for _, inbox in links]
        sent.append((rows, output.rows, output.batches))
    assert sent[0] == sent[1]
    assert sum(map(len, sent[0][0])) >= 300


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
            emit_all(output, Block(rows.drop_columns(["n"]), late=LateNumbers(rows.column("n"))))
        else:
            output.emit(rows)
        output.finish()
        received.append([drain(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]
    is_of_use = exchange is Exchange.HASH and not is_narrowed
    assert output.late_columns_but() == (("key",) if is_of_use else None)


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("share", [0.9, 0.1])
@pytest.mark.parametrize("bad", [(), (3, 17, 40)])
def test_rows_that_filters_keep_and_of_which_a_column_comes_late_go_where_others_go(
    exchange, consumers, share, bad
):
    rows = batch([f"key-{number % 7}" for number in range(50)])
    is_good = np.array([row not in bad for row in range(50)])
    picked = np.flatnonzero(np.random.default_rng(consumers).random(50) < share)
    table = initial_table(1, consumers, 128).group_to_subtask
    received = []
    for is_late in (False, True):
        links = {index: channel(index) for index in range(consumers)}
        writers = {index: link for index, (link, _) in links.items()}
        outputs = OutputEdge(edge_of(exchange), writers, BatchPolicy(1000, 10_000.0), table)
        output = Output([outputs], never_waits, SystemClock())
        if is_late:
            late = LateNumbers(rows.column("n"), is_good if bad else None)
            output.emit_block(Block(rows.drop_columns(["n"]), picked, late), 0, 50, len(picked))
        else:
            output.emit(rows.take(pa.array([row for row in picked if is_good[row]])))
        output.finish()
        received.append([rows_in(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]


@pytest.mark.parametrize("bytes_max", [1 << 30, 4000])
def test_rows_of_which_a_column_comes_late_leave_in_batches_that_need_not_be_cut(bytes_max, monkeypatch):
    """A batch that is cut is copied once more where memory is shared."""
    given = []
    split = OutputEdge._split

    def noted(self, block):
        parts = split(self, block)
        given.extend(part.rows for part in parts)
        return parts

    monkeypatch.setattr(OutputEdge, "_split", noted)
    rows = batch([f"key-{number % 7}" for number in range(600)])
    table = initial_table(1, 2, 128).group_to_subtask
    links = {index: channel(index) for index in range(2)}
    for link, _ in links.values():
        link.batch_bytes_max = bytes_max
    writers = {index: link for index, (link, _) in links.items()}
    outputs = OutputEdge(edge_of(Exchange.HASH), writers, BatchPolicy(100, 0.0), table)
    output = Output([outputs], never_waits, SystemClock())
    emit_all(output, Block(rows.drop_columns(["n"]), late=LateNumbers(rows.column("n"))))
    output.finish()
    assert sum(part.num_rows for part in given) == 600
    # An eighth more than the policy says leaves as it is.
    assert all(part.num_rows <= 112 and part.nbytes <= bytes_max for part in given)


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
                output.emit_block(Block(rows, picked), 0, rows.num_rows, len(picked))
            else:
                output.emit(rows.take(pa.array(picked)))
        assert (output.rows, output.batches) == (36, 3)
        output.finish()
        received.append([drain(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]


@pytest.mark.parametrize("exchange", list(Exchange), ids=lambda exchange: exchange.name)
@pytest.mark.parametrize("consumers", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_what_filters_keep_of_a_block_leaves_in_windows_as_batches_of_their_own_would(
    exchange, consumers, seed
):
    draw = np.random.default_rng(seed)
    rows = batch([f"key-{number}" for number in draw.integers(0, 40, 200)])
    # Most, some, and so few that they are gathered first.
    kept = [np.flatnonzero(draw.random(200) < 0.9)]
    kept.append(kept[0][draw.random(len(kept[0])) < (0.8, 0.5, 0.2, 0.0)[seed]])
    ends = [0, *sorted(draw.integers(0, 200, 12).tolist()), 200]
    table = initial_table(1, consumers, 128).group_to_subtask
    received = []
    for in_windows in (False, True):
        links = {index: channel(index) for index in range(consumers)}
        writers = {index: link for index, (link, _) in links.items()}
        edge = OutputEdge(edge_of(exchange), writers, BatchPolicy(1000, 10_000.0), table)
        output = Output([edge], never_waits, SystemClock())
        block = Block(rows, kept[-1], kept=kept)
        for start, stop in itertools.pairwise(ends):
            entered, count = block.passed(start, stop)
            mine = kept[-1][(kept[-1] >= start) & (kept[-1] < stop)]
            assert (entered[0], count) == (stop - start, len(mine))
            if count and in_windows:
                output.emit_block(block, start, stop, count)
            elif count:
                output.emit(rows.take(pa.array(mine)))
        output.finish()
        received.append([rows_in(inbox) for _, inbox in links.values()])
    assert received[0] == received[1]


def test_a_block_is_divided_before_the_first_of_its_rows_is_due():
    table = initial_table(1, 2, 128).group_to_subtask
    links = {index: channel(index)[0] for index in range(2)}
    edge = OutputEdge(edge_of(Exchange.HASH), links, BatchPolicy(1000, 1.0), table)
    output = Output([edge], never_waits, SystemClock())
    block = Block(batch([f"key {number}" for number in range(100)]))
    output.divide(block)
    divided = edge._divided
    assert divided.block is block
    output.emit_block(block, 0, 50, 50)
    assert edge._divided is divided
    # Others are not divided.
    alone = OutputEdge(edge_of(Exchange.BROADCAST), links, BatchPolicy(1000, 1.0))
    alone.divide(block)
    assert alone._divided is None


def test_rows_of_a_block_leave_at_once_and_nobody_looks_again():
    (near, inbox), (far, _) = channel(0), channel(1)
    far.is_remote, done = True, []
    far.flush = lambda: done.append("flushed")
    put = inbox.put
    inbox.put = lambda delivery: (done.append(type(delivery.element).__name__), put(delivery))
    table = initial_table(1, 2, 128).group_to_subtask
    edge = OutputEdge(edge_of(Exchange.HASH), {0: near, 1: far}, BatchPolicy(1000, 1.0), table)
    output = Output([edge], never_waits, SystemClock())
    block = Block(batch([f"key {number}" for number in range(100)]))
    output.emit_block(block, 0, 50, 50)
    assert done == ["flushed", "RecordBatch"]
    assert output.pump() == float("inf")
    assert done == ["flushed", "RecordBatch"]
    # But once: a broken channel is seen without rows, too.
    far.gate.fail(ConnectionLostError("gone"))
    with pytest.raises(ConnectionLostError):
        output.pump()
