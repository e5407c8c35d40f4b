"""Entries of sessions whose last row a watermark has passed by a gap, each taken once, without a look at all others.

Where sessions are told more than once, their entries stay after they were told. Who tells looks at those that have
become due since the watermark before; the index of closing sessions finds them, at a watermark of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.window_texts import WindowTexts
from weir.operators.windows.sessions.closing_sessions import ClosingSessions
from weir.state.tables.panes.window_entries import NOTHING_MS, WindowEntries
from weir.state.tables.panes.window_table import WindowTable


class DueSessions(ClosingSessions):
    """Which entries to look at; some of them may have been taken before, when key groups have come."""

    def __init__(
        self, table: WindowTable, folds: Folds, texts: WindowTexts, gap_ms: int, ahead_ms: int
    ) -> None:
        """``ahead_ms``: its watermark is so far ahead of the one that the table goes by."""
        super().__init__(table, folds, texts, gap_ms)
        self._ahead_ms = ahead_ms

    def take(self, until_ms: int) -> Iterator[WindowEntries] | None:
        """Entries as they are in the table, whose last row is more than a gap before a watermark.

        Returns None if all entries have to be looked at: key groups have fired up to different times, or time has
        made a leap.
        """
        if not self.applies(until_ms):
            self.forget()
            return None
        return self._take(until_ms)

    def _take(self, until_ms: int) -> Iterator[WindowEntries]:
        gone_ms = until_ms - self._gap_ms
        for end_ms in range(self._first_end(), until_ms, self._gap_ms):
            pane = self._pane(end_ms)
            self._list(pane, len(pane.parts))
            keys = self._due(pane, gone_ms).keys
            if len(keys):
                # What was listed says when an entry is due; since then it may have been told.
                hashes = weir_keys.hash_keys(keys)
                groups = weir_keys.key_groups(hashes, len(self._table.places_ms))
                ends_ms = np.full(len(keys), end_ms, dtype=np.int64)
                yield WindowEntries(ends_ms, keys, groups, *self._table.peek(end_ms, keys, hashes))
            if end_ms <= gone_ms:
                del self._panes[end_ms]
        self._list_ahead(until_ms)

    def _first_end(self) -> int:
        """End of the first pane of which not all entries have been due."""
        first_ms, fired_ms = self._table.first_ms(), self._table.fired_ms()
        if fired_ms != NOTHING_MS:
            first_ms = max(first_ms, fired_ms + self._ahead_ms - self._gap_ms + 1)
        return -(-first_ms // self._gap_ms) * self._gap_ms
