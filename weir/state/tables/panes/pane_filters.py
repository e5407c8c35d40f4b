"""Which entries of a pane the store may have that are not cached: a Bloom filter for each of the latest panes.

Most keys that come into a pane of sessions are new there, and of a session that may be over the next pane mostly has
nothing. The store would say so in 1 to 2 µs, after a look into one filter for each of its runs; this is one look, in
20 ns. Nothing is ever taken out: a filter goes with its pane.
"""

from __future__ import annotations

import numpy as np

from weir.state.tables.panes import window_kernels as kernels

#: Panes that have a filter at a time, those whose entries are evicted first.
_FILTERS_MAX = 4
#: Of a filter, for each slot of the cache. A pane may have several times more entries in the store than the cache has
#: slots: with two times more a look is in vain in about one case of fifty, with three times in one of fifteen.
_SLOT_BITS = 16
_WORD_BITS = 64


class PaneFilters:
    """Filters by the end of their pane. Called by ``weir.state.tables.panes.stored_panes``."""

    def __init__(self) -> None:
        #: None: a pane of which entries were evicted when no further filter was to be had.
        self._filters: dict[int, np.ndarray | None] = {}
        #: Bytes in memory.
        self.nbytes = 0

    def add(self, ends_ms: np.ndarray, hashes: np.ndarray, slots: int) -> None:
        """Note entries that leave a cache of so many slots: their ends (int64) and hashes (uint64)."""
        first_ms = int(ends_ms[0])
        for end_ms in (first_ms,) if (ends_ms == first_ms).all() else np.unique(ends_ms).tolist():
            if end_ms not in self._filters:
                self._filters[end_ms] = self._new(slots)
            words = self._filters[end_ms]
            if words is not None:
                kernels.add_to_filter(np.ascontiguousarray(hashes[ends_ms == end_ms]), words)

    def _new(self, slots: int) -> np.ndarray | None:
        if sum(words is not None for words in self._filters.values()) >= _FILTERS_MAX:
            return None
        # A power of two.
        words = np.zeros(1 << (slots * _SLOT_BITS // _WORD_BITS).bit_length(), dtype=np.uint64)
        self.nbytes += words.nbytes
        return words

    def may_have(self, ends_ms: np.ndarray, hashes: np.ndarray) -> np.ndarray:
        """Which of these entries may have been noted; bool. All those of panes without a filter but with entries."""
        found = np.zeros(len(ends_ms), dtype=np.bool_)
        if not len(ends_ms):
            return found
        first_ms = int(ends_ms[0])
        for end_ms in (first_ms,) if (ends_ms == first_ms).all() else np.unique(ends_ms).tolist():
            if end_ms not in self._filters:
                continue
            rows = np.flatnonzero(ends_ms == end_ms)
            words = self._filters[end_ms]
            if words is None:
                found[rows] = True
            else:
                of_rows = np.empty(len(rows), dtype=np.bool_)
                kernels.are_in_filter(hashes[rows], words, of_rows)
                found[rows] = of_rows
        return found

    def drop(self, until_ms: int) -> None:
        """Forget panes up to this end: none of their entries is asked for any more."""
        for end_ms in [end_ms for end_ms in self._filters if end_ms <= until_ms]:
            words = self._filters.pop(end_ms)
            self.nbytes -= 0 if words is None else words.nbytes
