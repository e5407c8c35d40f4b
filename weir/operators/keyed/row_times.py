"""The times of the rows of a batch, while a keyed process takes one row after the other."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from weir.operators.keyed.firing import TimerFirer
from weir.rows import row_watermarks
from weir.rows.records import EVENT_TIME_COLUMN, int64_column
from weir.state.handles.block import Keys
from weir.state.tables.state_times import StateTimes
from weir.state.tables.timers.timer_group import NEVER_MS


class RowTimes:
    """What is known of the rows of one batch; pieces of it are taken with :meth:`begin`."""

    def __init__(
        self,
        batch: pa.RecordBatch,
        column: np.ndarray,
        known_ms: int,
        firer: TimerFirer | None,
        states: StateTimes | None,
        *,
        of_all: bool = False,
    ) -> None:
        """``column`` is that of ``weir.rows.row_watermarks``, ``states`` is of states that go by the times of rows.

        ``known_ms``: the watermark before.
        ``of_all``: the time of a row is the watermark as of it, whatever its own is.
        """
        late, self._as_of_ms = row_watermarks.as_of(batch, column, known_ms)
        self._late = late
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        # A late row is as of its split, wherever others are.
        own_ms = np.where(late, row_watermarks.of_splits(column), times_ms)
        self._times_ms = self._as_of_ms if of_all else np.maximum(own_ms, self._as_of_ms)
        self._firer, self._states = firer, states
        self._as_of: list[int] = self._as_of_ms.tolist()
        self._times: list[int] = self._times_ms.tolist()
        self._first = 0
        #: The lowest time of a timer that was there when the piece began.
        self._next_ms = NEVER_MS

    def __len__(self) -> int:
        return len(self._as_of)

    def begin(self, first: int) -> None:
        """The rows from this one on are taken next."""
        self._first = first
        self._next_ms = NEVER_MS if self._firer is None else self._firer.next_ms
        if self._states is not None:
            self._states.enter_rows(int(self._times_ms[first:].min()))

    def as_of_ms(self, row: int) -> int:
        """The watermark as of a row."""
        return self._as_of[row]

    # --- one after the other ---

    def move(self, index: int) -> None:
        """Move to a row of the piece."""
        if self._firer is not None:
            self._firer.reach(self._as_of[self._first + index])
        if self._states is not None:
            self._states.move(self._times[self._first + index])

    def is_due_after(self, index: int) -> bool:
        """Return whether a timer that was registered is due before the next row."""
        if self._firer is None:
            return False
        row = self._first + index
        next_ms = min(self._firer.lowest_new_ms, self._next_ms)
        return next_ms <= self._as_of[min(row + 1, len(self._as_of) - 1)]

    # --- many at once ---

    def begin_together(self, keys: Keys) -> int:
        """Take so many rows of the piece at once that none comes after time has gone on for its key.

        Where there are timers, each key comes once: a row may register one that is due before the next row of its key.
        A late row begins a part of its own then: what it registers may be due already, as of it and not before.

        Args:
            keys: of the rows of the piece.

        Returns:
            Their number.
        """
        times_ms = self._times_ms[self._first :]
        inverse = keys.inverse
        before = row_watermarks.rows_before(inverse)
        later = before >= 0
        if self._firer is None:
            later &= times_ms != times_ms[before]
        else:
            later[1:] |= self._late[self._first + 1 :]
        # Timers that are there are due.
        later[1:] |= self._as_of_ms[self._first + 1 :] >= self._next_ms
        taken = int(later.argmax()) if later.any() else len(inverse)
        if self._firer is not None:
            self._firer.reach(self._as_of[self._first])
        if self._states is not None:
            firsts = keys.first_rows[keys.first_rows < taken]
            self._states.enter_keys(keys.hashes[firsts], times_ms[firsts])
        return taken
