"""What all sources share: the open-loop schedule, the time columns and the limit on events.

Open loop: event ``k`` of subtask ``i`` of ``p`` is due at ``job_start + (k * p + i) / rate`` whatever the
engine does; if it falls behind, the events carry their scheduled time, so that the delay shows in the latency.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
import pyarrow as pa

from weir.errors import GraphError
from weir.operators.base import OperatorContext, Poll, SourceReader
from weir.records import system_schema
from weir.specs import SourceSpec

#: A poll gives at least this much of the schedule at once, if events are due more often.
COALESCE_US = 3_000
#: Rows that a paced source decodes at a time: little enough not to delay due events noticeably.
PACED_DECODE_ROWS = 4_096


class Schedule:
    """Due times of one subtask's events."""

    def __init__(self, rate: float, start_us: int, subtask_index: int, parallelism: int) -> None:
        self._start_us = start_us
        self._subtask_index = subtask_index
        self._parallelism = parallelism
        self._us_per_event = 1e6 / rate

    def due_us(self, number: int) -> int:
        """Epoch µs at which the subtask's event of this number (from 0) is due."""
        return self._start_us + int((number * self._parallelism + self._subtask_index) * self._us_per_event)

    def due_times_us(self, first: int, count: int) -> np.ndarray:
        """Due times, int64, of ``count`` events from number ``first``."""
        numbers = np.arange(first, first + count, dtype=np.float64)
        offsets = (numbers * self._parallelism + self._subtask_index) * self._us_per_event
        return offsets.astype(np.int64) + self._start_us

    def next_turn_us(self, now_us: int) -> int:
        """The next moment at which all subtasks poll.

        Polling together measured faster than taking turns: then the other threads find an idle machine.
        """
        return self._start_us + ((now_us - self._start_us) // COALESCE_US + 1) * COALESCE_US

    def due_count(self, now_us: int) -> int:
        """How many events of the subtask are due by now."""
        if now_us < self._start_us:
            return 0
        # The estimate may be off by one, as due times are cut to whole µs.
        slot = (now_us - self._start_us) / self._us_per_event
        count = max(0, math.floor((slot - self._subtask_index) / self._parallelism) + 1)
        while count and self.due_us(count - 1) > now_us:
            count -= 1
        while self.due_us(count) <= now_us:
            count += 1
        return count


class BatchSource(SourceReader):
    """Turns decoded batches into polls; subclasses read and decode.

    Args:
        spec: what to read and how fast.

    Raises:
        GraphError: rate, event limit or event-time column make no sense.
    """

    def __init__(self, spec: SourceSpec) -> None:
        self._source_spec = spec
        if spec.rate is not None and not spec.rate > 0:
            raise GraphError(f"source rate must be above 0 events/s, not {spec.rate}")
        if spec.events_max is not None and spec.events_max < 0:
            raise GraphError(f"source events_max must be 0 or more, not {spec.events_max}")
        time_column = spec.event_time_column
        if time_column is not None:
            if time_column not in spec.schema.names:
                raise GraphError(f"event_time_column {time_column} is not in the source's schema")
            if not pa.types.is_integer(spec.schema.field(time_column).type):
                raise GraphError(
                    f"event_time_column {time_column} must be an integer column (ms since the epoch)"
                )
        self._batch: pa.RecordBatch | None = None
        self._batch_offset = 0
        self._batch_time_us = 0
        self._emitted = 0
        self._quota: int | None = None
        self._schedule: Schedule | None = None
        self._schema = system_schema(spec.schema)
        self._next_poll_us = 0

    def open(self, context: OperatorContext) -> None:
        """Choose splits, set the schedule and decode the first rows. See the base class."""
        self._context = context
        self._clock = context.clock
        self._open_input(context)
        rate = self._source_spec.rate
        if rate is not None:
            # Only subtasks with something to read share the rate, so that a small input keeps its pace too.
            readers = [index for index, has_input in enumerate(self._has_input()) if has_input]
            start_us = context.job_start_us or context.clock.now_us()
            place = readers.index(context.subtask_index) if context.subtask_index in readers else 0
            self._schedule = Schedule(rate, start_us, place, max(len(readers), 1))
        if self._source_spec.events_max is not None:
            self._quota = self._event_quota(self._source_spec.events_max)
        if self._schedule is not None:
            self._ensure_batch()

    @property
    def rows_decoded_max(self) -> int:
        """Rows to decode at a time."""
        batch_size = self._context.batch_size
        return batch_size if self._source_spec.rate is None else min(batch_size, PACED_DECODE_ROWS)

    @abstractmethod
    def _open_input(self, context: OperatorContext) -> None:
        """Choose this subtask's share and open it."""

    @abstractmethod
    def _has_input(self) -> list[bool]:
        """For every subtask of the source, whether it has anything to read; known after :meth:`_open_input`."""

    @abstractmethod
    def _event_quota(self, events_max: int) -> int:
        """This subtask's part of the limit."""

    @abstractmethod
    def _next_batch(self) -> pa.RecordBatch | None:
        """The next rows with the user columns (at least one row, of the spec's schema); None at the end."""

    def poll(self, rows_max: int) -> Poll:
        """See the base class. Batches end at decoded blocks, so that rows are not copied."""
        if self._schedule is None:
            return self._poll_now(rows_max)
        now_us = self._clock.now_us()
        if now_us < self._next_poll_us:
            return Poll(next_poll_us=self._next_poll_us)
        if not self._ensure_batch():
            return Poll(finished=True)
        due = self._schedule.due_count(now_us) - self._emitted
        if due <= 0:
            self._next_poll_us = self._schedule.due_us(self._emitted)
            return Poll(next_poll_us=self._next_poll_us)
        rows = self._take(min(due, rows_max))
        times_us = self._schedule.due_times_us(self._emitted, rows.num_rows)
        batch = self._with_times(rows, times_us, times_us // 1000)
        self._emitted += rows.num_rows
        self._next_poll_us = 0
        if rows.num_rows == due:
            self._next_poll_us = max(
                self._schedule.due_us(self._emitted), self._schedule.next_turn_us(now_us)
            )
        return Poll(batch=batch, next_poll_us=self._next_poll_us)

    def _poll_now(self, rows_max: int) -> Poll:
        if not self._ensure_batch():
            return Poll(finished=True)
        rows = self._take(rows_max)
        times_us = np.full(rows.num_rows, self._batch_time_us, dtype=np.int64)
        times_ms = np.full(rows.num_rows, self._batch_time_us // 1000, dtype=np.int64)
        batch = self._with_times(rows, times_us, times_ms)
        self._emitted += rows.num_rows
        return Poll(batch=batch)

    def _ensure_batch(self) -> bool:
        """Have decoded rows at hand; False at the end."""
        if self._quota is not None and self._emitted >= self._quota:
            return False
        if self._batch is None:
            self._batch_time_us = self._clock.now_us()
            self._batch = self._next_batch()
            self._batch_offset = 0
        return self._batch is not None

    def _take(self, rows_max: int) -> pa.RecordBatch:
        assert self._batch is not None
        if self._quota is not None:
            rows_max = min(rows_max, self._quota - self._emitted)
        left = self._batch.num_rows - self._batch_offset
        if left <= rows_max:
            rows = self._batch.slice(self._batch_offset) if self._batch_offset else self._batch
            self._batch = None
            return rows
        rows = self._batch.slice(self._batch_offset, rows_max)
        self._batch_offset += rows_max
        return rows

    def _with_times(
        self, rows: pa.RecordBatch, ingest_us: np.ndarray, ingest_ms: np.ndarray
    ) -> pa.RecordBatch:
        """Append the time columns; the same as ``with_system_columns`` with the schema at hand."""
        column = self._source_spec.event_time_column
        event_ms = pa.array(ingest_ms) if column is None else rows.column(column).cast(pa.int64())
        return pa.RecordBatch.from_arrays([*rows.columns, event_ms, pa.array(ingest_us)], schema=self._schema)
