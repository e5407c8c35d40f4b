"""What runs windows of the last rows of a key: each is told after so many further rows. Called by ``count_windows``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.keyed_process import KeyedProcess
from weir.author.states import ValueState
from weir.operators.windows.rows.kept_rows import KeptRows
from weir.rows.records import INGEST_TIME_COLUMN, int64_column, with_times
from weir.specs.windows import WINDOW_END

if TYPE_CHECKING:
    from weir.author.key_context import KeyContext


class CountWindowProcess(KeyedProcess):
    """Keeps the rows of each key that its next window has, and how many rows have come."""

    seen = ValueState(pl.Int64, default=0)
    #: The rows in the order in which they came, as an Arrow IPC stream; none of a window that has just begun.
    kept = ValueState(bytes)

    def __init__(self, rows: int, slide: int, kept_rows: KeptRows) -> None:
        """``kept_rows`` makes results."""
        self._rows, self._slide, self._windows = rows, slide, kept_rows
        # Rows that other windows do not need are not kept.
        self.state_form = f"windows of {rows} rows, told every {slide} rows"

    @override
    def process_batch(self, batch: pa.RecordBatch, context: KeyContext, /) -> Iterator[pa.RecordBatch]:
        keys = context.keys(batch)
        seen = np.asarray(self.seen.get(keys.distinct), dtype=np.int64)
        inverse = np.asarray(keys.inverse, dtype=np.int64)
        kept = self._windows.joined(batch, inverse, self.kept.get(keys.distinct), adds=True)
        total = seen + np.diff(kept.starts) - kept.held
        # The windows that are complete.
        told = total // self._slide - seen // self._slide
        of_key = np.repeat(np.arange(len(told)), told)
        number = np.arange(len(of_key)) - np.repeat(np.cumsum(told) - told, told) + 1
        last = (seen[of_key] // self._slide + number) * self._slide
        stops = kept.starts[of_key + 1] - (total[of_key] - last)
        begins = np.maximum(stops - self._rows, kept.starts[of_key])
        now_us = int(int64_column(batch, INGEST_TIME_COLUMN).max())
        for made, _ in self._windows.told(kept, of_key, begins, stops):
            yield with_times(made, int64_column(made, WINDOW_END) - 1, now_us)
        # Rows stay from the first one on that the next window has.
        following = (total // self._slide + 1) * self._slide
        stay = np.maximum(total - (following - self._rows), 0)
        self.kept.put(
            keys.distinct, self._windows.encoded(kept, np.maximum(kept.starts[1:] - stay, kept.starts[:-1]))
        )
        self.seen.put(keys.distinct, total)
