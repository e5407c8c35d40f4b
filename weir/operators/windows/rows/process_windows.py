"""Operators of windows whose rows an author's code gets: all of a window at once, or batch by batch into accumulators.

The table of windows has the number of rows of each key and pane: panes, late rows, firing and sessions are those of
other windows. What is kept of the rows lies beside it (``kept_values``), and goes when the last window of its pane has
left, or so much later as late rows may come; in sessions when the session has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.aggregator import WindowBounds
from weir.author.keyed_rows import declared_tables
from weir.author.operator import DividedOperator, OperatorContext, SecondOperator
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.pauses import Pause
from weir.operators.step_flow import PART_S
from weir.operators.windows.panes.kept_values import KeptValues
from weir.operators.windows.panes.pane_times import session_pane_ends, window_pane_ends
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.panes.updated_windows import UpdatedWindowOperator
from weir.operators.windows.panes.user_windows import UserWindows, make_user_windows
from weir.operators.windows.panes.window_aggregates import WindowAggregateOperator
from weir.operators.windows.rows.row_aggregates import RowAggregates
from weir.operators.windows.sessions.late_sessions import LateSessionOperator
from weir.operators.windows.sessions.session_aggregates import SessionAggregateOperator
from weir.rows.python_values import row_dicts
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MAX_MS, int64_column, with_times
from weir.rows.side_outputs import SideRows
from weir.specs.window_process import WindowProcessSpec
from weir.specs.windows import WINDOW_BOUNDS
from weir.state.tables.panes.window_entries import NEVER_MS, WindowEntries, entry_keys

#: Of windows that are due: the number of their rows, or that nothing of their panes is needed any more.
_ROWS_COLUMN, _GONE = "_window_rows", -1
_LAST_MS = 1 << 61


class ProcessWindowOperator(WindowAggregateOperator, DividedOperator):
    """Windows made of panes. Output: key columns, bounds of the window, and what the author's code gives."""

    def __init__(self, spec: WindowProcessSpec) -> None:
        super().__init__(spec)
        self._process_spec = spec
        self._user: UserWindows | None = None
        is_ours = isinstance(spec.factory, RowAggregates) and not spec.is_keyless
        if not is_ours and not spec.takes_changes:
            # An author's code may take long: it gets windows that are due one after the other.
            self.second = WindowCalls(self)

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._max_parallelism = context.max_parallelism
        spec = self._process_spec
        self._kept = KeptValues(declared_tables(context), spec.form)
        self._user = make_user_windows(spec, self._step, self._kept)
        self._schema = spec.output_schema(self._step, (spec.input_schema,))
        fields = [spec.input_schema.field(name) for name in spec.key_columns]
        bounds = [pa.field(name, pa.int64()) for name in (*WINDOW_BOUNDS, _ROWS_COLUMN)]
        self._due_schema = pa.schema([*fields, *bounds])

    # --- rows come in ---

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Process a batch: rows are given to the author's accumulators, or kept.

        Raises:
            UserFunctionError: the author's code raised.
        """
        table = self.table
        table.look()
        batch = self._without_waiting(batch)
        if not batch.num_rows:
            return
        batch, keys, hashes, ends_ms = yield from self._without_late(batch)
        if not batch.num_rows:
            return
        batch = self._as_given(batch)
        mixed, data, offsets = entry_keys(ends_ms, hashes, keys)
        firsts, _, group_of = weir_keys.distinct_keys(mixed, weir_keys.KeyColumn(data, offsets))
        before = np.empty(batch.num_rows, dtype=np.int64)
        masks = self._folds.masks(batch)
        for start, stop, slots in table.update(ends_ms, hashes, keys):
            self._before_taken(start, stop, slots)
            before[start:stop] = table.cells[slots, 0]
            parts = [mask[start:stop] for mask in masks]
            piece = batch.slice(start, stop - start)
            self._folds.take(slots, Cells(table.cells, table.presence), piece, parts)
            self._note_changed(start, stop, slots)
        groups = weir_keys.key_groups(hashes[firsts], self._max_parallelism).tolist()
        owners = self._kept.owners(groups, ends_ms[firsts].tolist(), keys.to_list(firsts))
        ordered = batch.take(pa.array(np.argsort(group_of, kind="stable")))
        stops = np.cumsum(np.bincount(group_of, minlength=len(firsts))).tolist()
        self._users.take(owners, before[firsts].tolist(), ordered, stops)

    @property
    def _users(self) -> UserWindows:
        assert self._user is not None, "the operator is open"
        return self._user

    # --- windows fire ---

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Windows for :class:`WindowCalls`; or results of our own aggregates."""
        if self.second is None:
            yield from self._aggregated(windows)
        elif len(windows.ends_ms):
            yield self._due(windows, windows.cells[:, 0], windows.times_ms)

    def _due(
        self, windows: ToldWindows, rows: np.ndarray | int, times_ms: np.ndarray | int
    ) -> pa.RecordBatch:
        """Windows with so many rows each, :data:`_GONE`: none is needed any more."""
        count = len(windows.ends_ms)
        counts, times = (
            np.broadcast_to(np.asarray(each, dtype=np.int64), count) for each in (rows, times_ms)
        )
        bounds = [pa.array(each) for each in (windows.starts_ms, windows.ends_ms, counts)]
        batch = pa.RecordBatch.from_arrays([*windows.keys, *bounds], schema=self._due_schema)
        return with_times(batch, np.array(times), self._clock.now_us())

    def call(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Pause]:
        """What the author's code makes of windows that are due, in batches of about the usual size."""
        found, rows = list[pa.RecordBatch](), 0
        starts_ms, ends_ms = (int64_column(batch, name) for name in WINDOW_BOUNDS)
        keys = [batch.column(name) for name in self._spec.key_columns]
        nothing = np.empty((batch.num_rows, 0))
        windows = ToldWindows(keys, starts_ms, ends_ms, nothing, nothing)
        times_ms, counts = (int64_column(batch, name).tolist() for name in (EVENT_TIME_COLUMN, _ROWS_COLUMN))
        if max(counts) == _GONE:
            self._kept.clear([owner for owners in self._owners(windows) for owner in owners.values()])
            return
        ends_s = self._clock.monotonic_s() + PART_S
        for number, (key, bound, owners) in enumerate(self._with_owners(windows)):
            if counts[number] == _GONE:
                self._kept.clear(list(owners.values()))
                continue
            result = self._users.result(row_dicts(key)[0], bound, list(owners.values()))
            self._forget([owners], np.array([bound.end_ms]))
            if result is not None and result.num_rows:
                found.append(self._leaving(key, bound, times_ms[number], result))
                rows += result.num_rows
            is_over = self._clock.monotonic_s() >= ends_s
            if rows >= self._batch_size or is_over:
                yield from self._batches(found)
                found, rows = [], 0
            if is_over:
                yield Pause(number + 1)
                ends_s = self._clock.monotonic_s() + PART_S
        yield from self._batches(found)

    def _aggregated(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Results of our own aggregates over kept rows, of many windows at a time."""
        for part in self._blocks(windows):
            owners = self._owners(part)
            made = self._users.results([list(each.values()) for each in owners])
            self._forget(owners, part.ends_ms)
            if made is None:
                continue
            numbers, rows = made
            told = part.part(numbers)
            columns = [*told.keys, pa.array(told.starts_ms), pa.array(told.ends_ms), *rows.columns]
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
            yield with_times(batch, told.times_ms, self._clock.now_us())

    def _blocks(self, windows: ToldWindows) -> Iterator[ToldWindows]:
        """Windows, about so many at a time as have the rows of a batch, or as many panes."""
        panes = (windows.ends_ms - windows.starts_ms) // self._panes.pane_ms
        blocks = np.cumsum(windows.cells[:, 0] + panes) // self._batch_size
        for block in np.split(np.arange(len(blocks)), np.flatnonzero(np.diff(blocks)) + 1):
            if len(block):
                yield windows.part(block)

    def _owners(self, windows: ToldWindows) -> list[dict[int, bytes]]:
        """Return for each window the owner of what is kept of each pane, by the pane's end."""
        names = list(self._spec.key_columns)
        column = weir_keys.key_bytes(pa.RecordBatch.from_arrays(windows.keys, names), names)
        groups = weir_keys.key_groups(weir_keys.hash_keys(column), self._max_parallelism).tolist()
        keys = column.to_list(np.arange(len(groups)))
        panes = list(map(self._pane_ends, windows.starts_ms.tolist(), windows.ends_ms.tolist()))
        whose = np.repeat(np.arange(len(panes)), list(map(len, panes))).tolist()
        owners = iter(
            self._kept.owners(
                [groups[number] for number in whose],
                [end_ms for ends in panes for end_ms in ends],
                [keys[number] for number in whose],
            )
        )
        # The owners of a window are taken as long as it has panes.
        return [dict(zip(ends, owners, strict=False)) for ends in panes]

    def _forget(self, owners: Iterable[dict[int, bytes]], ends_ms: np.ndarray) -> None:
        """Forget what is kept of those panes of windows that no window after them has."""
        gone = [
            owner
            for end_ms, panes in zip(ends_ms.tolist(), owners, strict=True)
            for pane_ms, owner in panes.items()
            if self._is_last(pane_ms, end_ms)
        ]
        self._kept.clear(gone)

    def _with_owners(
        self, windows: ToldWindows
    ) -> Iterator[tuple[pa.RecordBatch, WindowBounds, dict[int, bytes]]]:
        """Yield of each window the key, the bounds, and :meth:`_owners`."""
        if not len(windows.ends_ms):
            return
        keys = pa.RecordBatch.from_arrays(windows.keys, list(self._spec.key_columns))
        bounds = map(WindowBounds, windows.starts_ms.tolist(), windows.ends_ms.tolist())
        for number, (bound, owners) in enumerate(zip(bounds, self._owners(windows), strict=True)):
            yield keys.slice(number, 1), bound, owners

    def _leaving(
        self, key: pa.RecordBatch, bounds: WindowBounds, time_ms: int, result: pa.RecordBatch
    ) -> pa.RecordBatch:
        rows = result.num_rows
        shown = [] if self._spec.is_keyless else key.columns
        first = [column.take(pa.array(np.zeros(rows, dtype=np.int64))) for column in shown]
        limits = [pa.array(np.full(rows, bound, dtype=np.int64)) for bound in bounds]
        columns = [*first, *limits, *result.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        return with_times(batch, np.full(rows, time_ms, dtype=np.int64), self._clock.now_us())

    def _batches(self, found: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        if not found:
            return ()
        whole = pa.Table.from_batches(found).combine_chunks().to_batches(max_chunksize=self._batch_size)
        return tuple(whole)

    def _pane_ends(self, start_ms: int, end_ms: int) -> range:
        return window_pane_ends(self._panes.pane_ms, start_ms, end_ms)

    def _is_last(self, pane_ms: int, end_ms: int) -> bool:
        """Return whether no window after this one has the pane."""
        return self._panes.last_end(pane_ms) <= end_ms


class WindowCalls(SecondOperator):
    """Calls the author's code with windows that are due; they are not in the table any more, what is kept of them is.

    Input: key columns, bounds of the window and the number of its rows, ascending by the time of the result.
    """

    knows_rows_by_time = True

    def __init__(self, windows: ProcessWindowOperator) -> None:
        self._windows = windows

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | Pause]:
        """Returns what the author's code makes of windows.

        Raises:
            UserFunctionError: the author's code raised.
        """
        return self._windows.call(batch)


class SessionProcessOperator(SessionAggregateOperator, ProcessWindowOperator):
    """Sessions. All panes from the first to the last row of one are its own."""

    # Values are numbered by the count of rows: those of a session that went on to the next pane are kept.
    _lasting_cells = 1

    def _pane_ends(self, start_ms: int, end_ms: int) -> range:
        return session_pane_ends(self._gap_ms, start_ms, end_ms)

    def _is_last(self, pane_ms: int, end_ms: int) -> bool:
        return True


class LateSessionProcessOperator(LateSessionOperator, SessionProcessOperator):
    """Sessions that take late rows for a while: what is kept of one goes when no late row can join it any more."""

    def _is_last(self, pane_ms: int, end_ms: int) -> bool:
        return False

    @override
    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        if self._is_silent and len(windows.ends_ms):
            if self.second is not None:
                yield self._due(windows, _GONE, windows.times_ms)
                return
            for _, _, owners in self._with_owners(windows):
                self._kept.clear(list(owners.values()))
        yield from super()._made(windows)


class LateProcessOperator(UpdatedWindowOperator, ProcessWindowOperator):
    """Windows that take late rows for a while: the author's code is called again for those that get some."""

    def _note_changed(self, start: int, stop: int, slots: np.ndarray) -> None:
        # Results leave when all rows of the batch are kept.
        late = np.unique(slots[self._is_closed[start:stop]])
        if len(late):
            self._note_late(self.table.entries_at(late))

    def _is_last(self, pane_ms: int, end_ms: int) -> bool:
        """What is kept of a pane goes when no row can come any more."""
        return False

    def _fire(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        dead = list(self._dying(until_ms))
        yield from super()._fire(until_ms)
        for entries in dead:
            if self.second is None:
                groups, keys = entries.groups.tolist(), entries.keys.to_list()
                self._kept.clear(self._kept.owners(groups, entries.ends_ms.tolist(), keys))
                continue
            keys = weir_keys.decode_keys(entries.keys, self._key_types)
            panes = ToldWindows(
                keys, entries.ends_ms - self._panes.pane_ms, entries.ends_ms, entries.cells, entries.presence
            )
            # After all windows that have them.
            yield self._due(panes, _GONE, min(until_ms - 1, _LAST_MS))

    def _dying(self, until_ms: int) -> Iterator[WindowEntries]:
        """The panes that are needed no more when windows have fired up to a time, and were before."""
        table = self.table
        table.look()
        fired_ms = table.fired_ms()
        if fired_ms == NEVER_MS:
            # No key group is owned.
            return
        stop_ms = NEVER_MS if until_ms == WATERMARK_MAX_MS else self._dead_until(until_ms)
        yield from table.entries(self._dead_until(fired_ms), stop_ms)


def make_process_operator(spec: WindowProcessSpec) -> ProcessWindowOperator:
    """Make the operator of sessions, of windows that take late rows, or of windows which are made of panes."""
    if spec.window.kind == "session":
        return LateSessionProcessOperator(spec) if spec.updates.lateness_ms else SessionProcessOperator(spec)
    return LateProcessOperator(spec) if spec.updates.lateness_ms else ProcessWindowOperator(spec)
