"""When rows that are gathered for a channel leave, in batches of which size, and what waits for credit."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from task_manager.exchange.channels import IDLE_BATCHES, ChannelLimits, CreditGate, LocalChannel
from task_manager.exchange.inbox import Inbox
from task_manager.exchange.writer import BatchPolicy, ChannelWriter
from tests.task_manager.exchange.made_channels import NoWaker, batch, channel, drain
from weir.clock import Clock, SystemClock
from weir.rows.records import Barrier, Watermark
from weir.testing import ManualClock
from weir.types import ChannelId, SubtaskId


def writer(
    policy: BatchPolicy | None = None, elements_max: int = 100, clock: Clock | None = None
) -> tuple[ChannelWriter, Inbox]:
    link, inbox = channel(elements_max=elements_max, clock=clock)
    return ChannelWriter(link, policy or BatchPolicy(1000, 10_000.0)), inbox


def keep_busy(out: ChannelWriter, inbox: Inbox) -> None:
    """Put so many batches in flight that the receiver counts as busy."""
    for _ in range(IDLE_BATCHES):
        add(out, batch(["busy"]))
    assert len(inbox) == IDLE_BATCHES


def add(out: ChannelWriter, element) -> None:
    out.add(element)
    out.pump(out._clock.monotonic_s())


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


@pytest.mark.parametrize("shares_memory", [True, False])
def test_a_batch_that_fits_the_channel_is_cut_only_where_it_has_to_be_carried(shares_memory):
    """Two parts cost twice as much as one; but the receiver is to work on one part while the other one is carried."""
    out, inbox = bounded_writer(1 << 20)
    out.channel.shares_memory = shares_memory
    rows = wide_batch(40, 20_000)
    add(out, rows)
    found = drain(inbox)
    assert [piece.num_rows for piece in found] == ([40] if shares_memory else [26, 14])
    assert pa.concat_batches(found).equals(rows)


@pytest.mark.parametrize(("rows", "pieces"), [(1125, [1125]), (1126, [1000, 126])])
def test_a_batch_of_hardly_more_rows_than_others_leaves_whole(rows, pieces):
    out, inbox = writer()
    out.channel.gate._rows_max = 1e9
    add(out, batch([str(number) for number in range(rows)], 0))
    assert [piece.num_rows for piece in drain(inbox)] == pieces


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


def test_a_barrier_that_waits_for_long_takes_the_rows_before_it_along_without_credit():
    clock = ManualClock()
    out, inbox = writer(BatchPolicy(1000, 0.0, barrier_ms_max=1000.0), elements_max=1, clock=clock)
    for _ in range(3):
        out.add(batch(["a"] * 5))
        out.pump(clock.monotonic_s())
    out.add(Barrier(7))
    out.pump(clock.monotonic_s())
    assert len(inbox) == 1
    clock.advance_ms(1001)
    out.add(batch(["a"] * 5))
    out.pump(clock.monotonic_s())
    elements = [inbox.poll(0.0).element for _ in range(len(inbox))]
    assert [getattr(item, "num_rows", item) for item in elements] == [5, 10, Barrier(7)]
    assert out.rows == 5


def test_barriers_take_rows_along_only_as_long_as_the_receiver_finishes_some():
    """A step that holds rows back lets barriers pass, and would be handed more with each checkpoint."""
    clock = ManualClock()
    out, inbox = writer(BatchPolicy(10, 0.0, barrier_ms_max=100.0), elements_max=2, clock=clock)
    sent = 0
    for number in range(50):
        for _ in range(3):
            if not out.holds_up:
                out.add(batch(["a"] * 400))
                sent += 400
        out.add(Barrier(number))
        out.pump(clock.monotonic_s())
        clock.advance_ms(101)
        out.pump(clock.monotonic_s())
        assert out.rows == 0, "every barrier passes"
    assert out.holds_up
    assert sent <= 5 * 3 * 400
    drain(inbox)
    assert not out.holds_up
