"""What one subtask of a source knows of event time: how far its splits have come, and what that says of rows."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import pyarrow as pa

from weir.author.watermarks import WatermarkGenerator, WatermarkStrategy
from weir.operators.event_times import generated
from weir.protocol.watermarks.split_times import SplitTimes
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MAX_MS, WATERMARK_MIN_MS, int64_column
from weir.rows.row_watermarks import RowWatermarks


class SourceTimes:
    """The times of splits are the highest event times of their rows, or what their generators say.

    Args:
        strategy: of the source.
        grace_period_ms: how far watermarks stay behind the highest event time, if the strategy does not say.
        wanted: which batches of the job say what the watermark is as of each row.
    """

    def __init__(self, strategy: WatermarkStrategy, grace_period_ms: int, wanted: RowWatermarks) -> None:
        known_ms = strategy.out_of_orderness_ms
        self._bound_ms = grace_period_ms if known_ms is None else known_ms
        self._make_generator = strategy.generator
        self._generators: dict[Hashable, WatermarkGenerator] = {}
        self._wanted = wanted
        self.splits = SplitTimes()
        #: The split of the rows that were decoded last.
        self._current: Hashable = ""

    @property
    def are_generated(self) -> bool:
        """Return whether generators of the author make the watermarks."""
        return self._make_generator is not None

    @property
    def of_poll(self) -> tuple[int, int | None]:
        """What a poll tells: the highest event time that is sure, or the watermark."""
        time_ms = self.splits.lowest_ms()
        if not self.are_generated:
            return time_ms, None
        return WATERMARK_MIN_MS, None if time_ms == WATERMARK_MIN_MS else time_ms

    def begin_rows(self, split: Hashable) -> None:
        """Rows of this split were decoded."""
        self._current = split
        if split not in self.splits:
            self.splits.add(split)

    def end(self, split: Hashable) -> None:
        """End a split: all of it was read."""
        self.splits.end(split)
        self._generators.pop(split, None)

    def column_of(self, times_ms: np.ndarray, latest_ms: np.ndarray) -> np.ndarray | None:
        """The watermark as of each decoded row; None: the job needs none, or generators say it of rows given out.

        Args:
            times_ms: event times; int64, shape (rows,).
            latest_ms: the largest one up to each row; int64, shape (rows,).
        """
        if self.are_generated or not self._wanted:
            return None
        highest_ms = np.maximum(latest_ms, self.splits.time_ms(self._current))
        return row_watermarks.of_split(
            times_ms, highest_ms, self._bound_ms, self._others_watermark_ms(), self._wanted
        )

    def given(self, batch: pa.RecordBatch, latest_ms: int) -> pa.RecordBatch:
        """Rows are given out, the highest event time of the decoded ones up to them is this; returns them.

        The generator is asked for the watermark after them, of which each is as of the one before.
        """
        if self._make_generator is None:
            self.splits.follow(self._current, latest_ms)
            return batch
        if not batch.num_rows:
            return batch
        if self._current not in self._generators:
            self._generators[self._current] = self._make_generator()
        before_ms = self.splits.time_ms(self._current)
        known_ms = None if before_ms == WATERMARK_MIN_MS else before_ms
        made_ms = generated(self._generators[self._current], batch, known_ms)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        before = np.full(batch.num_rows, before_ms)
        column = row_watermarks.of_split(times_ms, before, 0, self._others_watermark_ms(), self._wanted)
        if made_ms is not None:
            self.splits.follow(self._current, made_ms)
        return batch if column is None else row_watermarks.with_column(batch, column)

    def given_ahead(self, latest_ms: int) -> None:
        """Note rows as given that were looked at before they were due."""
        self.splits.follow(self._current, latest_ms)

    def _others_watermark_ms(self) -> int:
        """The lowest watermark of the other splits that are read, or will be; the highest time if there is none."""
        time_ms = self.splits.others_ms(self._current)
        is_watermark = self.are_generated or time_ms in (WATERMARK_MIN_MS, WATERMARK_MAX_MS)
        return time_ms if is_watermark else time_ms - self._bound_ms
