"""Timers of tasks with the engine's own timers: each fires by the clock, and is counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from typing_extensions import override

import weir
from experiments.workflows.engine import COUNTS
from experiments.workflows.windows import Tally


class Alarms(weir.KeyedProcess):
    """Registers a timer for each row, which has its time; yields counts of those that fire."""

    timer_time = "processing"

    def __init__(self, window_ms: int) -> None:
        self._window_ms = window_ms
        self._subtask = 0

    @override
    def open(self, context: weir.OperatorContext) -> None:
        self._subtask = context.subtask_index

    @override
    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[Any]:
        context.timers.register_processing(batch["due_ms"].to_numpy(), context.keys(batch))
        return iter(())

    @override
    def on_timers(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[Any]:
        now_ms = context.timers.now_ms
        tally = Tally(self._subtask, now_ms, self._window_ms)
        delays_ms = now_ms - batch["_event_time_ms"].to_numpy()
        tally.add("timers_fired", batch.num_rows)
        tally.add("timer_delay_ms", int(delays_ms.sum()))
        tally.highest("timer_delay_ms_max", int(delays_ms.max()))
        yield weir.side(COUNTS, tally.batch(now_ms, now_ms * 1000))
