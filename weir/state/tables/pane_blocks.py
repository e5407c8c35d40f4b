"""Whole panes that get no more rows, as arrays: copies of entries that the store has and the slots of a table do not.

A window of many panes would otherwise keep the entries of all of them among the slots, where each one takes three times
the memory and slows down the search for those that get rows.
"""

from __future__ import annotations

import numpy as np

from weir.state.tables.window_entries import NEVER_MS, NOTHING_MS, WindowEntries


class PaneBlocks:
    """Blocks by the end of their pane. Called by ``weir.state.tables.window_table``."""

    def __init__(self) -> None:
        self._blocks: dict[int, WindowEntries] = {}
        #: Bytes of all arrays.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, end_ms: int) -> bool:
        return end_ms in self._blocks

    def first_ms(self) -> int:
        """The smallest end; ``NEVER_MS``: there is no block."""
        return min(self._blocks, default=NEVER_MS)

    def last_ms(self) -> int:
        """The largest end; ``NOTHING_MS``: there is no block."""
        return max(self._blocks, default=NOTHING_MS)

    def put(self, end_ms: int, entries: WindowEntries) -> None:
        """Keep all entries of a pane."""
        self._blocks[end_ms] = entries
        self.bytes += entries.nbytes

    def between(self, after_ms: int, until_ms: int) -> list[WindowEntries]:
        """Blocks of panes with ``after_ms < end <= until_ms``."""
        return [block for end_ms, block in self._blocks.items() if after_ms < end_ms <= until_ms]

    def pop(self, end_ms: int) -> WindowEntries:
        """Take a pane out."""
        block = self._blocks.pop(end_ms)
        self.bytes -= block.nbytes
        return block

    def ends_among(self, ends_ms: np.ndarray) -> list[int]:
        """The ends of blocks that are among these, int64."""
        if not self._blocks or not len(ends_ms) or int(ends_ms.min()) > self.last_ms():
            return []
        return [end_ms for end_ms in np.unique(ends_ms).tolist() if end_ms in self._blocks]

    def ends(self) -> list[int]:
        """The ends of all blocks, the latest first."""
        return sorted(self._blocks, reverse=True)

    def drop(self, until_ms: int) -> None:
        """Forget panes up to this end."""
        for end_ms in self.ends():
            if end_ms <= until_ms:
                self.pop(end_ms)

    def keep_groups(self, owned: np.ndarray) -> None:
        """Forget entries of other key groups than these (bool, by group)."""
        for end_ms in self.ends():
            block = self.pop(end_ms)
            kept = owned[block.groups]
            self.put(end_ms, block if kept.all() else block.part(np.flatnonzero(kept)))
