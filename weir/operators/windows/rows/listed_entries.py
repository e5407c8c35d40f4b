"""The entries of a pane of sessions by their last times: small while they wait, and taken from the front.

A pane may have millions of entries, each of which is needed once, some minutes after all of them were listed. So they
lie in buckets by their last time, each number in as few bytes as those of its part of the pane need: of a count, a
sum, two times and a key of 8 bytes 15 to 20 bytes, a quarter of what they take in the cache. A bucket is brought in
order when the first of it is wanted.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.state.tables.panes.window_entries import NEVER_MS, key_offsets

#: Of a pane, at most, and entries of the first ones added for each: to take a bucket out costs as much as some hundred.
_BUCKETS_MAX, _ENTRIES_WORTH_A_BUCKET = 128, 512
_WIDTHS = (np.uint8, np.uint16, np.uint32)


class ListedRows(NamedTuple):
    """Some entries of one pane."""

    #: int64, shape (entries,).
    lasts_ms: np.ndarray
    keys: weir_keys.KeyColumn
    cells: Cells

    def part(self, rows: np.ndarray) -> ListedRows:
        """Return the rows of these numbers (int64)."""
        cells = Cells(self.cells.integers[rows], self.cells.presence[rows])
        return ListedRows(self.lasts_ms[rows], weir_keys.select_keys(self.keys, rows), cells)


class _Numbers(NamedTuple):
    """Numbers of 64 bits: what each is above the least, or that one alone if all are alike."""

    least: int
    above: np.ndarray | None

    def part(self, start: int, stop: int) -> _Numbers:
        """Copies of some."""
        return self if self.above is None else _Numbers(self.least, self.above[start:stop].copy())

    def all(self, count: int) -> np.ndarray:
        """Return the numbers as they were; int64."""
        if self.above is None:
            return np.full(count, self.least, dtype=np.int64)
        return self.above.astype(np.int64) + self.least


def _narrowed(values: np.ndarray) -> _Numbers:
    """``values``: int64, one at least."""
    least, most = int(values.min()), int(values.max())
    if least == most:
        return _Numbers(least, None)
    for width in _WIDTHS:
        if most - least <= np.iinfo(width).max:
            return _Numbers(least, (values - least).astype(width))
    return _Numbers(0, values)


class _Block(NamedTuple):
    """Entries of one bucket that were added together."""

    rows_count: int
    #: The first of the last times.
    first_ms: int
    lasts_ms: _Numbers
    key_data: np.ndarray
    key_lengths: _Numbers
    cells: tuple[_Numbers, ...]
    presence: tuple[_Numbers, ...]

    def rows(self) -> ListedRows:
        """Return the rows as they were."""
        count = self.rows_count
        cells = np.empty((count, len(self.cells)), dtype=np.int64)
        for number, values in enumerate(self.cells):
            cells[:, number] = values.all(count)
        presence = np.empty((count, len(self.presence)), dtype=np.uint8)
        for number, values in enumerate(self.presence):
            presence[:, number] = values.all(count)
        keys = weir_keys.KeyColumn(self.key_data, key_offsets(self.key_lengths.all(count)))
        return ListedRows(self.lasts_ms.all(count), keys, Cells(cells, presence))


class ListedEntries:
    """Entries of one pane; all are added before the first is taken."""

    def __init__(self, end_ms: int, gap_ms: int) -> None:
        """``end_ms``: of the pane, which is as long as the gap."""
        self._start_ms, self._gap_ms = end_ms - gap_ms, gap_ms
        #: As many as the entries that are added first are worth.
        self._buckets: list[list[_Block]] = []
        #: The first bucket that was not brought in order; what was, and how many of it were taken.
        self._next = 0
        self._sorted: ListedRows | None = None
        self._taken = 0

    def add(self, rows: ListedRows) -> None:
        """List entries, in any order."""
        if not len(rows.lasts_ms):
            return
        if not self._buckets:
            wanted = -(-len(rows.lasts_ms) // _ENTRIES_WORTH_A_BUCKET)
            self._buckets = [[] for _ in range(min(wanted, _BUCKETS_MAX))]
        count = len(self._buckets)
        at = (rows.lasts_ms - self._start_ms) * count // self._gap_ms
        buckets = np.clip(at, 0, count - 1).astype(np.uint8)
        order = np.argsort(buckets, kind="stable")
        lasts_ms, keys, cells = rows.part(order)
        bounds = np.searchsorted(buckets[order], np.arange(count + 1)).tolist()
        narrow_lasts, lengths = _narrowed(lasts_ms), _narrowed(np.diff(keys.offsets).astype(np.int64))
        narrow_cells = [_narrowed(np.ascontiguousarray(column)) for column in cells.integers.T]
        narrow_presence = [_narrowed(column.astype(np.int64)) for column in cells.presence.T]
        for bucket, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start < stop:
                block = _Block(
                    stop - start,
                    int(lasts_ms[start:stop].min()),
                    narrow_lasts.part(start, stop),
                    keys.data[int(keys.offsets[start]) : int(keys.offsets[stop])].copy(),
                    lengths.part(start, stop),
                    tuple(numbers.part(start, stop) for numbers in narrow_cells),
                    tuple(numbers.part(start, stop) for numbers in narrow_presence),
                )
                self._buckets[bucket].append(block)

    def take(self, gone_ms: int) -> list[ListedRows]:
        """Take those whose last time is before this one."""
        found: list[ListedRows] = []
        while True:
            if self._sorted is not None:
                stop = int(np.searchsorted(self._sorted.lasts_ms, gone_ms))
                if stop > self._taken:
                    found.append(self._sorted.part(np.arange(self._taken, stop)))
                    self._taken = stop
                if stop < len(self._sorted.lasts_ms):
                    return found
            if not self._sort_next(gone_ms):
                return found

    def _sort_next(self, gone_ms: int) -> bool:
        """Bring the next bucket in order, if it may have what is before a time; False: there is none."""
        self._sorted = None
        while self._next < len(self._buckets):
            blocks = self._buckets[self._next]
            if blocks:
                if min(block.first_ms for block in blocks) >= gone_ms:
                    return False
                rows = [block.rows() for block in blocks]
                whole = ListedRows(
                    np.concatenate([each.lasts_ms for each in rows]),
                    weir_keys.joined_keys([each.keys for each in rows]),
                    Cells(
                        np.concatenate([each.cells.integers for each in rows]),
                        np.concatenate([each.cells.presence for each in rows]),
                    ),
                )
                self._sorted = whole.part(np.argsort(whole.lasts_ms, kind="stable"))
                self._taken = 0
                self._buckets[self._next] = []
            self._next += 1
            if blocks:
                return True
        return False

    def first_ms(self) -> int:
        """No entry that is left has an earlier last time; ``NEVER_MS``: none is left."""
        if self._sorted is not None and self._taken < len(self._sorted.lasts_ms):
            return int(self._sorted.lasts_ms[self._taken])
        for blocks in self._buckets[self._next :]:
            if blocks:
                return min(block.first_ms for block in blocks)
        return NEVER_MS
