"""The kept rows of some distinct keys of a join, as they are in memory; ``kept_rows`` says what an entry is."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weir.operators.joins import join_kernels as kernels
from weir.operators.joins import row_kernels
from weir.operators.joins.new_rows import NewRows
from weir.operators.joins.row_chunks import Chunks
from weir.state.handles.block import Keys

#: No timer, and the time of what is never complete.
NEVER_MS = kernels.NEVER


class Block:
    """What is kept of some distinct keys, as it is in memory."""

    def __init__(
        self,
        layout: np.ndarray,
        told: int,
        keys: Keys,
        state_keys: list[bytes],
        data: np.ndarray,
        bounds: np.ndarray,
        tails: np.ndarray,
        chunks: Chunks,
    ) -> None:
        #: Of the entries, and what is told of them; as of ``KeptRows``.
        self._layout, self._told = layout, told
        self.keys = keys
        self.state_keys = state_keys
        #: What lies in chunks, and where the rows of each key begin that do not; int64, shape (keys,).
        self.chunks = chunks
        self.tails = tails
        #: Entries, uint8; flags of their rows are changed here.
        self.data = data
        self.bounds = bounds
        #: uint8, shape (keys,): whether flags of a key's rows were.
        self.changed = np.zeros(len(keys), dtype=np.uint8)

    @property
    def user_keys(self) -> list[bytes]:
        """The bytes of the keys."""
        return self.keys.user_keys

    @property
    def rows_max(self) -> int:
        """There are not more rows than this in the block."""
        return len(self.data) // kernels.ROW_BYTES + 1

    def timers(self) -> np.ndarray:
        """The time of each key's timer, int64; ``NEVER_MS`` if there is none."""
        times = np.full(len(self.keys), NEVER_MS, dtype=np.int64)
        present = np.flatnonzero(np.diff(self.bounds) > 0)
        if len(present):
            times[present] = self._numbers(self.bounds[:-1][present], kernels.TIMER_AT)
        return times

    def times(self, starts: np.ndarray) -> np.ndarray:
        """Event times of rows, int64."""
        return self._numbers(starts, kernels.TIME_AT)

    def until(self, side: int, starts: np.ndarray) -> np.ndarray:
        """The last times that belong to rows of a side, int64."""
        return self._numbers(starts, int(self._layout[side, 1]))

    def _numbers(self, starts: np.ndarray, at: int) -> np.ndarray:
        out = np.empty(8 * len(starts), dtype=np.uint8)
        row_kernels.get_fixed(self.data, starts, at, 8, out)
        return out.view(np.int64)

    def rows_of(self, side: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the rows of a side begin, and for each key where its rows end among them; int64."""
        starts = np.empty(self.rows_max, dtype=np.int64)
        stops = np.empty(len(self.keys), dtype=np.int64)
        count = kernels.rows_of_side(self.data, self.bounds, side, starts, stops)
        return starts[:count].copy(), stops

    def unmatched(self, watermark_ms: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of which it is told now that they have not matched: where they begin, and their keys; int64."""
        starts, keys = (np.empty(self.rows_max, dtype=np.int64) for _ in range(2))
        count = kernels.unmatched_rows(
            self.data, self.bounds, self._layout, self._told, watermark_ms, starts, keys
        )
        return starts[:count], keys[:count]

    def drop_old_versions(self, watermark_ms: int) -> None:
        """Let right rows go that are older than the latest one of those that count below a watermark."""
        kernels.drop_old_versions(self.data, self.bounds, self._layout, watermark_ms, self.changed)

    def versions(self, watermark_ms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Left rows below a watermark, each with the latest right row that counts for it.

        Returns:
            Where the left rows begin, where the right ones do (-1: there is none), and positions of the keys; int64, by
            key, then by time.
        """
        lefts, rights, keys = (np.empty(self.rows_max, dtype=np.int64) for _ in range(3))
        count = kernels.versions_of(self.data, self.bounds, self._layout, watermark_ms, lefts, rights, keys)
        lefts, rights, keys = lefts[:count], rights[:count], keys[:count]
        order = np.lexsort((self.times(lefts), keys))
        return lefts[order], rights[order], keys[order]

    def sides(self, starts: np.ndarray) -> np.ndarray:
        """Which side rows are of, 0 or 1."""
        sides: np.ndarray = self.data[starts + kernels.FLAGS_AT] & kernels.SIDE
        return sides

    def match(
        self, new: NewRows, *, is_point: bool, flag: int, pairs_max: int
    ) -> tuple[np.ndarray, Iterator[tuple[np.ndarray, np.ndarray]]]:
        """Find the kept rows of the other side that new rows match.

        Args:
            new: rows of one side.
            is_point: the new rows have intervals, the kept ones times.
            flag: what to set in kept rows that match: ``MATCHED``; ``GONE``: each matches once only; 0: nothing.
            pairs_max: about so many pairs at a time.

        Returns:
            How many each new row matches (with ``GONE`` at most), int64, and pairs: number of the new row, where the
            kept one begins. All pairs are to be taken before the block is written.
        """
        side = 1 - new.side
        starts, stops = self.rows_of(side)
        counts = np.zeros(len(new.keys), dtype=np.int64)
        if len(starts):
            columns = (new.keys, new.times, new.lower, new.until)
            kernels.count_matches(*columns, self.data, self._layout, side, is_point, starts, stops, counts)
        return counts, self._pairs(
            new, starts, stops, counts, is_point=is_point, flag=flag, pairs_max=pairs_max
        )

    def _pairs(
        self,
        new: NewRows,
        starts: np.ndarray,
        stops: np.ndarray,
        counts: np.ndarray,
        *,
        is_point: bool,
        flag: int,
        pairs_max: int,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ends = np.cumsum(counts)
        first = 0
        while first < len(counts):
            done = int(ends[first - 1]) if first else 0
            if int(ends[-1]) == done:
                return
            stop = max(int(np.searchsorted(ends, done + pairs_max, side="right")), first + 1)
            size = int(ends[stop - 1]) - done
            pairs = np.empty((2, size), dtype=np.int64)
            count = kernels.fill_matches(
                first,
                stop,
                *(new.keys, new.times, new.lower, new.until),
                *(self.data, self._layout, 1 - new.side, is_point, starts, stops),
                *(flag, self.changed, pairs),
            )
            first = stop
            for begin in range(0, count, pairs_max):
                end = min(begin + pairs_max, count)
                yield pairs[0, begin:end], pairs[1, begin:end]
