"""The step that gives rows another event time, and makes the watermarks of those after it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import Json, OperatorContext, TimeAssigner
from weir.author.watermarks import DEFAULT_STRATEGY
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.event_times import EventTimes, TimesOfRows, generated
from weir.protocol.watermarks.time_reached import SourceWatermark
from weir.rows import row_watermarks
from weir.rows.python_values import row_json
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    as_authors_see,
    int64_column,
    user_columns,
)
from weir.specs import AssignEventTimeSpec


class AssignEventTimeOperator(TimeAssigner):
    """Output schema: the input's. Rows whose time is bad go to the step's dead letters."""

    def __init__(self, spec: AssignEventTimeSpec) -> None:
        self._spec = spec
        self._strategy = spec.watermark or DEFAULT_STRATEGY
        self._generator = None if self._strategy.generator is None else self._strategy.generator()
        self._generated_ms: int | None = None
        self._idle_s = self._last_rows_s = 0.0

    @override
    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._clock = context.clock
        self._times = EventTimes(None, self._spec.event_time, self._spec.watermark, context.clock)
        known_ms = self._strategy.out_of_orderness_ms
        self._watermark = SourceWatermark(context.grace_period_ms if known_ms is None else known_ms)
        # With other subtasks than at the checkpoint: nothing that one of them took may be late.
        told, index = (
            {i: value for i, value in context.restored.items() if value is not None},
            context.subtask_index,
        )
        is_same = index in told and set(told) == set(context.subtask_indices)
        times_ms = [value["watermark_ms"] for value in ([told[index]] if is_same else told.values())]
        if times_ms and None not in times_ms:
            self._watermark.raise_to(min(times_ms))
        self._idle_s = context.idle_timeout_ms / 1e3
        self._last_rows_s = context.clock.monotonic_s()

    def snapshot(self, checkpoint_id: int) -> Json:
        """How far event time has come: a row that was late is late after a restart, too."""
        time_ms = self._watermark.time_ms
        return {"version": 1, "watermark_ms": None if time_ms == WATERMARK_MIN_MS else time_ms}

    @property
    @override
    def watermark_ms(self) -> int:
        return self._watermark.time_ms

    @property
    @override
    def idle_at_s(self) -> float:
        return self._last_rows_s + self._idle_s

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """The same rows with their new event times; zero or one batch."""
        self._last_rows_s = self._clock.monotonic_s()
        times = self._times.of(batch)
        index = batch.schema.get_field_index(EVENT_TIME_COLUMN)
        out = batch.set_column(index, batch.schema.field(index), pa.array(times.times_ms))
        if times.bad is not None and times.bad.any():
            self._put_aside(batch, times)
            out = out.filter(pa.array(~times.bad))
        if not out.num_rows:
            return ()
        if self._generator is None:
            latest_ms = times.running_max()
            out = self._in_time(out, latest_ms if times.bad is None else latest_ms[~times.bad])
            self._watermark.follow(int(latest_ms[-1]))
        else:
            out = self._in_time(out, np.full(out.num_rows, self._watermark.time_ms), bound_ms=0)
            self._generated_ms = generated(self._generator, as_authors_see(out), self._generated_ms)
            self._watermark.raise_to(self._generated_ms)
        return (out,)

    def _in_time(
        self, batch: pa.RecordBatch, latest_ms: np.ndarray, bound_ms: int | None = None
    ) -> pa.RecordBatch:
        """The rows with the watermark as of each, where the job needs that: all that come here are as one split."""
        bound_ms = self._watermark.behind_ms if bound_ms is None else bound_ms
        before_ms = self._watermark.time_ms
        if before_ms != WATERMARK_MIN_MS:
            latest_ms = np.maximum(latest_ms, before_ms + bound_ms)
        column = row_watermarks.of_split(
            int64_column(batch, EVENT_TIME_COLUMN),
            latest_ms,
            bound_ms,
            WATERMARK_MAX_MS,
            self._context.row_watermarks,
        )
        batch = row_watermarks.without_column(batch)
        return batch if column is None else row_watermarks.with_column(batch, column)

    def _put_aside(self, batch: pa.RecordBatch, times: TimesOfRows) -> None:
        letters = self._context.dead_letters
        if letters is None:
            return
        assert times.bad is not None
        for row in np.flatnonzero(times.bad).tolist():
            one = batch.slice(row, 1).select(user_columns(batch.schema))
            origin = f"step {self._context.operator_name}"
            letters.reject(origin, -1, times.what_is_wrong(row), row_json(one))

    def close(self) -> None:
        """Release the file of dead letters."""
        letters = self._context.dead_letters
        if isinstance(letters, DeadLetterFile):
            letters.close()
