"""Rows that a source has decoded and gives out poll by poll, with their time columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.event_times import TimesOfRows
from weir.rows.block import Block, LateColumn
from weir.rows.records import BATCH_BYTES_MAX, batch_bytes

#: Rows are looked at before they are due in blocks of up to this many bytes: parts of a block keep all of it.
_AHEAD_BYTES_MAX = 2 << 20


class DecodedRows:
    """A decoded batch; used by its source only.

    Args:
        batch: user columns without those that come late, and time columns.
        times: event times where a column or an expression gives them; None: those of reading.
        latest_ms: the largest event time up to each row, which never falls; int64, shape (rows,).
        due_us: when each row is due, if the source is a trickle; else empty.
        late: a column that the rows lack.
    """

    __slots__ = ("batch", "block", "due_us", "late", "latest_ms", "offset", "size_bytes", "times")

    def __init__(
        self,
        batch: pa.RecordBatch,
        times: TimesOfRows | None,
        latest_ms: np.ndarray,
        due_us: list[int],
        late: LateColumn | None,
    ) -> None:
        self.batch, self.times, self.latest_ms, self.due_us, self.late = batch, times, latest_ms, due_us, late
        self.size_bytes = batch_bytes(batch) + (0 if late is None else late.size_bytes)
        #: Rows that were given out.
        self.offset = 0
        #: What was found when the rows were looked at before they are due.
        self.block: Block | None = None

    @property
    def has_bad_times(self) -> bool:
        """Return whether some event times are bad, so that rows must be put aside."""
        return self.times is not None and self.times.bad is not None

    @property
    def may_be_looked_at(self) -> bool:
        """Whether a block is small enough for its parts to keep all of it, and nobody must see the rows in turn."""
        return not self.has_bad_times and self.size_bytes <= _AHEAD_BYTES_MAX

    def at_hand(self, rows_max: int, whole_max: int) -> int:
        """Return how many of the next rows one poll may give.

        Args:
            rows_max: no more than these.
            whole_max: from so many on, rows that lack a column are given whole.
        """
        rows: int = self.batch.num_rows
        left = rows - self.offset
        if self.late is not None and rows_max >= whole_max:
            # Nothing may be cut off them, and who divides them makes batches of that size.
            return left
        if self.size_bytes > BATCH_BYTES_MAX:
            # In equal parts: a small rest would cost as much as they do.
            parts = -(-self.size_bytes // BATCH_BYTES_MAX)
            rows_max = min(rows_max, -(-rows // parts))
        return min(rows_max, left)

    def join_late(self) -> np.ndarray | None:
        """Read the column that the rows lack; returns which rows it left: bool, shape (rows before,). None: all."""
        late, self.late = self.late, None
        assert late is not None
        self.batch = late.joined(self.batch)
        if late.kept is not None:
            self.latest_ms = self.latest_ms[late.kept]
            if self.times is not None:
                self.times = self.times.kept(late.kept)
                self.latest_ms = self.times.running_max()
        return late.kept
