"""The rows of a batch before which an operator is told of the watermark: where something is due, or a row is late."""

from __future__ import annotations

from collections import deque

import numpy as np
import pyarrow as pa

from weir.author.operator import InTimeOperator
from weir.rows import row_watermarks
from weir.rows.records import WATERMARK_MIN_MS
from weir.rows.row_watermarks import TimeCuts


class PartsInTime:
    """A batch that an operator takes part by part; the chain asks, in the order of rows (design/0009)."""

    def __init__(
        self,
        operator: InTimeOperator,
        cuts: TimeCuts,
        batch: pa.RecordBatch,
        column: np.ndarray,
        reached_ms: int,
    ) -> None:
        """Look at the batch once.

        Args:
            operator: what takes the rows; it is asked before each part what is due.
            cuts: before which rows it is to be told.
            batch: the rows.
            column: the watermark as of each of them; int64, as the batch has it.
            reached_ms: the watermark as of the row before them.
        """
        self._operator, self._cuts = operator, cuts
        self._late, self._as_of_ms = row_watermarks.as_of(batch, column, reached_ms)
        self._made_due_ms = operator.made_due_ms(batch)
        self._late_rows = self._late.nonzero()[0]
        # The row before each late one from which it is to be apart.
        self._befores = self._late_rows - 1
        if (
            cuts & TimeCuts.EACH_LATE
            and len(self._late_rows)
            and (keys := operator.late_keys(batch)) is not None
        ):
            self._befores = row_watermarks.rows_before(keys)[self._late_rows]
        self._minded = np.arange(batch.num_rows) if cuts & TimeCuts.DUE else self._late_rows
        # It is given these parts one after the other in any case: what one makes due comes before the next.
        is_parted = cuts & TimeCuts.DUE and operator.knows_rows_by_time
        self._borders = deque(row_watermarks.alike_borders(batch) if is_parted else ())

    def as_of_ms(self, row: int) -> int:
        """The watermark as of a row."""
        return int(self._as_of_ms[row])

    def tells_before(self, row: int) -> bool:
        """Return whether the operator is to be told of the watermark before it takes this row."""
        is_due = self._cuts & TimeCuts.DUE and self._as_of_ms[row] >= self._operator.due_ms()
        return bool(self._late[row] or is_due)

    def stop(self, first: int, told_ms: int) -> int:
        """The row before which the part ends that begins with ``first``.

        ``told_ms``: the watermark that the operator was told of.
        """
        stop = min(self._next_due(first, told_ms), self._next_repeated(first))
        while self._borders and self._borders[0] <= first:
            self._borders.popleft()
        return min(stop, self._borders[0]) if self._borders else stop

    def _next_due(self, first: int, told_ms: int) -> int:
        """The next row as of which something is due; the number of rows if there is none."""
        after = self._minded[np.searchsorted(self._minded, first, side="right") :]
        due_ms: int | np.ndarray = self._operator.due_ms()
        if self._made_due_ms is not None:
            lowest_ms = np.minimum.accumulate(self._made_due_ms[first:])
            due_ms = np.minimum(lowest_ms[after - first - 1], due_ms)
        if self._cuts & TimeCuts.LATE:
            due_ms = np.where(self._late[after], WATERMARK_MIN_MS, due_ms)
        is_due = self._as_of_ms[after] >= np.maximum(due_ms, told_ms + 1)
        return int(after[is_due.argmax()]) if is_due.any() else len(self._late)

    def _next_repeated(self, first: int) -> int:
        """The next late row that is to be apart from one of this part; the number of rows if there is none."""
        if self._cuts & TimeCuts.EACH_LATE:
            is_repeated = (self._late_rows > first) & (self._befores >= first)
            if is_repeated.any():
                return int(self._late_rows[is_repeated.argmax()])
        return len(self._late)
