"""Operators of windows whose rows an author's code gets: all of a window at once, or batch by batch into accumulators.

The table of windows has the number of rows of each key and pane: panes, late rows, firing and sessions are those of
other windows. What is kept of the rows lies beside it (``kept_values``), and goes when the last window of its pane has
left, or so much later as late rows may come; in sessions when the session has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from weir.author.aggregator import WindowBounds
from weir.author.keyed_rows import declared_tables, row_hashes
from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.rows import Cells
from weir.operators.windows.panes.kept_values import KeptValues
from weir.operators.windows.panes.pane_times import session_pane_ends, window_pane_ends
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.panes.updated_windows import UpdatedWindowOperator
from weir.operators.windows.panes.user_windows import UserWindows, make_user_windows
from weir.operators.windows.panes.window_aggregates import WindowAggregateOperator
from weir.operators.windows.sessions.late_sessions import LateSessionOperator
from weir.operators.windows.sessions.session_aggregates import SessionAggregateOperator
from weir.rows import row_watermarks
from weir.rows.python_values import row_dicts
from weir.rows.records import WATERMARK_MAX_MS, with_times
from weir.rows.side_outputs import SideRows
from weir.specs.window_process import WindowProcessSpec
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, entry_keys


class ProcessWindowOperator(WindowAggregateOperator):
    """Windows made of panes. Output: key columns, bounds of the window, and what the author's code gives."""

    def __init__(self, spec: WindowProcessSpec) -> None:
        super().__init__(spec)
        self._process_spec = spec
        self._user: UserWindows | None = None

    def open(self, context: OperatorContext) -> None:
        """See :class:`WindowAggregateOperator`."""
        super().open(context)
        self._max_parallelism = context.max_parallelism
        spec = self._process_spec
        self._kept = KeptValues(declared_tables(context), spec.form)
        self._user = make_user_windows(spec, self._step, self._kept)
        self._schema = spec.output_schema(self._step, (spec.input_schema,))

    # --- rows come in ---

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """See :class:`WindowAggregateOperator`; rows are given to the author's accumulators, or kept.

        Raises:
            UserFunctionError: the author's code raised.
        """
        table = self.table
        table.look()
        batch = self._without_waiting(batch)
        if not batch.num_rows:
            return
        keys = weir_keys.key_bytes(batch, self._spec.key_columns)
        hashes = row_hashes(batch, keys)
        ends_ms = np.empty(batch.num_rows, dtype=np.int64)
        late = self._find_ends(self._times(batch), hashes, ends_ms)
        given, batch = batch, self._as_given(batch)
        if late:
            self.late_rows += late
            rows = np.flatnonzero(ends_ms != NOTHING_MS)
            told = pa.array(ends_ms == NOTHING_MS)
            yield SideRows("late", row_watermarks.carried(given.filter(told), batch.filter(told)))
            batch, keys = batch.take(pa.array(rows)), weir_keys.select_keys(keys, rows)
            hashes, ends_ms = hashes[rows], ends_ms[rows]
        if self._rolling is not None:
            self._rolling.note(ends_ms)
        if not batch.num_rows:
            return
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
        """What the author's code makes of windows, in batches of about the usual size."""
        if self._users.aggregates is not None:
            yield from self._aggregated(windows)
            return
        found, rows = list[pa.RecordBatch](), 0
        for (key, bounds, owners), time_ms in zip(
            self._with_owners(windows), windows.times_ms.tolist(), strict=True
        ):
            result = self._users.result(row_dicts(key)[0], bounds, list(owners.values()))
            self._forget([owners], np.array([bounds.end_ms]))
            if result is not None and result.num_rows:
                found.append(self._leaving(key, bounds, time_ms, result))
                rows += result.num_rows
            if rows >= self._batch_size:
                yield from self._batches(found)
                found, rows = [], 0
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
        """Of each window the owner of what is kept of each pane, by the pane's end."""
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
        """Of each window its key, its bounds, and :meth:`_owners`."""
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
        """Whether no window after this one has the pane."""
        return self._panes.last_end(pane_ms) <= end_ms


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

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """See :class:`LateSessionOperator`."""
        if self._is_silent:
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
        dead = self._dying(until_ms)
        yield from super()._fire(until_ms)
        self._kept.clear(dead)

    def _dying(self, until_ms: int) -> list[bytes]:
        """Owners of the panes that are needed no more when windows have fired up to a time, and were before."""
        table = self.table
        table.look()
        fired_ms = table.fired_ms()
        if fired_ms == NEVER_MS:
            # No key group is owned.
            return []
        stop_ms = NEVER_MS if until_ms == WATERMARK_MAX_MS else self._dead_until(until_ms)
        return [
            owner
            for entries in table.entries(self._dead_until(fired_ms), stop_ms)
            for owner in self._kept.owners(
                entries.groups.tolist(), entries.ends_ms.tolist(), entries.keys.to_list()
            )
        ]


def make_process_operator(spec: WindowProcessSpec) -> ProcessWindowOperator:
    """That of sessions, of windows that take late rows, or of windows which are made of panes."""
    if spec.window.kind == "session":
        return LateSessionProcessOperator(spec) if spec.updates.lateness_ms else SessionProcessOperator(spec)
    return LateProcessOperator(spec) if spec.updates.lateness_ms else ProcessWindowOperator(spec)
