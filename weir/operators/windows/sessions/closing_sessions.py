"""Which sessions can close at a watermark: an index of the one pane in which the last row of such a session lies.

A session closes at a watermark ``w`` when its last row is before ``w - gap``. Panes are as long as the gap, so that row
lies in the pane that has ``w - gap`` in it: all earlier panes are gone. The entries of this pane are listed once, in
the order of their last times, and a watermark takes those from the front that are due. What becomes of one depends on
two entries, it and that of its key in the next pane: either the session goes on there, and is moved there, or it is
complete. Rows that come into the pane after it was listed are noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.window_texts import WindowTexts
from weir.operators.windows.rows.listed_entries import ListedEntries, ListedRows
from weir.state.tables.panes.window_entries import NEVER_MS, NOTHING_MS, WindowEntries, concatenated
from weir.state.tables.panes.window_table import WindowTable

#: Entries are listed in so many parts where the table is large, in the last eighth of the time before it is needed.
_PARTS, _LEAD = 16, 8
#: Slots of a large table.
LARGE_SLOTS = 1 << 20
#: By which changed entries are told from others: of those that lie alike, a few are looked up in vain.
_CHANGED_BITS = 1 << 22
_CHANGED_MASK = np.uint64(_CHANGED_BITS - 1)
#: After a longer silence sessions are put together all at once.
_PANES_MAX = 16


class CompleteSessions(NamedTuple):
    """Sessions that are complete, in no order."""

    keys: weir_keys.KeyColumn
    cells: Cells


class _Found:
    """Keys of entries that were found together, by the last times that these had, which are taken from the front."""

    def __init__(self, lasts_ms: np.ndarray, keys: weir_keys.KeyColumn) -> None:
        order = np.argsort(lasts_ms, kind="stable")
        self._lasts_ms, self._keys = lasts_ms[order], weir_keys.select_keys(keys, order)
        self._taken = 0

    def take(self, gone_ms: int) -> weir_keys.KeyColumn | None:
        """Keys of those whose last time is before this one; None: there are none."""
        start, stop = self._taken, int(np.searchsorted(self._lasts_ms, gone_ms))
        if stop <= start:
            return None
        self._taken = stop
        return weir_keys.select_keys(self._keys, np.arange(start, stop))

    def first_ms(self) -> int:
        """The first last time that is left; ``NEVER_MS``: none is."""
        return int(self._lasts_ms[self._taken]) if self._taken < len(self._lasts_ms) else NEVER_MS


class _Pane:
    """What is known of the entries of one pane."""

    def __init__(
        self, end_ms: int, gap_ms: int, parts: list[np.ndarray | None], max_parallelism: int
    ) -> None:
        self.end_ms = end_ms
        #: Key groups whose entries are still to be listed; None: those of all.
        self.parts = parts
        #: By key group, bool: its entries have been listed.
        self.is_listed = np.zeros(max_parallelism, dtype=np.bool_)
        self.listed = ListedEntries(end_ms, gap_ms)
        #: Entries that have changed since they were listed.
        self._found: list[_Found] = []
        #: True at the lower bits of the hash of a key whose entry has changed since; None: none has.
        self._changed: np.ndarray | None = None

    def note_found(self, lasts_ms: np.ndarray, keys: weir_keys.KeyColumn) -> None:
        """Note that these entries have changed, and have these last times now."""
        self._found.append(_Found(lasts_ms, keys))

    def note_changed(self, hashes: np.ndarray) -> None:
        """What was listed of these keys is not what the table has, maybe."""
        if self._changed is None:
            self._changed = np.zeros(_CHANGED_BITS, dtype=np.bool_)
        self._changed[hashes & _CHANGED_MASK] = True

    def may_have_changed(self, hashes: np.ndarray) -> np.ndarray:
        """Return which of these keys the table has to be asked for; bool."""
        if self._changed is None:
            return np.zeros(len(hashes), dtype=np.bool_)
        changed: np.ndarray = self._changed[hashes & _CHANGED_MASK]
        return changed

    def found_due(self, gone_ms: int) -> list[weir_keys.KeyColumn]:
        """Keys of changed entries whose last row is before a time, or was when they were found."""
        due = [keys for found in self._found if (keys := found.take(gone_ms)) is not None]
        self._found = [found for found in self._found if found.first_ms() != NEVER_MS]
        return due

    def first_ms(self) -> int:
        """The first last time of those that were not taken; ``NEVER_MS``: all were."""
        return min([self.listed.first_ms(), *(found.first_ms() for found in self._found)])


class ClosingSessions:
    """The sessions of one operator."""

    def __init__(self, table: WindowTable, folds: Folds, texts: WindowTexts, gap_ms: int) -> None:
        self._table, self._folds, self._texts, self._gap_ms = table, folds, texts, gap_ms
        self._first, self._last = folds.time_cells
        self._ownership = -1
        #: By end: the pane in which sessions close, and the next one when it is listed ahead.
        self._panes: dict[int, _Pane] = {}

    def forget(self) -> None:
        """Entries have changed otherwise."""
        self._panes.clear()

    def is_listed(self, ends_ms: np.ndarray) -> np.ndarray:
        """Which panes are listed, so that changes of them are to be noted; bool."""
        found = np.zeros(len(ends_ms), dtype=np.bool_)
        for end_ms in self._panes:
            found |= ends_ms == end_ms
        return found

    def note(self, slots: np.ndarray) -> None:
        """The entries at these slots, of listed panes, have changed."""
        self.note_entries(self._table.entries_at(np.unique(slots)))

    def note_entries(self, entries: WindowEntries) -> None:
        """Note that these entries have changed, some of them perhaps of listed panes."""
        for end_ms, pane in self._panes.items():
            rows = np.flatnonzero((entries.ends_ms == end_ms) & pane.is_listed[entries.groups])
            if len(rows):
                keys = weir_keys.select_keys(entries.keys, rows)
                pane.note_found(entries.cells[rows, self._last], keys)
                pane.note_changed(weir_keys.hash_keys(keys))

    def applies(self, until_ms: int) -> bool:
        """Return whether sessions can be closed up to this watermark one pane after the other."""
        table = self._table
        if table.ownership != self._ownership:
            self.forget()
            self._ownership = table.ownership
        return (
            table.fired_alike
            and not table.unmarked.any()
            and until_ms - self._first_end() <= _PANES_MAX * self._gap_ms
        )

    def _first_end(self) -> int:
        """End of the first pane that is not gone."""
        first_ms, fired_ms = self._table.first_ms(), self._table.fired_ms()
        if fired_ms != NOTHING_MS:
            first_ms = max(first_ms, fired_ms - self._gap_ms + 1)
        return -(-first_ms // self._gap_ms) * self._gap_ms

    def close(self, until_ms: int) -> Iterator[CompleteSessions]:
        """Sessions whose end is before a watermark, which leave their entries."""
        gone_ms = until_ms - self._gap_ms
        for end_ms in range(self._first_end(), until_ms, self._gap_ms):
            pane = self._pane(end_ms)
            self._list(pane, len(pane.parts))
            yield from self._close_some(pane, gone_ms)
            if end_ms <= gone_ms:
                del self._panes[end_ms]
        self._list_ahead(until_ms)

    def _list_ahead(self, until_ms: int) -> None:
        """List some of the next pane, so that not all of it has to be listed at one watermark."""
        lead_ms = self._gap_ms // _LEAD
        end_ms = -(-until_ms // self._gap_ms) * self._gap_ms
        if self._table.capacity > LARGE_SLOTS and until_ms > end_ms - lead_ms:
            pane = self._pane(end_ms)
            done = int((until_ms - end_ms + lead_ms) / lead_ms * _PARTS)
            self._list(pane, done - (_PARTS - len(pane.parts)))

    def due_ms(self, until_ms: int) -> int:
        """No session closes at a watermark before this one, unless rows come."""
        due_ms = -(-until_ms // self._gap_ms) * self._gap_ms + 1
        firsts = [pane.first_ms() for pane in self._panes.values()]
        return min([due_ms, *(first_ms + self._gap_ms + 1 for first_ms in firsts if first_ms != NEVER_MS)])

    def _pane(self, end_ms: int) -> _Pane:
        if end_ms not in self._panes:
            parts: list[np.ndarray | None] = [None]
            if self._table.capacity > LARGE_SLOTS:
                parts = list(np.array_split(np.arange(len(self._table.places_ms)), _PARTS))
            self._panes[end_ms] = _Pane(end_ms, self._gap_ms, parts, len(self._table.places_ms))
        return self._panes[end_ms]

    def _list(self, pane: _Pane, count: int) -> None:
        """List the entries of the next so many parts of a pane."""
        for _ in range(min(count, len(pane.parts))):
            groups = pane.parts.pop()
            blocks = list(self._table.entries(pane.end_ms - 1, pane.end_ms, groups))
            pane.is_listed[slice(None) if groups is None else groups] = True
            if blocks:
                entries = concatenated(blocks)
                live = np.flatnonzero(self._is_live(Cells(entries.cells, entries.presence)))
                cells = Cells(entries.cells[live], entries.presence[live])
                keys = weir_keys.select_keys(entries.keys, live)
                pane.listed.add(ListedRows(cells.integers[:, self._last], keys, cells))

    def _is_live(self, cells: Cells) -> np.ndarray:
        """Which entries are neither empty nor over; bool."""
        live: np.ndarray = cells.presence[:, self._last // 8] & (1 << self._last % 8) != 0
        fired_ms = self._table.fired_ms()
        if fired_ms != NOTHING_MS:
            live &= cells.integers[:, self._last] >= fired_ms - self._gap_ms
        return live

    def _close_some(self, pane: _Pane, gone_ms: int) -> Iterator[CompleteSessions]:
        """Sessions that are complete of those whose last row lies in a pane, before a time."""
        table, folds, end_ms = self._table, self._folds, pane.end_ms
        due = self._due(pane, gone_ms)
        if not len(due.keys):
            return
        keys, cells = due
        hashes = weir_keys.hash_keys(keys)
        following = Cells(*table.peek(end_ms + self._gap_ms, keys, hashes))
        goes_on = self._is_live(following)
        goes_on &= following.integers[:, self._first] - cells.integers[:, self._last] <= self._gap_ms
        moved, complete = np.flatnonzero(goes_on), np.flatnonzero(~goes_on)
        if len(moved):
            integers = np.concatenate([cells.integers[moved], following.integers[moved]])
            presence = np.concatenate([cells.presence[moved], following.presence[moved]])
            index = np.tile(np.arange(len(moved), dtype=np.int64), 2)
            whole = folds.merged(index, integers, presence, len(moved))
            ends_ms = np.full(len(moved), end_ms + self._gap_ms)
            moved_keys = weir_keys.select_keys(keys, moved)
            self._texts.move((ends_ms, hashes[moved], moved_keys), whole)
            table.put(ends_ms, moved_keys, *whole, hashes[moved])
            if end_ms + self._gap_ms in self._panes:
                self._panes[end_ms + self._gap_ms].note_changed(hashes[moved])
        if len(complete):
            yield CompleteSessions(
                weir_keys.select_keys(keys, complete),
                Cells(cells.integers[complete], cells.presence[complete]),
            )

    def _due(self, pane: _Pane, gone_ms: int) -> CompleteSessions:
        """Entries of a pane whose last row is before a time, none of them twice."""
        wanted = pane.found_due(gone_ms)
        due = []
        for rows in pane.listed.take(gone_ms):
            changed = pane.may_have_changed(weir_keys.hash_keys(rows.keys))
            if changed.any():
                wanted.append(weir_keys.select_keys(rows.keys, np.flatnonzero(changed)))
                rows = rows.part(np.flatnonzero(~changed))
            due.append(rows)
        if wanted:
            due.append(self._looked_up(pane, weir_keys.joined_keys(wanted), gone_ms))
        if len(due) == 1:
            return CompleteSessions(due[0].keys, due[0].cells)
        keys = weir_keys.joined_keys([rows.keys for rows in due])
        count, presence_bytes = self._folds.cell_count, self._table.presence.shape[1]
        integers = [np.empty((0, count), dtype=np.int64), *(rows.cells.integers for rows in due)]
        presence = [np.empty((0, presence_bytes), dtype=np.uint8), *(rows.cells.presence for rows in due)]
        return CompleteSessions(keys, Cells(np.concatenate(integers), np.concatenate(presence)))

    def _looked_up(self, pane: _Pane, keys: weir_keys.KeyColumn, gone_ms: int) -> ListedRows:
        """What the table has of some keys in a pane, if its last row is before a time; the others wait."""
        firsts, _, _ = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
        keys = weir_keys.select_keys(keys, firsts)
        cells = Cells(*self._table.peek(pane.end_ms, keys))
        lasts_ms = cells.integers[:, self._last]
        live = self._is_live(cells)
        later = np.flatnonzero(live & (lasts_ms >= gone_ms))
        if len(later):
            pane.note_found(lasts_ms[later], weir_keys.select_keys(keys, later))
        return ListedRows(lasts_ms, keys, cells).part(np.flatnonzero(live & (lasts_ms < gone_ms)))
