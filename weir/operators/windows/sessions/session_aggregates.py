"""The operator of aggregates in session windows: rows of a key belong together unless a gap is between them.

Rows are kept by pane, a pane as long as the gap: two rows of a key in one pane are always of one session. An entry
knows its first and its last event time. Sessions are put together when a watermark comes, for all keys at once: entries
in the order of their first times, a new session where the gap since the latest time before is exceeded. So a row that
closes the gap between two sessions needs nothing special. Of a session that is still open, panes that are about to be
dropped are merged into its first pane that stays: however long it is, it has a few entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from weir.author.operator import NEVER_US, OperatorContext
from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.told_windows import ToldWindows
from weir.operators.windows.panes.window_aggregates import WindowAggregateOperator
from weir.operators.windows.sessions.closing_sessions import ClosingSessions
from weir.operators.windows.sessions.session_entries import live_entries
from weir.operators.windows.sessions.session_kernels import number_sessions
from weir.rows.records import EVENT_TIME_COLUMN, WATERMARK_MAX_MS, WATERMARK_MIN_MS, int64_column
from weir.rows.row_watermarks import TimeCuts
from weir.rows.side_outputs import SideRows
from weir.specs.windows import WindowAggregate, WindowAggregateSpec
from weir.state.tables.panes import window_kernels as kernels
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries

#: Kept after the aggregates of the step: first and last event time.
_TIMES = (
    WindowAggregate("first", "min", EVENT_TIME_COLUMN),
    WindowAggregate("last", "max", EVENT_TIME_COLUMN),
)


def session_folds(
    aggregates: tuple[WindowAggregate, ...], schema: pa.Schema, own_cells_at: int | None
) -> Folds:
    """Accumulators of sessions: those of the aggregates over columns of ``schema``, first and last event time.

    ``own_cells_at``: so many of the aggregates come before the times; None: all.
    """
    count = len(aggregates)
    at = count if own_cells_at is None else own_cells_at
    order = [*range(at), count, count + 1, *range(at, count)]
    return Folds((*aggregates, *_TIMES), schema.append(pa.field(EVENT_TIME_COLUMN, pa.int64())), order)


class SessionAggregateOperator(WindowAggregateOperator):
    """Aggregates per key and session. A session ends ``gap`` after its last row, and fires at a watermark after that.

    A row exactly a gap after another belongs to the same session, as in Flink and Spark; so the end of a session must
    lie before the watermark, and is the event time of the result. A row is late if a session of it alone is over.
    """

    #: So many of the first cells of an entry that is over stay as they are when other rows come.
    _lasting_cells = 0

    def __init__(self, spec: WindowAggregateSpec) -> None:
        super().__init__(spec)
        self._gap_ms = spec.window.size_ms
        #: No session is due before this watermark.
        self._due_ms = NOTHING_MS
        self._never_late = np.empty(0, dtype=np.int64)
        #: The ownership of key groups at the latest firing.
        self._fired_ownership = -1
        nothing = np.empty(0, dtype=np.int64)
        #: Of the rows that are taken next: which may meet an entry that is over, int64; the places of their groups.
        self._may_be_over, self._their_places_ms = nothing, nothing

    @override
    def open(self, context: OperatorContext) -> None:
        self._never_late = np.full(context.max_parallelism, NOTHING_MS, dtype=np.int64)
        super().open(context)
        # An entry whose last row is more than a gap before its group's place is over, so nothing has to say so.
        self.table.mark_places()
        self._closing = ClosingSessions(self.table, self._folds, self._parts.texts, self._gap_ms)

    def made_due_ms(self, batch: pa.RecordBatch) -> np.ndarray | None:
        """Return the end of a session of each row alone."""
        ends_ms: np.ndarray = int64_column(batch, EVENT_TIME_COLUMN) + (self._gap_ms + self._lateness_ms + 1)
        return ends_ms

    #: A late row may belong to a session that was due before.
    _cuts_when_late = TimeCuts.LATE

    def due_ms(self) -> int:
        """Return the first end of a session."""
        is_new = self.table.has_new_groups or self.table.ownership != self._fired_ownership
        return WATERMARK_MIN_MS if is_new else min(self._due_ms + self._lateness_ms, NEVER_MS)

    def _make_folds(self) -> Folds:
        spec = self._spec
        return session_folds(spec.aggregates, spec.input_schema, spec.own_cells_at)

    # --- rows come in ---

    @override
    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | SideRows]:
        if self._by_clock:
            index = batch.schema.get_field_index(EVENT_TIME_COLUMN)
            field = batch.schema.field(index)
            batch = batch.set_column(index, field, pa.array(self._times(batch)))
        return super().process(batch)

    def _find_ends(self, times_ms: np.ndarray, hashes: np.ndarray, ends_ms: np.ndarray) -> int:
        gap_ms = self._gap_ms
        kernels.pane_ends(times_ms, hashes, gap_ms, 0, 0, gap_ms, 0, self._never_late, ends_ms)
        places_ms = self.table.places_ms
        groups = weir_keys.key_groups(hashes, len(places_ms))
        late = times_ms + gap_ms < places_ms[groups]
        if self._late_ms is not None:
            late |= times_ms + (gap_ms + self._lateness_ms) < self._late_ms
        ends_ms[late] = NOTHING_MS
        #: Of the rows that are taken next, which belong to the pane that is listed; bool.
        self._is_listed = self._closing.is_listed(ends_ms if not late.any() else ends_ms[~late])
        taken = slice(None) if not late.any() else ~late
        groups = groups[taken]
        over = (ends_ms[taken] < places_ms[groups]) & ~self.table.unmarked[groups]
        self._may_be_over = np.flatnonzero(over)
        self._their_places_ms = places_ms[groups[self._may_be_over]]
        if not late.all():
            first_ms = int(times_ms.min() if not late.any() else times_ms[~late].min())
            self._due_ms = min(self._due_ms, first_ms + gap_ms + 1)
        return int(late.sum())

    def _before_taken(self, start: int, stop: int, slots: np.ndarray) -> None:
        first, last = np.searchsorted(self._may_be_over, (start, stop)).tolist()
        if first == last:
            return
        table, cell = self.table, self._folds.time_cells[1]
        slots = slots[self._may_be_over[first:last] - start]
        over = table.cells[slots, cell] < self._their_places_ms[first:last] - self._gap_ms
        # A session is over whose rows lie in the pane; a row that is not late begins another one.
        table.cells[slots[over], self._lasting_cells :] = 0
        table.presence[slots[over]] = 0

    def _minds(self, times_ms: np.ndarray, late_ms: np.ndarray) -> np.ndarray:
        """Which late rows may be near a session that is over or told as of them; bool."""
        before: np.ndarray = times_ms + self._lateness_ms < late_ms
        return before & (late_ms <= times_ms + (self._gap_ms + self._lateness_ms))

    def _note_changed(self, start: int, stop: int, slots: np.ndarray) -> None:
        is_listed = self._is_listed[start:stop]
        if is_listed.any():
            self._closing.note(slots[is_listed])

    # --- sessions fire ---

    @override
    def due_us(self) -> int:
        if not self._by_clock:
            return super().due_us()
        if self.table.has_new_groups:
            return 0
        return NEVER_US if self.table.first_ms() == NEVER_MS else max(self._due_ms, 0) * 1000

    def _fire(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        table = self.table
        if table.has_new_groups or table.ownership != self._fired_ownership:
            self._due_ms = NOTHING_MS
            self._fired_ownership = table.ownership
        if table.first_ms() == NEVER_MS or self._due_ms > until_ms:
            if until_ms != WATERMARK_MAX_MS:
                table.advance(until_ms)
                self._parts.advance(until_ms)
            return
        if until_ms == WATERMARK_MAX_MS or self._parts or not self._closing.applies(until_ms):
            self._closing.forget()
            yield from self._fire_all(until_ms)
            return
        closed = list(self._closing.close(until_ms))
        table.drop(until_ms - self._gap_ms)
        self._due_ms = self._closing.due_ms(until_ms)
        # Before a result leaves: what has moved on counts twice until the place says so, and a question may come.
        table.advance(until_ms)
        for complete in closed:
            columns = weir_keys.decode_keys(complete.keys, self._key_types)
            times_ms = complete.cells.integers[:, self._folds.time_cells]
            ends_ms = times_ms[:, 1] + self._gap_ms
            starts_ms = times_ms[:, 0].copy()
            yield from self._made(ToldWindows(columns, starts_ms, ends_ms, *complete.cells, ends_ms))
        # Results have been told of them.
        self._parts.drop(until_ms - self._gap_ms)
        self._parts.advance(until_ms)

    def _fire_all(self, until_ms: int) -> Iterator[pa.RecordBatch]:
        """Put all sessions together that begin before a watermark, and fire those that are complete."""
        table, gap_ms = self.table, self._gap_ms
        is_end = until_ms == WATERMARK_MAX_MS
        due_ms, last_ms = NEVER_MS, NOTHING_MS
        gone_ms = until_ms if is_end else until_ms - gap_ms
        rewritten = []
        for entries in table.entries(NOTHING_MS, NEVER_MS if is_end else until_ms + gap_ms):
            by_time = ~table.unmarked[entries.groups]
            block = Sessions(entries, table.places_ms[entries.groups], self._folds, gap_ms, by_time)
            if not len(block.firsts_ms):
                continue
            parts = self._parts.load(entries)
            self._parts.fill(parts, block.number, Cells(block.cells, block.presence))
            complete = block.lasts_ms < gone_ms
            last_ms = max(last_ms, int(entries.ends_ms.max()))
            if not complete.all():
                due_ms = min(due_ms, int(block.lasts_ms[~complete].min()) + gap_ms + 1)
            if not is_end:
                change = block.change(complete, gone_ms, empties=bool(self._parts))
                self._parts.fill(parts, change.index, Cells(change.cells, change.presence))
                self._parts.move(parts, change.index, entries.ends_ms[change.targets], change.is_emptied)
                kept = weir_keys.select_keys(entries.keys, change.targets)
                moved = entries.ends_ms[change.targets], weir_keys.hash_keys(kept), kept
                self._parts.texts.move(moved, Cells(change.cells, change.presence))
                rewritten.append(change.entries(entries))
            yield from self._results(block, np.flatnonzero(complete))
        for ends_ms, keys, cells, presence in rewritten:
            table.put(ends_ms, keys, cells, presence)
        table.drop(gone_ms)
        self._parts.drop(gone_ms)
        self._due_ms = due_ms
        # Rows beyond the watermark were not looked at.
        if table.first_ms() != NEVER_MS:
            self._due_ms = min(due_ms, until_ms + 1)
        if is_end:
            # Further than all panes that were dropped, which the store may still have.
            until_ms = last_ms + gap_ms if last_ms != NOTHING_MS else NOTHING_MS
        table.advance(until_ms)
        self._parts.advance(until_ms)

    def _results(self, block: Sessions, sessions: np.ndarray) -> Iterator[pa.RecordBatch]:
        columns = weir_keys.decode_keys(
            weir_keys.select_keys(block.entries.keys, block.an_entry[sessions]), self._key_types
        )
        starts_ms, ends_ms = block.firsts_ms[sessions], block.lasts_ms[sessions] + self._gap_ms
        cells, presence = block.cells[sessions], block.presence[sessions]
        yield from self._made(ToldWindows(columns, starts_ms, ends_ms, cells, presence, ends_ms))


@dataclass(frozen=True)
class _Change:
    """How entries change of which some are dropped."""

    #: By entry, bool: it stays, without anything in it.
    is_emptied: np.ndarray
    #: Entries that take others in; int64.
    targets: np.ndarray
    #: By entry: into which of the targets it goes, its position among them; -1: into none.
    index: np.ndarray
    #: Of targets.
    cells: np.ndarray
    presence: np.ndarray

    def entries(
        self, entries: WindowEntries
    ) -> tuple[np.ndarray, weir_keys.KeyColumn, np.ndarray, np.ndarray]:
        """Ends, keys, cells and presence of the entries that change."""
        emptied = np.flatnonzero(self.is_emptied)
        rows = np.concatenate([emptied, self.targets])
        return (
            entries.ends_ms[rows],
            weir_keys.select_keys(entries.keys, rows),
            np.concatenate([np.zeros((len(emptied), self.cells.shape[1]), dtype=np.int64), self.cells]),
            np.concatenate([np.zeros((len(emptied), self.presence.shape[1]), dtype=np.uint8), self.presence]),
        )


class Sessions:
    """The sessions of some entries, which are all that their keys have."""

    def __init__(
        self,
        entries: WindowEntries,
        places_ms: np.ndarray,
        folds: Folds,
        gap_ms: int,
        by_time: np.ndarray,
    ) -> None:
        """Put sessions together.

        Args:
            entries: all that their keys have.
            places_ms: of the entries' groups.
            folds: what entries keep.
            gap_ms: between sessions.
            by_time: by entry, bool: it is over if its last row is more than a gap before its place.
        """
        first, last = folds.time_cells
        self._folds = folds
        chosen = np.flatnonzero(live_entries(entries, last, places_ms, gap_ms, by_time))
        self.entries = entries
        keys = weir_keys.select_keys(entries.keys, chosen)
        _, _, position = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
        order = chosen[np.lexsort((entries.cells[chosen, first], position))]
        key_of = np.full(len(entries), -1, dtype=np.int64)
        key_of[chosen] = position
        #: By entry: the number of its session; -1: none.
        self.number = np.full(len(entries), -1, dtype=np.int64)
        count = number_sessions(
            order, key_of, entries.cells[:, first].copy(), entries.cells[:, last].copy(), gap_ms, self.number
        )
        #: By session.
        self.cells, self.presence = folds.merged(self.number, entries.cells, entries.presence, count)
        self._last = last
        self.firsts_ms, self.lasts_ms = self.cells[:, first].copy(), self.cells[:, last].copy()
        self.an_entry = np.zeros(count, dtype=np.int64)
        self.an_entry[self.number[chosen]] = chosen

    def change(self, complete: np.ndarray, gone_ms: int, *, empties: bool) -> _Change:
        """Find entries that change, because those up to ``gone_ms`` are dropped, and others are over by their last row.

        Args:
            complete: by session: it fires.
            gone_ms: the last pane that is dropped; entries whose last row is before are over.
            empties: entries that are over while their pane stays become empty: no time says so of parts.
        """
        entries, number = self.entries, self.number
        stays = (number >= 0) & (entries.ends_ms > gone_ms)
        is_over = entries.cells[:, self._last] < gone_ms
        is_emptied = stays & is_over & empties
        stays &= ~is_over
        # Into the first entry of an open session that stays go those that do not.
        target = np.full(len(self.firsts_ms), -1, dtype=np.int64)
        staying = np.flatnonzero(stays & ~complete[number])
        staying = staying[np.argsort(-entries.ends_ms[staying], kind="stable")]
        target[number[staying]] = staying
        loses = np.zeros(len(self.firsts_ms), dtype=np.bool_)
        loses[number[(number >= 0) & ~stays]] = True
        grown = np.flatnonzero(loses & ~complete)
        index = np.full(len(entries), -1, dtype=np.int64)
        place = np.full(len(self.firsts_ms), -1, dtype=np.int64)
        place[grown] = np.arange(len(grown))
        merges = (number >= 0) & ~stays
        index[merges] = place[number[merges]]
        index[target[grown]] = place[grown]
        cells, presence = self._folds.merged(index, entries.cells, entries.presence, len(grown))
        return _Change(is_emptied, target[grown], index, cells, presence)


assert WATERMARK_MIN_MS == NOTHING_MS
