"""The operator of session windows that tell what they have before they are complete.

What has been told is part of each entry (``told``), and entries that are put together add it up. So a session has
something to tell if one of its entries has, whether rows have come, or two sessions have become one: that takes a row.
Entries of discarding sessions are emptied but for their first and last time, which say how far the session goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.early_times import EarlyTimes
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.told import ToldCells
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.sessions.closing_sessions import LARGE_SLOTS
from weir.operators.windows.sessions.session_aggregates import SessionAggregateOperator, Sessions
from weir.rows import fired_rows
from weir.rows.row_watermarks import TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs.windows import WindowAggregateSpec
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries

#: Sessions of a large table are looked at in so many parts, so that copies of their entries take little memory.
_PARTS = 16


class EarlySessionOperator(SessionAggregateOperator):
    """Sessions with several results, each with the bounds that the session has by then."""

    def __init__(self, spec: WindowAggregateSpec) -> None:
        super().__init__(spec)
        self._times_told = EarlyTimes(spec.updates.early)
        self._discards = spec.updates.results == "discarding"
        self._ownership = 0

    def due_ms(self) -> int:
        """Return when sessions are due, and when to tell what is not complete."""
        return min(super().due_ms(), self._times_told.due_ms(self._watermark_ms))

    def _make_folds(self) -> Folds:
        self._told = ToldCells(self._spec)
        return self._told.folds

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        # What was restored may not have been told.
        self._times_told.plan(self._clock.now_us())

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        yield from super().process(batch)
        self._times_told.plan(self._clock.now_us())

    # --- early results ---

    @override
    def due_us(self) -> int:
        return self._times_told.due_us(super().due_us())

    def on_time(self) -> Iterator[pa.RecordBatch]:
        """Fire what is due, then tell what is not complete."""
        yield from super().on_time()
        if self._times_told.is_due(self._clock.now_us()):
            yield from self._tell_early()
        if self.table.ownership != self._ownership:
            self._ownership = self.table.ownership
            self._times_told.plan(self._clock.now_us())

    def _passed(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """Fire, and tell what is not complete where the watermark comes to the next multiple of the interval."""
        table = self.table
        table.look()
        # A key group that comes from a checkpoint or from another subtask knows how far it was told: its place, which
        # is behind by the lateness.
        told_ms = np.where(table.places_ms == NOTHING_MS, NOTHING_MS, table.places_ms + self._lateness_ms)
        before_ms = np.maximum(told_ms, self._watermark_ms)
        for moment_ms, groups in self._times_told.moments(before_ms, max(time_ms, self._watermark_ms)):
            # What leaves at one of these moments is not as of a later one, to which the watermark comes at once.
            for made in itertools.chain(super()._passed(moment_ms), self._tell_early(groups)):
                yield fired_rows.fired(made, moment_ms - 1) if self._cuts & TimeCuts.DUE else made
        yield from super()._passed(time_ms)

    def _tell_early(self, groups: np.ndarray | None = None) -> Iterator[pa.RecordBatch]:
        """What open sessions of these key groups (None: of all) have, if it is more than was told."""
        table = self.table
        if groups is None:
            groups = np.arange(len(table.places_ms))
        parts = [groups] if table.capacity <= LARGE_SLOTS else np.array_split(groups, _PARTS)
        for part in parts:
            rewritten: list[WindowEntries] = []
            for entries in table.entries(NOTHING_MS, NEVER_MS, part):
                more = self._told.has_more(entries.cells)
                if more.any():
                    hashes = weir_keys.hash_keys(entries.keys)
                    rows = np.flatnonzero(np.isin(hashes, hashes[more]))
                    yield from self._tell(entries.part(rows), rewritten)
            for told in rewritten:
                table.put(told.ends_ms, told.keys, told.cells, told.presence)
                self._closing.note_entries(told)

    def _tell(self, entries: WindowEntries, rewritten: list[WindowEntries]) -> Iterator[pa.RecordBatch]:
        """Results of those sessions that have more; adds entries that change by it to ``rewritten``."""
        groups = entries.groups
        by_time = ~self.table.unmarked[groups]
        block = Sessions(entries, self.table.places_ms[groups], self._folds, self._gap_ms, by_time)
        if not len(block.firsts_ms):
            return
        self._parts.fill(self._parts.load(entries), block.number, Cells(block.cells, block.presence))
        yield from self._results(block, np.flatnonzero(self._told.has_more(block.cells)))
        changed = entries.part(np.flatnonzero(self._told.has_more(entries.cells) & (block.number >= 0)))
        self._told.note_told(Cells(changed.cells, changed.presence))
        rewritten.append(changed)

    # --- results ---

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Yield results; a discarding session whose rows were all told has none."""
        if self._discards:
            windows = windows.part(np.flatnonzero(self._told.has_more(windows.cells)))
        yield from super()._made(windows)
