"""The operator of session windows that take late rows for a while.

Its table goes by a watermark that is behind by the allowed lateness, so that places, and with them what is late and
which entries are over, are those of sessions whose input is so much later. Nothing leaves when a session is over by
that; results leave when the watermark itself has passed the end of a session, and with each late row for one that it
has passed. A row that joins sessions some of which have left to one that is still open says nothing at
once: what leaves at its end takes their place.

A session has an entry for each pane until these are over, so the entries of one are found by going from pane to pane.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.sessions.due_sessions import DueSessions
from weir.operators.windows.sessions.early_sessions import EarlySessionOperator
from weir.operators.windows.sessions.session_aggregates import Sessions
from weir.operators.windows.sessions.session_entries import SessionEntries
from weir.rows import row_watermarks
from weir.rows.changes import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE
from weir.rows.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS
from weir.rows.row_watermarks import TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs.windows import WindowAggregateSpec
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries, concatenated

_KINDS = (DELETE, UPDATE_BEFORE, INSERT, UPDATE_AFTER)


class LateSessionOperator(EarlySessionOperator):
    """Sessions that are told when they are complete, again with late rows, and early if a trigger says so."""

    def __init__(self, spec: WindowAggregateSpec) -> None:
        super().__init__(spec)
        self._is_changelog = spec.updates.results == "changelog"
        #: Of the rows that are being taken, which are late, each by itself; bool.
        self._is_closed = np.empty(0, dtype=np.bool_)
        #: Entries that late rows have changed.
        self._changed: list[WindowEntries] = []
        #: Sessions are over by the later watermark; they have been told.
        self._is_silent = False
        #: Of the rows that are being taken, which belong to panes that are listed below; bool.
        self._is_watched = np.empty(0, dtype=np.bool_)

    @override
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._entries = SessionEntries(self.table, self._folds.time_cells, self._gap_ms)
        #: What may be complete, and what is about to be put together with others.
        self._completing, self._joining = (
            DueSessions(self.table, self._folds, self._parts.texts, self._gap_ms, ahead_ms)
            for ahead_ms in (self._lateness_ms, 0)
        )

    #: What a late row changes is told again, as of it.
    _cuts_when_late = TimeCuts.LATE | TimeCuts.EACH_LATE

    # --- rows come in ---

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        """Process a batch; also tell what late rows change."""
        for part in self._apart(batch):
            yield from super().process(part)
            if self._changed:
                changed = concatenated(self._changed)
                self._changed.clear()
                entries = self._entries.gathered(changed)
                if entries is not None:
                    yield from self._tell_again(entries)

    def _apart(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Late rows, each the first of its key, by themselves where one may tell an open session of later rows."""
        late_ms = row_watermarks.late_ms(batch) if self._is_changelog and batch.num_rows > 1 else None
        late = None if late_ms is None else late_ms != WATERMARK_MIN_MS
        if late is None or not late.any() or late.all():
            yield batch
        else:
            yield batch.filter(pa.array(late))
            yield batch.filter(pa.array(~late))

    def _find_ends(self, times_ms: np.ndarray, hashes: np.ndarray, ends_ms: np.ndarray) -> int:
        late = super()._find_ends(times_ms, hashes, ends_ms)
        taken = slice(None) if not late else ends_ms != NOTHING_MS
        groups = weir_keys.key_groups(hashes[taken], len(self.table.places_ms))
        self._is_closed = times_ms[taken] + self._gap_ms < self._told_until(groups)
        self._is_watched = self._completing.is_listed(ends_ms[taken])
        self._is_watched |= self._joining.is_listed(ends_ms[taken])
        return late

    def _note_changed(self, start: int, stop: int, slots: np.ndarray) -> None:
        super()._note_changed(start, stop, slots)
        watched = slots[self._is_watched[start:stop]]
        if len(watched):
            entries = self.table.entries_at(np.unique(watched))
            self._completing.note_entries(entries)
            self._joining.note_entries(entries)
        closed = slots[self._is_closed[start:stop]]
        if len(closed):
            self._changed.append(self.table.entries_at(np.unique(closed)))

    def _told_until(self, groups: np.ndarray) -> np.ndarray:
        """Return the time before which ends of these key groups' sessions have been told; int64."""
        places_ms = self.table.places_ms[groups]
        told: np.ndarray = np.where(places_ms == NOTHING_MS, NOTHING_MS, places_ms + self._lateness_ms)
        return told

    # --- sessions fire ---

    def _fire(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        yield from self._tell_complete(until_ms)
        if until_ms != WATERMARK_MAX_MS:
            until_ms = max(until_ms - self._lateness_ms, WATERMARK_MIN_MS)
            if self._is_changelog:
                yield from self._tell_joined(until_ms - self._gap_ms)
        self._is_silent = True
        yield from super()._fire(until_ms)
        self._is_silent = False

    def _tell_complete(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        """Sessions whose end is before a watermark, and was not before the one of before."""
        table, gap_ms = self.table, self._gap_ms
        table.look()
        fired_ms = table.fired_ms()
        if fired_ms == NEVER_MS:
            # No key group is owned.
            return
        last, due = self._folds.time_cells[1], list[WindowEntries]()

        def may_be_due(cells: np.ndarray, groups: np.ndarray) -> np.ndarray:
            return self._are_due(cells[:, last], groups, until_ms)

        found = self._completing.take(until_ms)
        if found is None:
            after_ms = NOTHING_MS if fired_ms == NOTHING_MS else fired_ms + self._lateness_ms - gap_ms
            stop_ms = NEVER_MS if until_ms == WATERMARK_MAX_MS else until_ms
            found = table.entries(after_ms, stop_ms, chosen=may_be_due)
        for entries in found:
            rows = np.flatnonzero(self._entries.live(entries) & may_be_due(entries.cells, entries.groups))
            if len(rows):
                due.append(entries.part(rows))
        if not due:
            return
        latest = self._entries.without_following(concatenated(due))
        whole = self._entries.gathered(latest) if len(latest) else None
        if whole is not None:
            block = self._sessions(whole)
            are_due = self._are_due(block.lasts_ms, whole.groups[block.an_entry], until_ms)
            yield from self._tell_sessions(block, np.flatnonzero(are_due))

    def _tell_joined(self, gone_ms: int) -> Iterator[pa.RecordBatch]:
        """Open sessions that several results were told of, before the entries that have these become one.

        Args:
            gone_ms: entries whose last row is before this time are about to be put together with others.
        """
        table = self.table
        table.look()
        fired_ms, last = table.fired_ms(), self._folds.time_cells[1]
        if fired_ms == NEVER_MS:
            return
        moving = []

        def may_move(cells: np.ndarray, groups: np.ndarray) -> np.ndarray:
            moves: np.ndarray = cells[:, last] < gone_ms
            return moves

        found = self._joining.take(gone_ms + self._gap_ms)
        if found is None:
            after_ms = NOTHING_MS if fired_ms == NOTHING_MS else fired_ms - self._gap_ms
            found = table.entries(after_ms, gone_ms + self._gap_ms, chosen=may_move)
        for entries in found:
            moves = self._entries.live(entries) & may_move(entries.cells, entries.groups)
            rows = np.flatnonzero(moves & self._told.shows(Cells(entries.cells, entries.presence)))
            if len(rows):
                moving.append(entries.part(rows))
        if not moving:
            return
        shown = concatenated(moving)
        joined = shown.part(np.flatnonzero(self._entries.go_on(shown)))
        whole = self._entries.gathered(joined) if len(joined) else None
        if whole is not None:
            block = self._sessions(whole)
            yield from self._tell_sessions(block, np.flatnonzero(self._results_told(block) > 1))

    def _tell(self, entries: WindowEntries, rewritten: list[WindowEntries]) -> Iterator[pa.RecordBatch]:
        if not self._is_changelog:
            yield from super()._tell(entries, rewritten)
            return
        block = self._sessions(entries)
        changed = yield from self._changes(block, np.arange(len(block.firsts_ms)))
        if changed is not None:
            rewritten.append(changed)

    def _are_due(self, lasts_ms: np.ndarray, groups: np.ndarray, until_ms: int) -> np.ndarray:
        """Which sessions with these last times are complete at a watermark, and have not been told; bool."""
        due: np.ndarray = lasts_ms + self._gap_ms >= self._told_until(groups)
        if until_ms != WATERMARK_MAX_MS:
            due &= lasts_ms + self._gap_ms < until_ms
        return due

    def _tell_again(self, entries: WindowEntries) -> Iterator[pa.RecordBatch]:
        """Tell complete sessions of which all entries are given and late rows have come.

        Of changes also those that are open, and have become one of several that were told.
        """
        block = self._sessions(entries)
        told_until_ms = self._told_until(entries.groups[block.an_entry])
        are_told = block.lasts_ms + self._gap_ms < told_until_ms
        if self._is_changelog:
            are_told |= self._results_told(block) > 1
        yield from self._tell_sessions(block, np.flatnonzero(are_told))

    def _results_told(self, block: Sessions) -> np.ndarray:
        """How many results each session shows; int64."""
        shows = self._told.shows(Cells(block.entries.cells, block.entries.presence)) & (block.number >= 0)
        return np.bincount(block.number[shows], minlength=len(block.firsts_ms))

    def _sessions(self, entries: WindowEntries) -> Sessions:
        groups = entries.groups
        places_ms, by_time = self.table.places_ms[groups], self._entries.by_time(groups)
        block = Sessions(entries, places_ms, self._folds, self._gap_ms, by_time)
        self._parts.fill(self._parts.load(entries), block.number, Cells(block.cells, block.presence))
        return block

    # --- results ---

    def _tell_sessions(self, block: Sessions, rows: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Results of these sessions; notes in their entries that they have been told."""
        if self._is_changelog:
            changed = yield from self._changes(block, rows)
            if changed is not None:
                self._rewrite(changed)
            return
        yield from self._results(block, rows)
        if self._told.is_kept and len(rows):
            told = np.zeros(len(block.firsts_ms) + 1, dtype=np.bool_)
            told[rows] = True
            entries = block.entries.part(np.flatnonzero(told[block.number]))
            self._told.note_told(Cells(entries.cells, entries.presence))
            self._rewrite(entries)

    def _changes(
        self, block: Sessions, rows: np.ndarray
    ) -> Generator[pa.RecordBatch, None, WindowEntries | None]:
        """What becomes of the results of these sessions: what was told of their parts leaves.

        Returns entries as they are after that, which the caller writes; None: nothing has changed.
        """
        rows = rows[self._told.has_more(block.cells[rows])]
        if not len(rows):
            return None
        place = np.full(len(block.firsts_ms) + 1, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        changed = np.flatnonzero(place[block.number] >= 0)
        entries = block.entries.part(changed)
        place = place[block.number[changed]]
        cells, sessions = (
            Cells(entries.cells, entries.presence),
            Cells(block.cells[rows], block.presence[rows]),
        )
        showed = np.flatnonzero(self._told.shows(cells))
        yield from self._changed_results(block, rows, changed[showed], place[showed])
        # The last one stays for as long as any.
        order = np.lexsort((entries.ends_ms, place))
        is_last = np.append(place[order][1:] != place[order][:-1], True)
        self._told.note_session_told(cells, order[is_last], sessions)
        return entries

    def _changed_results(
        self, block: Sessions, rows: np.ndarray, showed: np.ndarray, session_of: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """Rows of changes.

        Args:
            block: all sessions,
            rows: and which of them are told.
            showed: entries that have what was told of parts of these,
            session_of: and the place of each in ``rows``.
        """
        entries, told, gap_ms = block.entries, self._told, self._gap_ms
        before = told.before(Cells(entries.cells[showed], entries.presence[showed]))
        order = np.lexsort((before.integers[:, told.first], session_of))
        before = Cells(before.integers[order], before.presence[order])
        showed, session_of = showed[order], session_of[order]
        # One result is replaced, the others go.
        is_replaced = np.append(session_of[1:] != session_of[:-1], True)[: len(session_of)]
        has_before = np.zeros(len(rows), dtype=np.bool_)
        has_before[session_of] = True
        kinds = np.concatenate([np.where(is_replaced, 1, 0), np.where(has_before, 3, 2)])
        order = np.lexsort((kinds, np.concatenate([session_of, np.arange(len(rows))])))
        cells = np.concatenate([before.integers, block.cells[rows]])[order]
        presence = np.concatenate([before.presence, block.presence[rows]])[order]
        an_entry = np.concatenate([showed, block.an_entry[rows]])[order]
        ends_ms = cells[:, told.last] + gap_ms
        keys = weir_keys.decode_keys(weir_keys.select_keys(entries.keys, an_entry), self._key_types)
        changes = pa.array(_KINDS, pa.string()).take(pa.array(kinds[order]))
        starts_ms = cells[:, told.first].copy()
        yield from self._made(ToldWindows(keys, starts_ms, ends_ms, cells, presence, ends_ms, changes))

    def _rewrite(self, entries: WindowEntries) -> None:
        self.table.put(entries.ends_ms, entries.keys, entries.cells, entries.presence)
        self._closing.note_entries(entries)

    def _made(self, windows: ToldWindows) -> Iterator[pa.RecordBatch]:
        """Yield results; a session that is over was told before."""
        if not self._is_silent:
            yield from super()._made(windows)
