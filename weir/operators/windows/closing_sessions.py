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

from weir import keys as weir_keys
from weir.operators.aggregation.rows import Cells
from weir.operators.windows.folds import Folds
from weir.state.tables.window_entries import NEVER_MS, NOTHING_MS
from weir.state.tables.window_table import WindowTable

#: Entries are listed in so many parts where the table is large, in the last eighth of the time before it is needed.
_PARTS, _LEAD = 16, 8
#: Slots of a large table.
LARGE_SLOTS = 1 << 20
#: After a longer silence sessions are put together all at once.
_PANES_MAX = 16


class CompleteSessions(NamedTuple):
    """Sessions that are complete, in no order."""

    keys: weir_keys.KeyColumn
    cells: Cells


class _Pane:
    """What is known of the entries of one pane."""

    def __init__(self, end_ms: int, parts: list[np.ndarray | None]) -> None:
        self.end_ms = end_ms
        #: Key groups whose entries are still to be listed; None: those of all.
        self.parts = parts
        #: Last times and keys of entries that were listed, or have changed since.
        self.found: list[tuple[np.ndarray, weir_keys.KeyColumn]] = []
        #: All of them in the order of their last times, of which the first so many were taken.
        self.lasts_ms = self.order = np.empty(0, dtype=np.int64)
        self.keys = weir_keys.joined_keys([])
        self.taken = 0
        self.is_sorted = False

    def sort(self) -> None:
        """Bring what was found in order."""
        self.lasts_ms = np.concatenate([self.lasts_ms, *(lasts_ms for lasts_ms, _ in self.found)])
        self.order = np.argsort(self.lasts_ms, kind="stable")
        self.lasts_ms = self.lasts_ms[self.order]
        self.keys = weir_keys.joined_keys([keys for _, keys in self.found])
        self.found, self.is_sorted = [], True

    def due(self, gone_ms: int) -> weir_keys.KeyColumn:
        """Keys of entries whose last row is before a time, or was when they were found; none of them twice."""
        stop = max(self.taken, int(np.searchsorted(self.lasts_ms, gone_ms)))
        due = [weir_keys.select_keys(self.keys, self.order[self.taken : stop])]
        self.taken = stop
        waiting = []
        for lasts_ms, keys in self.found:
            is_due = lasts_ms < gone_ms
            due.append(weir_keys.select_keys(keys, np.flatnonzero(is_due)))
            rest = np.flatnonzero(~is_due)
            if len(rest):
                waiting.append((lasts_ms[rest], weir_keys.select_keys(keys, rest)))
        self.found = waiting
        keys = weir_keys.joined_keys(due)
        firsts, _, _ = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
        return keys if len(firsts) == len(keys.offsets) - 1 else weir_keys.select_keys(keys, firsts)

    def first_ms(self) -> int:
        """The first last time of those that were not taken; ``NEVER_MS``: all were."""
        firsts = [int(lasts_ms.min()) for lasts_ms, _ in self.found]
        if self.taken < len(self.lasts_ms):
            firsts.append(int(self.lasts_ms[self.taken]))
        return min(firsts, default=NEVER_MS)


class ClosingSessions:
    """The sessions of one operator."""

    def __init__(self, table: WindowTable, folds: Folds, gap_ms: int) -> None:
        self._table, self._folds, self._gap_ms = table, folds, gap_ms
        self._first, self._last = folds.cell_count - 2, folds.cell_count - 1
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
        entries = self._table.entries_at(np.unique(slots))
        for end_ms, pane in self._panes.items():
            rows = np.flatnonzero(entries.ends_ms == end_ms)
            if len(rows):
                lasts_ms = entries.cells[rows, self._last]
                pane.found.append((lasts_ms, weir_keys.select_keys(entries.keys, rows)))

    def applies(self, until_ms: int) -> bool:
        """Whether sessions can be closed up to this watermark one pane after the other."""
        table = self._table
        if table.ownership != self._ownership:
            self.forget()
            self._ownership = table.ownership
        return table.fired_alike and until_ms - self._first_end() <= _PANES_MAX * self._gap_ms

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
            if not pane.is_sorted:
                self._list(pane, len(pane.parts))
                pane.sort()
            keys = pane.due(gone_ms)
            if len(keys.offsets) > 1:
                yield from self._close_some(pane, keys, gone_ms)
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
            self._panes[end_ms] = _Pane(end_ms, parts)
        return self._panes[end_ms]

    def _list(self, pane: _Pane, count: int) -> None:
        """List the entries of the next so many parts of a pane."""
        for _ in range(min(count, len(pane.parts))):
            for entries in self._table.entries(pane.end_ms - 1, pane.end_ms, pane.parts.pop()):
                live = np.flatnonzero(self._is_live(entries.presence))
                lasts_ms = entries.cells[live, self._last]
                pane.found.append((lasts_ms, weir_keys.select_keys(entries.keys, live)))

    def _is_live(self, presence: np.ndarray) -> np.ndarray:
        """Which entries are not empty; bool."""
        live: np.ndarray = presence[:, self._last // 8] & (1 << self._last % 8) != 0
        return live

    def _close_some(self, pane: _Pane, keys: weir_keys.KeyColumn, gone_ms: int) -> Iterator[CompleteSessions]:
        table, folds, end_ms = self._table, self._folds, pane.end_ms
        cells = Cells(*table.peek(end_ms, keys))
        live, lasts_ms = self._is_live(cells.presence), cells.integers[:, self._last]
        later = live & (lasts_ms >= gone_ms)
        if later.any():
            rows = np.flatnonzero(later)
            pane.found.append((lasts_ms[rows], weir_keys.select_keys(keys, rows)))
        rows = np.flatnonzero(live & ~later)
        if not len(rows):
            return
        keys, cells = weir_keys.select_keys(keys, rows), Cells(cells.integers[rows], cells.presence[rows])
        following = Cells(*table.peek(end_ms + self._gap_ms, keys))
        goes_on = self._is_live(following.presence)
        goes_on &= following.integers[:, self._first] - cells.integers[:, self._last] <= self._gap_ms
        if end_ms > gone_ms:
            # The others are dropped with their pane.
            empty = (np.zeros_like(cells.integers), np.zeros_like(cells.presence))
            table.put(np.full(len(rows), end_ms), keys, *empty)
        moved, complete = np.flatnonzero(goes_on), np.flatnonzero(~goes_on)
        if len(moved):
            integers = np.concatenate([cells.integers[moved], following.integers[moved]])
            presence = np.concatenate([cells.presence[moved], following.presence[moved]])
            index = np.tile(np.arange(len(moved), dtype=np.int64), 2)
            whole = folds.merged(index, integers, presence, len(moved))
            ends_ms = np.full(len(moved), end_ms + self._gap_ms)
            table.put(ends_ms, weir_keys.select_keys(keys, moved), *whole)
        if len(complete):
            yield CompleteSessions(
                weir_keys.select_keys(keys, complete),
                Cells(cells.integers[complete], cells.presence[complete]),
            )
