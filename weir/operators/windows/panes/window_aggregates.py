"""The operator of aggregates in windows that are made of panes: tumbling, sliding and cumulative ones."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.keyed_rows import declared_tables
from weir.author.operator import NEVER_US, InTimeOperator, Json, OperatorContext, TimedOperator
from weir.errors import StateError
from weir.keys import hashing as weir_keys
from weir.keys.division import row_hashes
from weir.operators.aggregation.columns import Cells
from weir.operators.keyed.state_codec import counted_before, kept_snapshots, keyed_snapshot
from weir.operators.pauses import Pause
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.pane_times import check_times, panes_of
from weir.operators.windows.panes.rolling import RollingWindows
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.panes.window_codec import (
    LATENESS,
    check_lateness,
    check_window_codecs,
    window_codec,
)
from weir.operators.windows.panes.window_parts import PartRows, WindowParts, split_parts
from weir.operators.windows.rows.waiting_rows import WaitingRows
from weir.rows import row_watermarks
from weir.rows.records import (
    EVENT_TIME_COLUMN,
    WATERMARK_MAX_MS,
    WATERMARK_MIN_MS,
    as_authors_see,
    int64_column,
    with_times,
)
from weir.rows.row_watermarks import RowWatermarks, TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs.windows import LATE_STATE, WINDOW_PART, WindowAggregateSpec
from weir.state.tables.panes import window_kernels as kernels
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries
from weir.state.tables.panes.window_table import WindowTable

#: Of the bound of the state's cache: what running totals of windows may take besides.
_TOTALS_SHARE = 4


class WindowAggregateOperator(InTimeOperator, TimedOperator):
    """Aggregates per key and window, kept in :class:`WindowTable`.

    Input: any columns, the key columns among them. Output: key columns, ``window_start`` and ``window_end``, one column
    per aggregate, the time columns; the event time is the last of the window. A window fires at the first watermark at
    or after its end. Rows whose last window has fired are late: they are counted and dropped.
    """

    def __init__(self, spec: WindowAggregateSpec) -> None:
        self._spec = spec
        self._panes = panes_of(spec.window)
        self._by_clock = spec.window.time == "processing"
        self._watermark_ms = WATERMARK_MIN_MS
        self._lateness_ms = spec.updates.lateness_ms
        #: Of the rows that are looked at: see ``weir.rows.row_watermarks.late_ms``.
        self._late_ms: np.ndarray | None = None
        places = {aggregate.output: place for place, aggregate in enumerate(spec.aggregates)}
        #: Where the aggregates that have columns are among all, in the order of the columns.
        self._shown = [places[aggregate.output] for aggregate in spec.results]
        self._table: WindowTable | None = None
        self._rolling: RollingWindows | None = None
        #: None: there is none that could wait.
        self._waiting: WaitingRows | None = None
        #: Rows that came too late, also before the checkpoint that the job started from; other threads read it.
        self.late_rows = 0

    def check_restored(self, context: OperatorContext) -> None:
        """Check that the restored state is that of today's window and aggregates, as :class:`Operator` asks."""
        kept = kept_snapshots(context, self._spec.kind)
        check_window_codecs(context.operator_name, kept.values(), window_codec(self._spec))
        if self._spec.window.kind != "session":
            check_lateness(context.operator_name, kept.values(), self._spec.updates.lateness_ms)

    def open(self, context: OperatorContext) -> None:
        """Take the stage's store.

        Raises:
            StateError: there is none, or a checkpoint's state cannot be read with this spec.
        """
        spec = self._spec
        self._step, self._clock = context.operator_name, context.clock
        self._batch_size = context.batch_size
        self._cuts = TimeCuts.NONE
        if not self._by_clock:
            self._cuts = self._cuts_when_late
            if not self._panes.is_single:
                # A late row is not in those of its windows that were due before it.
                self._cuts |= TimeCuts.LATE
            if context.row_watermarks >= RowWatermarks.ALL:
                self._cuts |= TimeCuts.DUE
        kept = kept_snapshots(context, spec.kind)
        self._codec = window_codec(spec)
        self.check_restored(context)
        self.late_rows = counted_before(context, kept, "late_rows")
        self._folds = self._make_folds()
        self._key_types = [spec.input_schema.field(name).type for name in spec.key_columns]
        self._schema = spec.output_schema(self._step, (spec.input_schema,))
        tables = declared_tables(context)
        self._table = tables.windows(self._folds.cell_count)
        self._parts = WindowParts(self._folds, tables)
        if LATE_STATE in tables.state_ids:
            self._waiting = WaitingRows(tables, LATE_STATE)
        if not (self._panes.is_single or spec.window.kind == "session" or self._parts):
            self._rolling = RollingWindows(
                self._panes, self._folds, self._key_types, tables.cache_bytes // _TOTALS_SHARE
            )

    def _make_folds(self) -> Folds:
        """What entries keep."""
        return Folds(self._spec.aggregates, self._spec.input_schema)

    #: A window that is one pane takes late rows as others until it is over, whatever was due before.
    _cuts_when_late = TimeCuts.NONE

    @property
    @override
    def time_cuts(self) -> TimeCuts:
        return self._cuts

    def due_ms(self) -> int:
        """Return the first end of a window."""
        return WATERMARK_MIN_MS if self.table.has_new_groups else self._next_end_ms()

    def made_due_ms(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Return the end of each row's pane."""
        return self._panes.pane_ends(int64_column(batch, EVENT_TIME_COLUMN))

    @property
    def table(self) -> WindowTable:
        """The accumulators.

        Raises:
            StateError: the operator is not open.
        """
        if self._table is None:
            raise StateError("this window operator is not open")
        return self._table

    @property
    def totals_bytes(self) -> int:
        """Memory for windows that share panes, and for texts, beside that of the table."""
        return self._parts.texts.memory_bytes + (0 if self._rolling is None else self._rolling.memory_bytes)

    # --- rows come in ---

    @override
    def late_keys(self, batch: pa.RecordBatch) -> np.ndarray:
        return row_hashes(batch, weir_keys.key_bytes(batch, self._spec.key_columns))

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Take rows into the panes of their keys; nothing but late rows leaves before a watermark.

        Raises:
            StateError: the store cannot be read or written.
            WeirError: an integer sum passes 64 bits, or an event time cannot be that of a window.
        """
        table, folds = self.table, self._folds
        table.look()
        batch = self._without_waiting(batch)
        if self._spec.takes_parts and batch.num_rows:
            batch, rows_added_up = split_parts(batch, self._spec.input_schema, folds.cell_count)
            if rows_added_up is not None:
                yield from self._take_parts(rows_added_up)
        if not batch.num_rows:
            return
        batch, keys, hashes, ends_ms = yield from self._without_late(batch)
        masks = self._parts.take(batch, folds.masks(batch), ends_ms, hashes, keys)
        for start, stop, slots in table.update(ends_ms, hashes, keys):
            piece = batch if stop - start == batch.num_rows else batch.slice(start, stop - start)
            parts = [mask[start:stop] for mask in masks]
            self._before_taken(start, stop, slots)
            cells = Cells(table.cells, table.presence)
            try:
                folds.take(slots, cells, piece, parts)
            finally:
                self._parts.texts.take(piece, slots, cells, (ends_ms, hashes, keys), start)
            self._note_changed(start, stop, slots)
            yield from self._taken(start, stop, slots)

    def _without_late(
        self, batch: pa.RecordBatch
    ) -> Generator[SideRows, None, tuple[pa.RecordBatch, weir_keys.KeyColumn, np.ndarray, np.ndarray]]:
        """Tell the rows that are late; returns the others with their keys, hashes of these, and ends of panes."""
        keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        hashes = row_hashes(batch, keys)
        ends_ms = np.empty(batch.num_rows, dtype=np.int64)
        late = self._find_ends(self._times(batch), hashes, ends_ms)
        if late:
            self.late_rows += late
            rows = np.flatnonzero(ends_ms != NOTHING_MS)
            told = batch.filter(pa.array(ends_ms == NOTHING_MS))
            yield SideRows("late", row_watermarks.carried(told, self._as_given(told)))
            batch, keys = batch.take(pa.array(rows)), weir_keys.select_keys(keys, rows)
            hashes, ends_ms = hashes[rows], ends_ms[rows]
        if self._rolling is not None:
            self._rolling.note(ends_ms)
        return batch, keys, hashes, ends_ms

    def _before_taken(self, start: int, stop: int, slots: np.ndarray) -> None:
        """Some of the rows of a batch that are not late are about to be taken, at these slots."""

    def _note_changed(self, start: int, stop: int, slots: np.ndarray) -> None:
        """Some of the rows of a batch that are not late have been taken, at these slots."""

    def _taken(self, start: int, stop: int, slots: np.ndarray) -> Iterable[pa.RecordBatch]:
        """What leaves because some of the rows of a batch that are not late have been taken, at these slots."""
        return ()

    def _as_given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows without what was added to them on their way here."""
        batch = as_authors_see(batch)
        if not self._spec.is_keyless:
            return batch
        added = {*self._spec.key_columns, WINDOW_PART}
        return batch.drop_columns([name for name in batch.schema.names if name in added])

    def _take_parts(self, rows: PartRows) -> Iterator[pa.RecordBatch]:
        """Take in rows that stand for several; all of these are late, or none is."""
        table, batch, ends_ms = self.table, rows.batch, np.empty(rows.batch.num_rows, dtype=np.int64)
        keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        hashes, cells = row_hashes(batch, keys), rows.cells
        if self._find_ends(self._times(batch), hashes, ends_ms):
            self.late_rows += int(rows.counts[ends_ms == NOTHING_MS].sum())
            kept = np.flatnonzero(ends_ms != NOTHING_MS)
            keys, hashes, ends_ms = weir_keys.select_keys(keys, kept), hashes[kept], ends_ms[kept]
            cells = Cells(cells.integers[kept], cells.presence[kept])
        if self._rolling is not None:
            self._rolling.note(ends_ms)
        for start, stop, slots in table.update(ends_ms, hashes, keys):
            self._before_taken(start, stop, slots)
            into = Cells(table.cells, table.presence)
            self._folds.merge_into(
                slots.astype(np.int64), cells.integers[start:stop], cells.presence[start:stop], into
            )
            self._note_changed(start, stop, slots)
            yield from self._taken(start, stop, slots)

    def _times(self, batch: pa.RecordBatch) -> np.ndarray:
        """The times that rows are put into windows by; notes which of them are late."""
        self._late_ms = None
        if self._by_clock:
            # A clock that goes back must not bring rows into windows that have fired.
            now_ms = max(self._clock.now_us() // 1000, int(self.table.places_ms.max()))
            return np.full(batch.num_rows, now_ms, dtype=np.int64)
        times_ms = int64_column(batch, EVENT_TIME_COLUMN)
        check_times(times_ms)
        self._late_ms = row_watermarks.late_ms(batch, times_ms)
        return times_ms

    def _find_ends(self, times_ms: np.ndarray, hashes: np.ndarray, ends_ms: np.ndarray) -> int:
        """Find the end of each row's pane; the smallest time for late rows, whose number this returns."""
        return self._ends(times_ms, hashes, self.table.places_ms, ends_ms)

    def _ends(
        self, times_ms: np.ndarray, hashes: np.ndarray, closed_ms: np.ndarray, ends_ms: np.ndarray
    ) -> int:
        panes = self._panes
        late = kernels.pane_ends(
            times_ms,
            hashes,
            panes.pane_ms,
            panes.offset_ms,
            panes.shift_ms,
            panes.grid_ms,
            panes.offset_ms,
            closed_ms,
            ends_ms,
        )
        return late if self._late_ms is None else late + self._put_late(ends_ms, self._late_ms)

    def _put_late(self, ends_ms: np.ndarray, late_ms: np.ndarray) -> int:
        """Mark rows as late whose last window is over by the watermark of their own split; returns how many."""
        rows = np.flatnonzero((late_ms != WATERMARK_MIN_MS) & (ends_ms != NOTHING_MS))
        last_ms = self._panes.last_end(ends_ms[rows])
        over = rows[last_ms + self._lateness_ms <= late_ms[rows]]
        ends_ms[over] = NOTHING_MS
        return len(over)

    # --- late rows wait ---

    def _without_waiting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows without those that are late as of a watermark that has not come, where that makes a difference."""
        late_ms = None if self._waiting is None else row_watermarks.late_ms(batch)
        if self._waiting is None or late_ms is None:
            return batch
        waits = (late_ms > self._watermark_ms) & self._minds(int64_column(batch, EVENT_TIME_COLUMN), late_ms)
        rows = np.flatnonzero(waits)
        if not len(rows):
            return batch
        some = batch.take(pa.array(rows))
        groups = weir_keys.key_groups(self.late_keys(some), len(self.table.places_ms))
        self._waiting.look(self.table)
        self._waiting.put(some, late_ms[rows], groups)
        return batch.filter(pa.array(~waits))

    def _minds(self, times_ms: np.ndarray, late_ms: np.ndarray) -> np.ndarray:
        """Which late rows are in some of their windows, and not in others; bool."""
        ends_ms = self._panes.pane_ends(times_ms)
        last_ms = self._panes.last_end(ends_ms)
        minds: np.ndarray = (ends_ms + self._lateness_ms <= late_ms) & (late_ms < last_ms + self._lateness_ms)
        return minds

    # --- windows fire ---

    def on_watermark(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """Fire the windows that are complete, unless they go by the clock; rows that wait come in between."""
        waiting = self._waiting
        if waiting is not None:
            waiting.look(self.table)
            if waiting.first_ms <= time_ms:
                return self._passed_waiting(waiting, time_ms)
        return self._passed(time_ms)

    def _passed_waiting(self, waiting: WaitingRows, time_ms: int) -> Iterator[pa.RecordBatch | Pause]:
        yield from self._releases(waiting, time_ms)
        yield from self._passed(time_ms)

    def _releases(self, waiting: WaitingRows, time_ms: int) -> Iterator[pa.RecordBatch | SideRows | Pause]:
        """Fire up to what rows wait for, and process these.

        What has fired is handed on before: the rows change what is kept of its panes. A pause says so.
        """
        while waiting.first_ms <= time_ms:
            yield from self._passed(waiting.first_ms)
            yield Pause()
            yield from waiting.released(self)
            yield Pause()

    def _passed(self, time_ms: int) -> Iterable[pa.RecordBatch]:
        """A watermark has come."""
        if self._by_clock:
            return ()
        self._watermark_ms = max(time_ms, self._watermark_ms)
        return self._fire(self._watermark_ms)

    def due_us(self) -> int:
        """Return when the clock makes windows due, and those of key groups that have just come."""
        if self._by_clock:
            end_ms = self._next_end_ms()
            return NEVER_US if end_ms >= NEVER_MS else end_ms * 1000
        return 0 if self.table.has_new_groups and self._watermark_ms != WATERMARK_MIN_MS else NEVER_US

    def on_time(self) -> Iterable[pa.RecordBatch]:
        """Fire what is due."""
        until_ms = self._clock.now_us() // 1000 if self._by_clock else self._watermark_ms
        return () if until_ms == WATERMARK_MIN_MS else self._fire(until_ms)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """The input has ended, so all windows are complete, and no row waits any more."""
        waiting = self._waiting
        if waiting is not None:
            waiting.look(self.table)
            yield from self._releases(waiting, NEVER_MS - 1)
        yield from self._fire(WATERMARK_MAX_MS)

    def _next_end_ms(self) -> int:
        """No window that has to fire ends before this time."""
        first_ms = self.table.first_ms()
        if first_ms == NEVER_MS:
            return NEVER_MS
        return self._panes.first_end(first_ms, self.table.fired_ms())

    def _fire(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        """Results of the windows that end up to a time and have not fired."""
        table = self.table
        fires = self._next_end_ms() <= until_ms
        if fires:
            last_ms = NOTHING_MS
            if self._rolling is not None and self._rolling.begin(table, until_ms):
                for window in self._rolling.windows():
                    last_ms = window.end_ms
                    starts, ends = (np.full(len(window), bound, dtype=np.int64) for bound in window.bounds_ms)
                    yield from self._made(ToldWindows(window.keys, starts, ends, *window.cells))
            else:
                last_ms = yield from self._fire_entries(until_ms)
            if until_ms == WATERMARK_MAX_MS:
                table.drop(until_ms)
                self._parts.drop(until_ms)
                # Rows that a later run of the job brings are not late.
                until_ms = last_ms
            else:
                table.drop(self._dead_until(until_ms))
                self._parts.drop(self._dead_until(until_ms))
        if until_ms != WATERMARK_MAX_MS:
            table.advance(until_ms)
            self._parts.advance(until_ms)
            if self._rolling is not None and (fires or table.has_to_pack):
                table.pack(until_ms)

    def _dead_until(self, fired_ms: int) -> int:
        """No pane that ends here or before is needed when windows have fired up to this time."""
        return self._panes.dead_until(fired_ms)

    def _fire_entries(self, until_ms: int) -> Generator[pa.RecordBatch, None, int]:
        """Results of windows that are put together from their panes; returns the end of the last one with a pane."""
        table, panes = self.table, self._panes
        fired_ms = table.fired_ms()
        after_ms = NOTHING_MS if fired_ms == NOTHING_MS else panes.dead_until(fired_ms)
        last_ms = NOTHING_MS
        for entries in table.entries(after_ms, until_ms):
            if not len(entries):
                continue
            last_ms = max(last_ms, panes.last_end(int(entries.ends_ms.max())))
            # Nothing fires twice, whoever held the group before.
            places_ms = table.places_ms[entries.groups]
            if panes.is_single:
                yield from self._single(entries, places_ms)
            else:
                every = np.ones(len(entries), dtype=np.bool_)
                yield from self._windows_of(entries, every, places_ms, np.full(len(entries), until_ms))
        return last_ms

    def _single(self, entries: WindowEntries, places_ms: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Yield the windows of which each is a whole entry."""
        rows = np.flatnonzero(entries.ends_ms > places_ms)
        ends_ms = entries.ends_ms[rows]
        if len(rows) and (ends_ms != ends_ms[0]).any():
            order = np.argsort(ends_ms, kind="stable")
            rows, ends_ms = rows[order], ends_ms[order]
        keys = weir_keys.decode_keys(entries.keys, self._key_types)
        taken = pa.array(rows)
        cells = Cells(entries.cells[rows], entries.presence[rows])
        if not self._parts.single_is_whole:
            index = np.full(len(entries), -1, dtype=np.int64)
            index[rows] = np.arange(len(rows))
            self._parts.fill(self._parts.load(entries), index, cells)
        starts_ms = ends_ms - self._panes.size_ms
        taken_keys = [key.take(taken) for key in keys]
        yield from self._made(ToldWindows(taken_keys, starts_ms, ends_ms, *cells))

    def _windows_of(
        self, entries: WindowEntries, is_changed: np.ndarray, after_ms: np.ndarray, until_ms: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Windows that have changed panes.

        Args:
            entries: all panes of the keys.
            is_changed: bool, by entry.
            after_ms: by entry: windows that end after this time,
            until_ms: and up to this one.
        """
        panes, ends_ms, parts = self._panes, entries.ends_ms, self._parts.load(entries)
        firsts, _, position = weir_keys.distinct_keys(weir_keys.hash_keys(entries.keys), entries.keys)
        keys = [key.take(pa.array(firsts)) for key in weir_keys.decode_keys(entries.keys, self._key_types)]
        after_ms, until_ms = after_ms[firsts], until_ms[firsts]
        changed_ends = np.unique(ends_ms[is_changed]).tolist()
        for end_ms in panes.ends(changed_ends, int(until_ms.max()), int(after_ms.min())):
            start_ms = panes.start_of(end_ms)
            inside = (ends_ms > start_ms) & (ends_ms <= end_ms)
            wanted = np.zeros(len(firsts), dtype=np.bool_)
            wanted[position[inside & is_changed]] = True
            wanted &= (after_ms < end_ms) & (end_ms <= until_ms)
            rows = np.flatnonzero(wanted)
            if len(rows):
                index = np.where(inside & wanted[position], position, -1)
                cells, presence = self._folds.merged(index, entries.cells, entries.presence, len(firsts))
                self._parts.fill(parts, index, Cells(cells, presence))
                starts, ends = (np.full(len(rows), bound, dtype=np.int64) for bound in (start_ms, end_ms))
                taken = [key.take(pa.array(rows)) for key in keys]
                yield from self._made(ToldWindows(taken, starts, ends, cells[rows], presence[rows]))

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Results as they leave the step, in batches of the usual size."""
        if not len(windows.ends_ms):
            return
        after_ms, until_ms = int(windows.starts_ms.min()) - 1, int(windows.ends_ms.max())
        cells = Cells(windows.cells, windows.presence)
        self._parts.texts.prepare(cells, after_ms, until_ms + self._panes.pane_ms)
        found = self._folds.results(windows.cells, windows.presence)
        values = [found[place] for place in self._shown]
        keys = () if self._spec.is_keyless else windows.keys
        columns = [*keys, pa.array(windows.starts_ms), pa.array(windows.ends_ms), *values]
        if windows.changes is not None:
            columns.append(windows.changes)
        batch = with_times(
            pa.RecordBatch.from_arrays(columns, schema=self._schema), windows.times_ms, self._clock.now_us()
        )
        for start in range(0, batch.num_rows, self._batch_size):
            yield batch.slice(start, self._batch_size)

    # --- life cycle ---

    def snapshot(self, checkpoint_id: int) -> Json:
        """What the bytes in the store mean; the accumulators themselves are there, written by their table."""
        more = {} if self._spec.window.kind == "session" else {LATENESS: self._lateness_ms}
        return keyed_snapshot(self._spec.kind, self._codec, late_rows=self.late_rows, **more)

    def close(self) -> None:
        """Let go of the table, which the runtime flushes before and closes after."""
        self._table = None
