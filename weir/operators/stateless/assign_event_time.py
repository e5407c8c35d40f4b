"""The step that gives rows another event time, and makes the watermarks of those after it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import orjson
import pyarrow as pa

from weir.operators.base import OperatorContext, TimeAssigner
from weir.operators.dead_letters import DeadLetterFile
from weir.operators.event_times import EventTimes, TimesOfRows, generated
from weir.protocol.source_watermark import SourceWatermark
from weir.records import EVENT_TIME_COLUMN, user_columns, without_key_hash
from weir.specs import AssignEventTimeSpec
from weir.watermarks import DEFAULT_STRATEGY


class AssignEventTimeOperator(TimeAssigner):
    """Output schema: the input's. Rows whose time is bad go to the step's dead letters."""

    def __init__(self, spec: AssignEventTimeSpec) -> None:
        self._spec = spec
        self._strategy = spec.watermark or DEFAULT_STRATEGY
        self._generator = None if self._strategy.generator is None else self._strategy.generator()
        self._generated_ms: int | None = None
        self._idle_s = self._last_rows_s = 0.0

    def open(self, context: OperatorContext) -> None:
        """See the base class."""
        self._context = context
        self._clock = context.clock
        self._times = EventTimes(None, self._spec.event_time, self._spec.watermark, context.clock)
        known_ms = self._strategy.out_of_orderness_ms
        self._watermark = SourceWatermark(context.grace_period_ms if known_ms is None else known_ms)
        self._idle_s = context.idle_timeout_ms / 1e3
        self._last_rows_s = context.clock.monotonic_s()

    @property
    def watermark_ms(self) -> int:
        """See the base class."""
        return self._watermark.time_ms

    @property
    def idle_at_s(self) -> float:
        """See the base class."""
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
            self._watermark.follow(int(times.running_max()[-1]))
        else:
            self._generated_ms = generated(self._generator, without_key_hash(out), self._generated_ms)
            self._watermark.raise_to(self._generated_ms)
        return (out,)

    def _put_aside(self, batch: pa.RecordBatch, times: TimesOfRows) -> None:
        letters = self._context.dead_letters
        if letters is None:
            return
        assert times.bad is not None
        for row in np.flatnonzero(times.bad).tolist():
            one = batch.slice(row, 1).select(user_columns(batch.schema)).to_pylist()[0]
            origin = f"step {self._context.operator_name}"
            letters.reject(origin, -1, times.what_is_wrong(row), orjson.dumps(one, default=str))

    def close(self) -> None:
        """Release the file of dead letters."""
        letters = self._context.dead_letters
        if isinstance(letters, DeadLetterFile):
            letters.close()
