"""Cuts batches whose rows take long, so that what is found for the first of them does not wait for the last."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from weir.clock import Clock

#: A slice is to take about so long, where rows are read from a store.
_SLICE_S = 0.04
#: What a slice costs whatever is in it counts for little with so many rows.
_ROWS_MIN = 512
#: A batch has fewer rows than this.
_ROWS_MAX = 1 << 31


class RowSlices:
    """Slices of a batch, an object for each operator; it learns how many rows are done in its time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rows = _ROWS_MAX

    def of(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batch in slices, in order; each is to be done before the next one is asked for."""
        start = 0
        while start < batch.num_rows:
            part = batch.slice(start, self._rows)
            start += part.num_rows
            began_s = self._clock.monotonic_s()
            yield part
            self._learn(part.num_rows, self._clock.monotonic_s() - began_s)

    def _learn(self, rows: int, took_s: float) -> None:
        if took_s > _SLICE_S:
            self._rows = max(_ROWS_MIN, round(rows * _SLICE_S / took_s))
        elif rows >= self._rows and took_s < _SLICE_S / 2:
            self._rows = min(2 * self._rows, _ROWS_MAX)
