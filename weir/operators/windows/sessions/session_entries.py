"""Entries of whole sessions: from some of them, pane by pane, to those before and after of the same session."""

from __future__ import annotations

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.windows.sessions.session_kernels import number_sessions
from weir.state.tables.panes.window_entries import NOTHING_MS, WindowEntries, concatenated
from weir.state.tables.panes.window_table import WindowTable

#: So many panes before and after those given are read at once, if that is no more than so many entries.
_PANES_AROUND, _NEAR_MAX = 16, 4_096


class SessionEntries:
    """Finds them in the table of one operator."""

    def __init__(self, table: WindowTable, time_cells: tuple[int, int], gap_ms: int) -> None:
        """Make the entries of one operator.

        Args:
            table: has the entries.
            time_cells: of the first and the last time of an entry.
            gap_ms: between sessions.
        """
        self._table, self._gap_ms = table, gap_ms
        self._first, self._last = time_cells

    def by_time(self, groups: np.ndarray) -> np.ndarray:
        """Return which groups' entries may be over by their time alone; bool."""
        by_time: np.ndarray = ~self._table.unmarked[groups]
        return by_time

    def live(self, entries: WindowEntries) -> np.ndarray:
        """Which entries are neither empty nor over; bool."""
        places_ms = self._table.places_ms[entries.groups]
        return live_entries(entries, self._last, places_ms, self._gap_ms, self.by_time(entries.groups))

    def without_following(self, entries: WindowEntries) -> WindowEntries:
        """Return the entries whose session does not go on in the next pane."""
        return entries.part(np.flatnonzero(~self.go_on(entries)))

    def go_on(self, entries: WindowEntries) -> np.ndarray:
        """Return of which entries the session goes on in the next pane; bool."""
        goes_on = np.zeros(len(entries), dtype=np.bool_)
        for end_ms in np.unique(entries.ends_ms).tolist():
            rows = np.flatnonzero(entries.ends_ms == end_ms)
            following = self._peek(end_ms + self._gap_ms, weir_keys.select_keys(entries.keys, rows))
            near = following.cells[:, self._first] - entries.cells[rows, self._last] <= self._gap_ms
            goes_on[rows] = self.live(following) & near
        return goes_on

    def gathered(self, entries: WindowEntries) -> WindowEntries | None:
        """Return all entries of the sessions that have these (one at least); None: none of them is live."""
        firsts, _, position = weir_keys.distinct_keys(weir_keys.hash_keys(entries.keys), entries.keys)
        keys = weir_keys.select_keys(entries.keys, firsts)
        near = self._near(entries, keys, position)
        if near is not None:
            return near if len(near) else None
        given: dict[int, np.ndarray] = {}
        for end_ms in np.unique(entries.ends_ms).tolist():
            given[end_ms] = np.zeros(len(keys), dtype=np.bool_)
            given[end_ms][position[entries.ends_ms == end_ms]] = True
        found: dict[int, np.ndarray] = {}
        parts = [
            part for forward in (False, True) for part in self._walked(keys, given, found, forward=forward)
        ]
        return concatenated(parts) if parts else None

    def _near(
        self, entries: WindowEntries, keys: weir_keys.KeyColumn, position: np.ndarray
    ) -> WindowEntries | None:
        """Gather entries in one read of all panes around; None: there are too many, or a session goes beyond."""
        gap_ms, count = self._gap_ms, len(keys)
        start_ms = int(entries.ends_ms.min()) - _PANES_AROUND * gap_ms
        panes = (int(entries.ends_ms.max()) - start_ms) // gap_ms + 1 + _PANES_AROUND
        if panes * count > _NEAR_MAX:
            return None
        key_of = np.tile(np.arange(count), panes)
        pane_of = np.repeat(np.arange(panes), count)
        found = self._peek(start_ms + pane_of * gap_ms, weir_keys.select_keys(keys, key_of))
        rows = np.flatnonzero(self.live(found))
        firsts_ms, lasts_ms = (found.cells[:, cell].copy() for cell in (self._first, self._last))
        order = rows[np.lexsort((firsts_ms[rows], key_of[rows]))]
        number = np.full(len(found), -1, dtype=np.int64)
        sessions = number_sessions(order, key_of, firsts_ms, lasts_ms, gap_ms, number)
        is_given, is_further = np.zeros(sessions + 1, dtype=np.bool_), np.zeros(sessions + 1, dtype=np.bool_)
        is_given[number[(entries.ends_ms - start_ms) // gap_ms * count + position]] = True
        is_further[number[(pane_of == 0) | (pane_of == panes - 1)]] = True
        is_given[-1] = False
        if (is_given & is_further).any():
            return None
        return found.part(np.flatnonzero(is_given[number]))

    def _walked(
        self,
        keys: weir_keys.KeyColumn,
        given: dict[int, np.ndarray],
        found: dict[int, np.ndarray],
        *,
        forward: bool,
    ) -> list[WindowEntries]:
        """Entries that are met on the way from those given, in one direction; adds them to ``found``, by end."""
        step_ms = self._gap_ms if forward else -self._gap_ms
        waiting = sorted(given, reverse=forward)
        chained, edge_ms = np.zeros(len(keys), dtype=np.bool_), np.zeros(len(keys), dtype=np.int64)
        parts, end_ms = [], waiting[-1]
        while waiting or chained.any():
            if not chained.any():
                end_ms = waiting[-1]
            is_given = np.zeros(len(keys), dtype=np.bool_)
            if waiting and waiting[-1] == end_ms:
                is_given = given[waiting.pop()]
            rows = np.flatnonzero(chained | is_given)
            block = self._peek(end_ms, weir_keys.select_keys(keys, rows))
            firsts_ms, lasts_ms = block.cells[:, self._first], block.cells[:, self._last]
            reached = firsts_ms - edge_ms[rows] if forward else edge_ms[rows] - lasts_ms
            connected = chained[rows] & (reached <= self._gap_ms)
            taken = self.live(block) & (connected | is_given[rows])
            outer_ms = lasts_ms if forward else firsts_ms
            further_ms = (np.maximum if forward else np.minimum)(outer_ms, edge_ms[rows])
            edge_ms[rows] = np.where(connected, further_ms, outer_ms)
            chained[:] = False
            chained[rows[taken]] = True
            known = found.setdefault(end_ms, np.zeros(len(keys), dtype=np.bool_))
            new = taken & ~known[rows]
            if new.any():
                parts.append(block.part(np.flatnonzero(new)))
                known[rows[new]] = True
            end_ms += step_ms
        return parts

    def _peek(self, end_ms: int | np.ndarray, keys: weir_keys.KeyColumn) -> WindowEntries:
        hashes = weir_keys.hash_keys(keys)
        groups = weir_keys.key_groups(hashes, len(self._table.places_ms))
        ends_ms = np.full(len(keys), end_ms, dtype=np.int64)
        return WindowEntries(ends_ms, keys, groups, *self._table.peek(ends_ms, keys, hashes))


def live_entries(
    entries: WindowEntries, last: int, places_ms: np.ndarray, gap_ms: int, by_time: np.ndarray
) -> np.ndarray:
    """Which entries are neither emptied, nor over, nor of panes that a former owner has dropped; bool.

    Args:
        entries: of sessions.
        last: the cell of their last time.
        places_ms: of the entries' groups.
        gap_ms: between sessions.
        by_time: by entry, bool: it is over if its last row is more than a gap before its place.
    """
    live: np.ndarray = entries.presence[:, last // 8] & (1 << last % 8) != 0
    open_ms = np.maximum(places_ms, -(2**62)) - gap_ms
    has_none = places_ms == NOTHING_MS
    live &= has_none | (entries.ends_ms > open_ms)
    live &= has_none | ~by_time | (entries.cells[:, last] >= open_ms)
    return live
