"""What a subtask tells about itself: its state and its counters. Written by its thread, read by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from weir.errors import FailureKind
from weir.protocol.job.load import HotPart
from weir.protocol.job.rejects import Rejects
from weir.rows.records import WATERMARK_MIN_MS
from weir.types import SubtaskId


class SubtaskState(Enum):
    """Life of one subtask, as the control plane sees it."""

    #: Its thread opens the operators.
    OPENING = "opening"
    #: Ready for data; the job has not been started yet.
    DEPLOYED = "deployed"
    #: The job was started.
    RUNNING = "running"
    #: Its input ended and all of it was processed and sent on.
    FINISHED = "finished"
    #: An error ended it; the cause is kept.
    FAILED = "failed"
    #: It was told to stop.
    CANCELED = "canceled"


#: Nothing comes after these.
FINAL_STATES = (SubtaskState.FINISHED, SubtaskState.FAILED, SubtaskState.CANCELED)


@dataclass(frozen=True, slots=True)
class ChannelQueue:
    """Rows that were put into a channel and that its consumer has not finished, and the age of the oldest."""

    consumer: SubtaskId
    rows: int
    age_s: float


@dataclass(frozen=True, slots=True)
class InputWatermark:
    """How far event time has come on an input channel."""

    producer: SubtaskId
    #: The input of the stage.
    edge_index: int
    #: ms since the epoch; ``WATERMARK_MIN_MS`` before the first one.
    watermark_ms: int
    is_idle: bool


@dataclass
class SubtaskProgress:
    """Counters since the start. One writer; a reader may see a value that is one batch old."""

    state: SubtaskState = SubtaskState.OPENING
    cause: str = ""
    #: With FAILED: the step in which it was raised ("": in none), and what it says about the next attempt.
    failed_step: str = ""
    failure_kind: FailureKind = FailureKind.OTHER
    records_in: int = 0
    batches_in: int = 0
    bytes_in: int = 0
    records_out: int = 0
    batches_out: int = 0
    bytes_out: int = 0
    records_rejected: int = 0
    #: Rows that windows dropped because they came too late.
    records_late: int = 0
    #: The same, by step.
    late: Sequence[tuple[str, int]] = ()
    #: Of a source: records that wait to be read, by partition; looked at before each report.
    lags: Mapping[str, int] = field(default_factory=dict)
    #: Of its source and its steps.
    rejected: Sequence[Rejects] = ()
    busy_s: float = 0.0
    idle_s: float = 0.0
    backpressured_s: float = 0.0
    #: Processors' time that its thread has used; None: not known. Looked at before each report, as the next one.
    processor_s: float | None = None
    #: Of a source with a rate: rows that were due and have not been read; None: it has none.
    rows_overdue: int | None = None
    #: Of a source: see ``SourceReader.input_plan``.
    input_plan: int = 0
    #: Output channels on which rows wait; looked at before each report.
    channels: Sequence[ChannelQueue] = ()
    watermark_ms: int = WATERMARK_MIN_MS
    #: Input channels and their watermarks; looked at before each report.
    inputs: Sequence[InputWatermark] = ()
    #: Of a source: the watermark of what it has read.
    read_watermark_ms: int = WATERMARK_MIN_MS
    #: Consumers do not wait for its watermark: nothing comes for now.
    is_idle: bool = False
    #: Of a source: it is too far ahead of others of its group to read.
    is_held_back: bool = False
    #: The last checkpoint whose barrier was passed on; 0 before.
    passed_id: int = 0
    #: Epoch µs at which the first batch came and the last one was done; 0 before.
    first_batch_us: int = 0
    last_batch_us: int = 0
    #: The longest time for which rows waited while state was written, or noted for a checkpoint.
    state_hold_s_max: float = 0.0
    #: None where no step counts its keys.
    distinct_keys: int | None = None
    #: Key groups that have state in the checkpoint from which the subtask was restored; 0: it was not.
    restore_groups: int = 0
    #: Those of them whose state still comes from the checkpoint.
    restoring_groups: int = 0
    #: Epoch µs at which the restore began, and how long it took, or has taken so far.
    restore_started_us: int = 0
    restore_s: float = 0.0
    #: The key group of which most rows came of late, and its share of them; 0: no row was looked at.
    hot_group: int = 0
    hot_group_share: float = 0.0
    #: Groups and keys of which most rows came of late, the hottest first.
    hot_groups: Sequence[HotPart] = ()
    hot_keys: Sequence[HotPart] = ()
    #: Of a subtask of a last stage: rows that were looked at, by bucket of ``weir.metrics.latency``.
    latency_counts: Sequence[int] = ()

    def copy(self) -> SubtaskProgress:
        """Returns it as it is now; ``copy.copy`` takes ten times as long, and each heartbeat asks for every subtask."""
        taken = object.__new__(SubtaskProgress)
        taken.__dict__.update(self.__dict__)
        return taken

    @property
    def output_queued_rows(self) -> int:
        """Rows that wait on all output channels."""
        return sum(queue.rows for queue in self.channels)

    @property
    def output_queued_age_s(self) -> float:
        """How long the oldest of them has waited."""
        return max((queue.age_s for queue in self.channels), default=0.0)
