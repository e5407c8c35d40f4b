"""Metrics per subtask, read from the counters that the subtask's thread writes once per batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from weir.clock import Clock
from weir.metrics import definitions as d
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.types import SubtaskId


class SubtaskCounters(Protocol):
    """What is read of a subtask; ``task_manager.progress.SubtaskProgress`` has it. Seconds end in ``_s``."""

    records_in: int
    batches_in: int
    bytes_in: int
    records_out: int
    batches_out: int
    bytes_out: int
    records_rejected: int
    records_late: int
    busy_s: float
    idle_s: float
    backpressured_s: float

    @property
    def output_queued_rows(self) -> int:
        """Rows that wait on all output channels."""

    @property
    def output_queued_age_s(self) -> float:
        """How long the oldest of them has waited."""

    restore_groups: int
    restoring_groups: int
    restore_s: float
    state_hold_s_max: float
    #: Event time in ms since the epoch; ``WATERMARK_MIN_MS`` before the first watermark.
    watermark_ms: int

    @property
    def lags(self) -> Mapping[str, int]:
        """Records that wait to be read, by partition."""

    @property
    def inputs(self) -> Sequence[InputCounters]:
        """Return the input channels that have not ended."""


class InputCounters(Protocol):
    """What is read of an input channel; ``task_manager.progress.InputWatermark`` has it."""

    @property
    def producer(self) -> SubtaskId:
        """Who sends."""

    @property
    def edge_index(self) -> int:
        """The input of the stage."""

    @property
    def watermark_ms(self) -> int:
        """Return the channel's watermark, in ms as the subtask's."""

    @property
    def is_idle(self) -> bool:
        """Return whether the channel does not hold the watermark back."""


@dataclass(frozen=True, slots=True)
class SubtaskLabels:
    """Which subtask a sample is about; ``operator`` is the stage's chain of names."""

    job: str
    stage: int
    operator: str
    subtask: int

    def values(self) -> tuple[str, ...]:
        """Return the labels in the order of ``SUBTASK_LABELS``."""
        return (self.job, str(self.stage), self.operator, str(self.subtask))


_ATTRIBUTES = {
    d.RECORDS_IN: "records_in",
    d.RECORDS_OUT: "records_out",
    d.BATCHES_IN: "batches_in",
    d.BATCHES_OUT: "batches_out",
    d.BYTES_IN: "bytes_in",
    d.BYTES_OUT: "bytes_out",
    d.RECORDS_REJECTED: "records_rejected",
    d.RECORDS_LATE: "records_late",
    d.BUSY: "busy_s",
    d.IDLE: "idle_s",
    d.BACKPRESSURED: "backpressured_s",
    d.OUTPUT_QUEUED_ROWS: "output_queued_rows",
    d.OUTPUT_QUEUED_AGE: "output_queued_age_s",
    d.RESTORE_GROUPS: "restore_groups",
    d.RESTORING_GROUPS: "restoring_groups",
    d.RESTORE_SECONDS: "restore_s",
    d.STATE_HOLD_MAX: "state_hold_s_max",
}


class SubtaskMetrics(Collector):
    """Metrics of the subtasks of one process. Any thread may add and remove subtasks."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._subtasks: dict[SubtaskLabels, tuple[SubtaskCounters, Callable[[], int]]] = {}
        registry.register(self)

    def add(self, labels: SubtaskLabels, counters: SubtaskCounters, queue_depth: Callable[[], int]) -> None:
        """Show a subtask from now on; one with the same labels is replaced.

        Args:
            labels: which one it is.
            counters: read at each scrape, from another thread.
            queue_depth: batches that wait in its input; called at each scrape.
        """
        with self._lock:
            self._subtasks[labels] = (counters, queue_depth)

    def remove(self, labels: SubtaskLabels) -> None:
        """Stop showing a subtask; unknown labels are ignored."""
        with self._lock:
            self._subtasks.pop(labels, None)

    def describe(self) -> list[Metric]:
        """Families without samples, so that registering reads nothing."""
        more = (d.QUEUE_DEPTH, d.WATERMARK_LAG, d.CHANNEL_WATERMARK_LAG, d.SOURCE_LAG)
        return [definition.family() for definition in (*_ATTRIBUTES, *more)]

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        with self._lock:
            subtasks = list(self._subtasks.items())
        for definition, attribute in _ATTRIBUTES.items():
            family = definition.family()
            for labels, (counters, _) in subtasks:
                family.add_metric(labels.values(), getattr(counters, attribute))
            yield family
        depth, lag, channel_lag, source_lag = (
            d.QUEUE_DEPTH.family(),
            d.WATERMARK_LAG.family(),
            d.CHANNEL_WATERMARK_LAG.family(),
            d.SOURCE_LAG.family(),
        )
        for labels, (counters, queue_depth) in subtasks:
            depth.add_metric(labels.values(), queue_depth())
            if counters.watermark_ms > WATERMARK_MIN_MS:
                lag.add_metric(labels.values(), self._lag_s(counters.watermark_ms))
            for partition, records in counters.lags.items():
                source_lag.add_metric((*labels.values(), partition), records)
            for item in counters.inputs:
                if item.watermark_ms > WATERMARK_MIN_MS and not item.is_idle:
                    producer = item.producer
                    more = (str(item.edge_index), str(producer.stage_index), str(producer.subtask_index))
                    channel_lag.add_metric((*labels.values(), *more), self._lag_s(item.watermark_ms))
        yield depth
        yield lag
        yield channel_lag
        yield source_lag

    def _lag_s(self, watermark_ms: int) -> float:
        """Return how far a watermark is behind the clock; after the end not at all."""
        return 0.0 if watermark_ms >= WATERMARK_MAX_MS else self._clock.now_us() / 1e6 - watermark_ms / 1e3
