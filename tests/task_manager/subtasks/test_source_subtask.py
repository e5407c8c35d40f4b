"""A source holds after the barrier of a savepoint with which the job is to stop; if it fails, the source reads on."""

from __future__ import annotations

import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from task_manager.checkpoints.checkpoint_parts import TakenPart
from task_manager.exchange.inbox import Inbox
from task_manager.progress import SubtaskProgress
from task_manager.subtasks.mailbox import Mailbox
from task_manager.subtasks.source_subtask import SourceSubtask
from task_manager.subtasks.subtask_parts import SubtaskParts, SubtaskTimers
from weir.author.operator import Poll
from weir.author.watermarks import DEFAULT_STRATEGY, bounded_out_of_orderness, watermark_alignment
from weir.clock import SystemClock
from weir.operators.user_errors import UserErrors
from weir.rows.records import WATERMARK_MIN_MS, Block, Idle, Watermark
from weir.state.tables.sweep import Sweeps
from weir.types import SubtaskId

SUBTASK = SubtaskId(0, 0)


class Reader:
    """Never ends, and counts how often it is asked."""

    polls = 0
    next_poll_us = 0
    event_time_ms = WATERMARK_MIN_MS
    prepared = None
    #: What it says first.
    began = Poll()

    def look_ahead(self, look):
        pass

    def open(self, context):
        pass

    def begin(self):
        return self.began

    def close(self):
        pass

    def snapshot(self):
        return self.polls

    def prepare(self):
        prepared, self.prepared = self.prepared, None
        return prepared

    def poll(self, rows_max):
        self.polls += 1
        time.sleep(0.001)
        return Poll(next_poll_us=self.next_poll_us, event_time_ms_max=self.event_time_ms)


class Parts:
    """Takes every part."""

    def take(self, subtask, checkpoint_id, operators, captures, backend, passed_id):
        return TakenPart(subtask, checkpoint_id, operators, passed_id)

    def deliver(self, part, rows=()):
        pass


def made(reader, strategy=DEFAULT_STRATEGY, have_rows=(), broadcast=lambda element, but=(): None):
    """Not started yet."""
    output = SimpleNamespace(
        broadcast=broadcast,
        pump=lambda: float("inf"),
        close=lambda: None,
        waited_s=0.0,
        is_held=False,
        is_over=False,
        send_rest=lambda: True,
        finish=lambda: None,
        has_channels=False,
        batches=0,
        bytes_sent=0,
    )
    chain = SimpleNamespace(
        operators=[None],
        only_filters=False,
        tables=SimpleNamespace(sweeps=Sweeps()),
        drain=lambda until_s: None,
        pauses=SimpleNamespace(paused_at=None, on_pause=None),
        is_paused=False,
        park=lambda with_first: [],
        open=lambda: None,
        close=lambda: None,
        output=output,
        rows_into_last=0,
        snapshot=lambda checkpoint_id: ({}, []),
        sync=lambda: None,
        flush_part=lambda share, is_over: True,
        on_watermark=lambda time_ms: None,
        assigns_times=False,
        early_sides=frozenset(),
        idle_at_s=float("inf"),
        is_timed=False,
        look_ahead=lambda block: None,
    )
    timers = SubtaskTimers(200, 0, 1000, 1000, 1000, 5, 100)
    context = SimpleNamespace(operator_name="source")
    parts = SubtaskParts(
        SUBTASK,
        "step 'source', subtask 0",
        chain,
        Mailbox(Inbox()),
        timers,
        SystemClock(),
        lambda: None,
        Parts(),
        SubtaskProgress(),
        UserErrors(),
    )
    return SourceSubtask(parts, reader, lambda start_us: context, 10, strategy, have_rows)


@pytest.fixture
def source(request):
    subtask = made(Reader(), getattr(request, "param", DEFAULT_STRATEGY))
    subtask.start()
    subtask.begin(1)
    wait_for_reads(subtask)
    yield subtask
    subtask.cancel()
    assert subtask.join(60)


def wait_for_reads(source):
    before = source._reader.polls
    deadline_s = time.monotonic() + 60
    while source._reader.polls < before + 5:
        assert time.monotonic() < deadline_s, "the source does not read"
        time.sleep(0.005)


def pass_rounds(source):
    """Wait until its loop has come round some times: each does what was ordered once."""
    for _ in range(5):
        run(source, lambda: None)


def run(source, command):
    source.mailbox.post(command).result(60)


def held(source):
    """Two commands later it has read nothing: between two commands a source that reads would have."""
    before = source._reader.polls
    for _ in range(5):
        done = threading.Event()
        run(source, done.set)
        time.sleep(0.01)
    return source._reader.polls == before


def test_it_says_first_who_else_has_nothing_to_send():
    """Not of those that send rows of a checkpoint before they end."""
    reader, said = Reader(), []
    reader.began = Poll(without=(1, 2, 3))
    subtask = made(reader, have_rows={2}, broadcast=lambda element, but=(): said.append(element))
    subtask.start()
    subtask.begin(1)
    wait_for_reads(subtask)
    subtask.cancel()
    assert subtask.join(60)
    assert said[0] == Watermark(WATERMARK_MIN_MS, (1, 3))


def test_it_holds_until_the_savepoint_is_given_up(source):
    run(source, partial(source.checkpoint, 7, holds=True))
    assert held(source)
    run(source, partial(source.end_checkpoint, 6, committed=False))
    assert held(source)
    run(source, partial(source.end_checkpoint, 7, committed=False))
    wait_for_reads(source)


def test_it_holds_when_the_savepoint_is_complete_until_another_checkpoint_begins(source):
    """Then the control plane that wanted to stop the job is gone."""
    run(source, partial(source.checkpoint, 7, holds=True))
    run(source, partial(source.end_checkpoint, 7, committed=True))
    assert held(source)
    run(source, partial(source.checkpoint, 8))
    wait_for_reads(source)


def test_a_trigger_after_the_end_of_its_checkpoint_does_not_hold(source):
    run(source, partial(source.end_checkpoint, 7, committed=False))
    run(source, partial(source.checkpoint, 7, holds=True))
    wait_for_reads(source)


def test_an_idle_source_does_not_wake_for_watermarks(source, monkeypatch):
    """It tells none before its next row."""
    inbox, sleeps_s = source.mailbox.inbox, []
    poll = inbox.poll
    monkeypatch.setattr(inbox, "poll", lambda timeout_s: (sleeps_s.append(timeout_s), poll(timeout_s))[1])
    source._reader.next_poll_us = time.time_ns() // 1000 + 60_000_000
    deadline_s = time.monotonic() + 60
    # Watermarks come every 200 ms.
    while max(sleeps_s, default=0) < 0.4:
        assert time.monotonic() < deadline_s, "it wakes for watermarks"
        time.sleep(0.005)


ALIGNED = bounded_out_of_orderness("0s", alignment=watermark_alignment("1s", group="g"))


@pytest.mark.parametrize("source", [ALIGNED], indirect=True)
def test_a_source_that_is_too_far_ahead_reads_on_when_the_others_have_followed(source):
    """Without a watermark it reads; then it is told how far the others are."""
    source._reader.event_time_ms = 5_000
    wait_until(lambda: source.progress.is_held_back)
    polls = source._reader.polls
    source.align({"other": 9_000})
    source.align({"g": 3_999})
    pass_rounds(source)
    assert source._reader.polls == polls
    assert source.progress.read_watermark_ms == 5_000
    assert not source.progress.is_idle
    source.align({"g": 4_000})
    wait_for_reads(source)
    assert not source.progress.is_held_back


@pytest.mark.parametrize("source", [ALIGNED], indirect=True)
def test_a_source_that_waits_for_others_still_takes_part_in_checkpoints(source):
    source._reader.event_time_ms = 5_000
    wait_until(lambda: source.progress.is_held_back)
    source.mailbox.post(lambda: source.checkpoint(1, holds=True)).result(60)
    source.mailbox.post(lambda: source.end_checkpoint(1, committed=False)).result(60)
    polls = source._reader.polls
    pass_rounds(source)
    assert source._reader.polls == polls, "given up, and still too far ahead"
    source.align({"g": 5_000})
    wait_for_reads(source)


def test_a_source_that_is_held_back_from_outside_reads_nothing_and_takes_part_in_checkpoints(source):
    source.hold_back("the disk is almost full")
    wait_until(lambda: source.progress.is_held_back)
    source.mailbox.post(lambda: source.checkpoint(1, holds=True)).result(60)
    source.mailbox.post(lambda: source.end_checkpoint(1, committed=False)).result(60)
    polls = source._reader.polls
    source.hold_back("the disk is almost full")
    pass_rounds(source)
    assert source._reader.polls == polls
    source.hold_back("")
    wait_for_reads(source)
    assert not source.progress.is_held_back


IDLE_SOON = bounded_out_of_orderness(
    "0s", idle_timeout="20ms", alignment=watermark_alignment("1s", group="g")
)


@pytest.mark.parametrize("source", [IDLE_SOON], indirect=True)
def test_a_source_that_was_idle_and_is_held_back_is_idle_again_after_it(source):
    """Its watermark rises without rows, when a split has ended; who reads it must not wait for it for ever."""
    told, progress = [], source.progress
    source._chain.output.broadcast = lambda element, but=(): told.append(element)
    wait_until(lambda: progress.is_idle)
    source._reader.event_time_ms = 5_000
    wait_until(lambda: progress.is_held_back)
    assert not progress.is_idle, "it has rows"
    wait_until(lambda: bool(told) and isinstance(told[-1], Watermark))
    source.align({"g": 4_000})
    wait_until(lambda: progress.is_idle and isinstance(told[-1], Idle))


def wait_until(condition):
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize("filters", [0, 1])
def test_a_block_is_prepared_while_nothing_is_due_and_divided_if_all_steps_have_seen_it(source, filters):
    kept = [np.arange(0, 10, 2)] * filters
    rows = Block(pa.record_batch({"n": pa.array(range(10))}), *kept[-1:], kept=kept)
    divided, asked = [], threading.Event()
    source._chain.steps = [None]
    source._chain.output.divide = divided.append

    def prepare():
        asked.set()
        return None if divided or source._reader.prepared is None else take()

    def take():
        prepared, source._reader.prepared = source._reader.prepared, None
        return prepared

    def begins():
        source._reader.prepared, source._reader.prepare = rows, prepare
        source._reader.next_poll_us = SystemClock().now_us() + 3_600_000_000

    run(source, begins)
    assert asked.wait(60)
    run(source, lambda: None)
    assert divided == [rows] * filters
