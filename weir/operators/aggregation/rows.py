"""Rows as aggregates take them in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weir.rows.records import EVENT_TIME_COLUMN

#: Event times of rows that have none, or whose times nobody asks for.
NO_TIMES = np.empty(0, dtype=np.int64)


class Cells(NamedTuple):
    """Accumulators of entries."""

    #: int64, shape (entries, cells).
    integers: np.ndarray
    #: Bits of the cells that have a value, uint8, shape (entries, ceil(cells / 8)).
    presence: np.ndarray

    @property
    def floats(self) -> np.ndarray:
        """The same memory as float64."""
        return self.integers.view(np.float64)


class FoldRows(NamedTuple):
    """Rows that an aggregate takes in."""

    #: The aggregated column; None for a bare count.
    column: pa.Array | None
    #: uint8, 0 for rows that do not count; of length 0: all do. What a part makes of it, see ``parts``.
    mask: np.ndarray
    #: Event times, ms; int64. Of length 0: there are none.
    times_ms: np.ndarray


def event_times(batch: pa.RecordBatch) -> np.ndarray:
    """Event times of a batch, ms, int64; of length 0 if it has none, as outside a job."""
    index = batch.schema.get_field_index(EVENT_TIME_COLUMN)
    if index < 0:
        return NO_TIMES
    times_ms: np.ndarray = batch.column(index).to_numpy(zero_copy_only=True)
    return times_ms
