"""Metrics in windows by the clock: each subtask adds its own up, and who asks merges them.

Source: the state benchmark, section E. There every command reads and writes one window, which is a hot key; here a
batch of commands is one row of sums, and the key is the subtask that made it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

import weir

#: Commands that took longer are counted for each of these, to tell what nearly all of them took at most.
LIMITS_MS = (20, 50, 100, 250, 1000)
#: Added up over subtasks and rows.
SUMS = (
    "messages_processed",
    "message_latency_ms",
    *(f"messages_over_{limit_ms}_ms" for limit_ms in LIMITS_MS),
    "workflow_starts",
    "workflow_completes",
    "task_starts",
    "task_start_latency_ms",
    "task_completes",
    "task_complete_latency_ms",
    "rejected",
    "timers_fired",
    "timer_delay_ms",
    "sweeps",
    "sweep_slices",
    "sweep_us",
    "sweep_processor_us",
    "sweep_queued_us",
)
#: The largest of all counts.
MAXIMA = (
    "message_latency_ms_max",
    "task_start_latency_ms_max",
    "task_complete_latency_ms_max",
    "timer_delay_ms_max",
    "pause_ms_max",
    "latest_command_ms",
    "sweep_took_ms_max",
    "sweep_slice_ms_max",
    "sweep_held_ms_max",
    "sweep_row_age_ms_max",
)
FIELDS = SUMS + MAXIMA
#: Rows of sums, as the steps yield them.
ROW: dict[str, Any] = {"subtask": int, "window_ms": int, **dict.fromkeys(FIELDS, int)}
_ARROW = pa.schema([(name, pa.int64()) for name in ROW])
_WINDOW = pl.Struct(dict.fromkeys(FIELDS, pl.Int64))
#: How long windows are kept.
KEPT = "1d"


class Tally:
    """Counts of one batch, or one timer, at one moment.

    Args:
        subtask: whose.
        now_ms: the clock.
        window_ms: length of windows.
    """

    def __init__(self, subtask: int, now_ms: int, window_ms: int) -> None:
        self.row = dict.fromkeys(ROW, 0)
        self.row["subtask"], self.row["window_ms"] = subtask, now_ms - now_ms % window_ms

    def add(self, name: str, value: int = 1) -> None:
        """Add to a sum."""
        self.row[name] += value

    def timed(self, count: str, latency: str, latency_ms: int) -> None:
        """Count something and its latency, in the sum and in the largest."""
        row = self.row
        row[count] += 1
        row[latency] += latency_ms
        if latency_ms > row[latency + "_max"]:
            row[latency + "_max"] = latency_ms

    def late(self, latencies_ms: np.ndarray) -> None:
        """Count commands by how long they took, int64 of any length."""
        for limit_ms in LIMITS_MS:
            self.row[f"messages_over_{limit_ms}_ms"] += int(np.count_nonzero(latencies_ms > limit_ms))

    def highest(self, name: str, value: int) -> None:
        """Note a value among those of which the largest counts."""
        self.row[name] = max(self.row[name], value)

    def batch(self, event_time_ms: int, ingest_time_us: int) -> pa.RecordBatch:
        """The counts as a batch of one row, with these times."""
        values = np.fromiter(self.row.values(), np.int64, len(ROW)).reshape(-1, 1)
        batch = pa.RecordBatch.from_arrays(list(map(pa.array, values)), schema=_ARROW)
        return weir.with_times(batch, event_time_ms, ingest_time_us)


class Windows(weir.KeyedProcess):
    """Keeps the windows of each subtask; yields nothing."""

    windows = weir.MapState(int, _WINDOW, ttl=weir.Ttl(KEPT, time="processing"))

    @override
    def process_batch(self, batch: pa.RecordBatch, context: weir.KeyContext) -> Iterator[pa.RecordBatch]:
        keys = context.keys(batch)
        columns = [batch[name].to_pylist() for name in FIELDS]
        rows = [dict(zip(FIELDS, values, strict=True)) for values in zip(*columns, strict=True)]
        by_window: dict[int, dict[int, list[Mapping[str, int]]]] = defaultdict(lambda: defaultdict(list))
        for at, start_ms, row in zip(
            keys.inverse.tolist(), batch["window_ms"].to_pylist(), rows, strict=True
        ):
            by_window[at][start_ms].append(row)
        for at in context.visit(keys):
            for start_ms, found in by_window[at].items():
                self.windows[start_ms] = merged([*found, self.windows.get(start_ms) or {}])
        return iter(())


def latency_ms_at_most(window: Mapping[str, int], share: float) -> int | None:
    """The lowest of :data:`LIMITS_MS` within which this share of the commands of a window were; None: of none."""
    over_max = (1 - share) * window["messages_processed"]
    return next((limit for limit in LIMITS_MS if window[f"messages_over_{limit}_ms"] <= over_max), None)


def merged(windows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """One window out of several of the same time; fields that one lacks are 0 there."""
    listed = list(windows)
    sums = {name: sum(each.get(name, 0) for each in listed) for name in SUMS}
    return sums | {name: max((each.get(name, 0) for each in listed), default=0) for name in MAXIMA}
