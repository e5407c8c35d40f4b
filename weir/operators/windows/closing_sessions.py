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
from weir.state.tables.window_table import NOTHING_MS, WindowTable

#: Entries are listed in so many parts where the table is large: they are copied for it.
_PARTS, _LARGE = 16, 1 << 20
#: After a longer silence sessions are put together all at once.
_PANES_MAX = 16


class CompleteSessions(NamedTuple):
    """Sessions that are complete, in no order."""

    keys: weir_keys.KeyColumn
    cells: Cells


class _Listed(NamedTuple):
    """Entries of the pane that ends at ``end_ms``."""

    end_ms: int
    #: Ascending.
    lasts_ms: np.ndarray
    #: Of each of them, its position in ``keys``.
    order: np.ndarray
    keys: weir_keys.KeyColumn


class ClosingSessions:
    """The sessions of one operator."""

    def __init__(self, table: WindowTable, folds: Folds, gap_ms: int) -> None:
        self._table, self._folds, self._gap_ms = table, folds, gap_ms
        self._first, self._last = folds.cell_count - 2, folds.cell_count - 1
        self._ownership = -1
        self._listed: _Listed | None = None
        self._taken = 0
        #: Keys and last times of entries that have changed since they were listed.
        self._changed: list[tuple[np.ndarray, weir_keys.KeyColumn]] = []

    def forget(self) -> None:
        """Entries have changed otherwise."""
        self._listed, self._taken = None, 0
        self._changed.clear()

    @property
    def listed_ms(self) -> int:
        """End of the pane that is listed: changes of it are to be noted; ``NOTHING_MS``: none is."""
        return NOTHING_MS if self._listed is None else self._listed.end_ms

    def note(self, slots: np.ndarray) -> None:
        """The entries at these slots, of the listed pane, have changed."""
        entries = self._table.entries_at(np.unique(slots))
        self._changed.append((entries.cells[:, self._last].copy(), entries.keys))

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
            if self.listed_ms != end_ms:
                self._list(end_ms)
            keys = self._due(gone_ms)
            if len(keys.offsets) > 1:
                yield from self._close_some(end_ms, keys, gone_ms)
            if end_ms <= gone_ms:
                self.forget()

    def due_ms(self, until_ms: int) -> int:
        """No session closes at a watermark before this one, unless rows come."""
        due_ms = -(-until_ms // self._gap_ms) * self._gap_ms + 1
        if self._listed is not None and self._taken < len(self._listed.lasts_ms):
            due_ms = min(due_ms, int(self._listed.lasts_ms[self._taken]) + self._gap_ms + 1)
        for lasts_ms, _ in self._changed:
            due_ms = min(due_ms, int(lasts_ms.min()) + self._gap_ms + 1)
        return due_ms

    def _list(self, end_ms: int) -> None:
        self.forget()
        table = self._table
        parts: list[np.ndarray | None] = [None]
        if table.capacity > _LARGE:
            parts = list(np.array_split(np.arange(len(table.places_ms)), _PARTS))
        lasts, keys = [np.empty(0, dtype=np.int64)], []
        for groups in parts:
            for entries in table.entries(end_ms - 1, end_ms, groups):
                live = np.flatnonzero(self._is_live(entries.presence))
                lasts.append(entries.cells[live, self._last])
                keys.append(weir_keys.select_keys(entries.keys, live))
        lasts_ms = np.concatenate(lasts)
        order = np.argsort(lasts_ms, kind="stable")
        self._listed = _Listed(end_ms, lasts_ms[order], order, weir_keys.joined_keys(keys))

    def _is_live(self, presence: np.ndarray) -> np.ndarray:
        """Which entries are not empty; bool."""
        live: np.ndarray = presence[:, self._last // 8] & (1 << self._last % 8) != 0
        return live

    def _due(self, gone_ms: int) -> weir_keys.KeyColumn:
        """Keys of entries whose last row is before a time, or was when they were listed; none of them twice."""
        assert self._listed is not None
        stop = int(np.searchsorted(self._listed.lasts_ms, gone_ms))
        found = [weir_keys.select_keys(self._listed.keys, self._listed.order[self._taken : stop])]
        self._taken = max(stop, self._taken)
        waiting = []
        for lasts_ms, keys in self._changed:
            is_due = lasts_ms < gone_ms
            found.append(weir_keys.select_keys(keys, np.flatnonzero(is_due)))
            if not is_due.all():
                rest = np.flatnonzero(~is_due)
                waiting.append((lasts_ms[rest], weir_keys.select_keys(keys, rest)))
        self._changed = waiting
        if len(found) == 1:
            return found[0]
        keys = weir_keys.joined_keys(found)
        firsts, _, _ = weir_keys.distinct_keys(weir_keys.hash_keys(keys), keys)
        return weir_keys.select_keys(keys, firsts)

    def _close_some(self, end_ms: int, keys: weir_keys.KeyColumn, gone_ms: int) -> Iterator[CompleteSessions]:
        table, folds = self._table, self._folds
        cells = Cells(*table.peek(end_ms, keys))
        live, lasts_ms = self._is_live(cells.presence), cells.integers[:, self._last]
        later = live & (lasts_ms >= gone_ms)
        if later.any():
            rows = np.flatnonzero(later)
            self._changed.append((lasts_ms[rows], weir_keys.select_keys(keys, rows)))
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
