"""What a subtask records while barriers overtake rows: all of it, up to a bound."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from task_manager.checkpoints.checkpoint_inputs import CheckpointInputs
from task_manager.checkpoints.checkpoint_parts import TakenPart
from weir.protocol.checkpoints.alignment import BarrierAligner, Step
from weir.rows.records import batch_bytes
from weir.testing.manual_clock import ManualClock
from weir.types import ChannelId, SubtaskId

SUBTASK = SubtaskId(1, 0)
FAST, SLOW = (ChannelId(SubtaskId(0, 0), SUBTASK, edge) for edge in (0, 1))
BATCH = pa.record_batch({"id": list(range(100))})


class Parts:
    """Notes what is delivered."""

    def __init__(self):
        self.delivered, self.failed = [], []

    def deliver(self, part, rows=()):
        self.delivered.append((part.checkpoint_id, [item.input_index for item in rows]))

    def fail(self, subtask, checkpoint_id, cause):
        self.failed.append((subtask, checkpoint_id, cause))


@pytest.fixture
def inputs():
    """Checkpoint 7 has overtaken the rows of one of two inputs; three batches may be recorded."""
    inputs = CheckpointInputs(
        BarrierAligner([FAST, SLOW]),
        ManualClock(),
        lambda channel, batch: batch,
        recorded_bytes_max=3 * batch_bytes(BATCH),
    )
    assert inputs.aligner.barrier(FAST, 7) is Step.BEGIN
    inputs.begin(timeout_s=0)
    inputs.overtake(TakenPart(SUBTASK, 7, {}, 7))
    return inputs


def test_rows_before_the_missing_barrier_are_recorded(inputs):
    parts = Parts()
    for channel in (SLOW, FAST, SLOW, SLOW):
        inputs.record(channel, BATCH, parts)
    assert inputs.aligner.barrier(SLOW, 7) is Step.RECORDED
    inputs.deliver_recorded(parts)
    assert (parts.delivered, parts.failed) == ([(7, [1, 1, 1])], [])


def test_beyond_the_bound_the_checkpoint_fails_at_once_and_nothing_is_kept(inputs):
    parts = Parts()
    gc.collect()
    held = pa.total_allocated_bytes()
    for _ in range(50):
        inputs.record(SLOW, pa.record_batch({"id": list(range(100))}), parts)
    [(subtask, checkpoint_id, cause)] = parts.failed
    assert (subtask, checkpoint_id) == (SUBTASK, 7)
    assert f"more than {3 * batch_bytes(BATCH)} bytes" in cause
    assert "checkpoint_alignment_timeout_ms" in cause
    assert pa.total_allocated_bytes() == held, "recorded rows are kept"
    assert not inputs.aligner.is_recording
    # The barrier that was missing comes after all: it means nothing, and the next checkpoint begins anew.
    assert inputs.aligner.barrier(SLOW, 7) is Step.GO_ON
    assert inputs.aligner.barrier(FAST, 8) is Step.BEGIN
    assert parts.delivered == []
