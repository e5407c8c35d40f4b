"""What a keyed operator with declared states knows of the rows that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from weir.author.timer_sides import TimerSide
from weir.author.timers import NoTimers, Timers
from weir.keys import hashing as weir_keys
from weir.keys.division import row_hashes
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MIN_MS, int64_column
from weir.state.handles.block import Cursor, Handle, Keys, write_back
from weir.state.tables.state_times import StateTimes


class KeyContext:
    """Given to ``process`` and ``process_batch`` of a :class:`weir.KeyedProcess`; one for each subtask.

    In ``on_timer`` it is of the timer's key. See :class:`weir.author.timers.Timers` for ``timers``.
    """

    def __init__(
        self, cursor: Cursor, handles: Sequence[Handle], key_columns: tuple[str, ...], max_parallelism: int
    ) -> None:
        #: Registers and deletes timers; set by the runtime.
        self.timers: Timers | NoTimers
        self._timer_sides: tuple[TimerSide, ...] = ()
        self._cursor = cursor
        self._handles = handles
        self._key_columns = key_columns
        self._max_parallelism = max_parallelism
        self._batch: pa.RecordBatch | None = None
        self._hashes: np.ndarray | None = None
        self._keys: Keys | None = None
        self._times: list[int] | None = None
        #: Position in its batch of the row that is processed; set by the runtime.
        self.row_index = 0
        #: The watermark as of the last row, or what the operator was told of before the present one.
        self.reached_ms = WATERMARK_MIN_MS
        #: States with a TTL go by the times of rows; None: there are none, or the watermark is all that is known.
        self.state_times: StateTimes | None = None

    @property
    def event_time_ms(self) -> int:
        """Event time of the row that is processed, or of the timer, ms since the epoch; per record only."""
        if self._times is None:
            if self._batch is None:
                raise RuntimeError("there is no row here; read the column _event_time_ms of a batch")
            self._times = int64_column(self._batch, EVENT_TIME_COLUMN).tolist()
        return self._times[self.row_index]

    def keys(self, batch: pa.RecordBatch) -> Keys:
        """The keys of the rows of a batch, which has the key columns, for ``get`` and ``put`` of states.

        ``keys.distinct`` has each key once, and ``keys.inverse`` says for each row which of these it has.
        """
        if batch is self._batch and self._keys is not None:
            return self._keys
        column = weir_keys.key_bytes(batch, self._key_columns)
        is_shown = batch is self._batch and self._hashes is not None
        hashes = self._hashes if is_shown else row_hashes(batch, column)
        assert hashes is not None
        keys = Keys(hashes, column, self._max_parallelism)
        if batch is self._batch:
            self._keys = keys
        return keys

    def visit(self, keys: Keys) -> Iterator[int]:
        """Make one after the other of ``keys.distinct`` the current key; yields its position there.

        So lists and maps are used in batches: ``for index in context.visit(keys): self.seen.append(times[index])``.
        """
        write_back(self._handles)
        distinct = keys.distinct
        self._cursor.block = distinct
        try:
            hashes = distinct.hashes if self.state_times is not None else None
            for index in range(len(distinct)):
                self._cursor.index = index
                if hashes is not None and self.state_times is not None:
                    self.state_times.move_to(int(hashes[index]))
                yield index
        finally:
            self._cursor.index = None

    # --- called by the runtime ---

    def begin(self, batch: pa.RecordBatch, hashes: np.ndarray | None) -> None:
        """A batch as users see it, and the hashes of its keys where they are known."""
        self._batch, self._hashes, self._keys, self._times = batch, hashes, None, None
        self._cursor.block = self._cursor.index = None

    def use_timers(self, timers: Timers | NoTimers, sides: Sequence[TimerSide] = ()) -> None:
        """What authors register timers with, and what that changes; before the first batch."""
        self.timers = timers
        self._timer_sides = tuple(sides)

    def begin_timers(self, times_ms: np.ndarray, hashes: np.ndarray | None = None) -> None:
        """Timers are about to fire, at these times (int64, ascending); ``hashes`` (uint64) of their keys if at once.

        A timer that one of a later time registered has that time.
        """
        times = self.state_times
        if isinstance(self.timers, Timers) and self.timers.is_processing:
            # By event time they are as of the last row, of this subtask or of a former owner of their keys.
            if times is not None and (now_ms := max(times.watermark_ms, self.reached_ms)) != WATERMARK_MIN_MS:
                times.enter_rows(now_ms)
                times.move(now_ms)
            return
        if hashes is not None and isinstance(self.timers, Timers):
            self.timers.watermark_ms = max(int(times_ms[0]), self.reached_ms)
        if times is None:
            return
        # One that was registered too late is as of the row that did.
        seen_ms = np.maximum(times_ms - 1, self.reached_ms)
        if hashes is None:
            times.enter_rows(int(seen_ms.min()))
        else:
            times.enter_keys(hashes, seen_ms, np.maximum(times_ms, self.reached_ms))

    def begin_block(self, keys: Keys) -> None:
        """Timers of these distinct keys are about to fire, one by one."""
        self._batch = self._hashes = self._keys = None
        self._cursor.block, self._cursor.index = keys, None

    def begin_timer(self, position: int, time_ms: int, reached_ms: int) -> None:
        """The timer of a key of the block fires; ``reached_ms``: its time, or that of the one that registered it."""
        self._cursor.index = position
        self._times, self.row_index = [time_ms], 0
        if isinstance(self.timers, Timers):
            if self.timers.is_processing:
                return
            # Others come later, however far the watermark has come at once.
            self.timers.watermark_ms = max(reached_ms, self.reached_ms)
        if self.state_times is not None:
            # It still finds what expires when it is due.
            self.state_times.move(max(reached_ms - 1, self.reached_ms), max(reached_ms, self.reached_ms))

    def end_part(self) -> None:
        """Write back what was changed below :meth:`visit`; the batch goes on.

        Raises:
            TypeError, ValueError: a value is not of its state's type; nothing is written.
            StateError: the store cannot be written.
        """
        write_back(self._handles)

    def end(self) -> None:
        """Write back what the batch changed.

        Raises:
            TypeError, ValueError: a value is not of its state's type; nothing is written.
            StateError: the store cannot be written.
        """
        write_back(self._handles)
        for side in self._timer_sides:
            side.end()
        self._forget()

    def abandon(self) -> None:
        """The batch failed: forget what it changed."""
        for handle in self._handles:
            handle.discard()
        for side in self._timer_sides:
            side.abandon()
        self._forget()

    def _forget(self) -> None:
        if self.state_times is not None:
            self.state_times.leave_rows()
        self._batch = self._hashes = self._keys = self._times = None
        self._cursor.block = self._cursor.index = None
