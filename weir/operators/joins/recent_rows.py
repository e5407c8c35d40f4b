"""Rows of a join that can soon match no more: they are held in memory, by key, and most never see a store.

To keep a row in a store, look it up and drop it, with a timer, costs microseconds, to hold it in arrays a tenth. Where
event time goes much faster than the clock (a stream is caught up with), or rows are kept for milliseconds, most are
complete before the next checkpoint. Those are held here. Before a checkpoint, and before key groups leave, what is left
is written to the store (``JoinOperator.settle``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weir import key_kernels
from weir import keys as weir_keys
from weir.clock import Clock
from weir.operators.joins import recent_kernels as kernels
from weir.records import WATERMARK_MAX_MS, WATERMARK_MIN_MS

#: Rows of a side, and bytes of their columns, that are held at most: writing them takes a tenth of a second.
ROWS_MAX = 32_768
BYTES_MAX = 4 << 20
#: A row is held that is complete so many seconds from now, at the pace of event time.
_SOON_S = 0.5
#: The pace is that of so many seconds, at least.
_SPAN_S = 0.05


class Pace:
    """How fast event time goes, by the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: tuple[float, int] | None = None
        #: By so much the watermark rises in the near future, ms; 0: it is not known.
        self.soon_ms = 0

    def note(self, watermark_ms: int) -> None:
        """The watermark has risen."""
        if not WATERMARK_MIN_MS < watermark_ms < WATERMARK_MAX_MS:
            return
        now_s = self._clock.monotonic_s()
        if self._began is None:
            self._began = now_s, watermark_ms
        elif now_s - self._began[0] >= _SPAN_S:
            passed_ms = watermark_ms - self._began[1]
            self.soon_ms = round(passed_ms / (now_s - self._began[0]) * _SOON_S)
            self._began = now_s, watermark_ms


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows of one side, in the order in which they came; arrays are of shape (rows,), offsets one longer."""

    hashes: np.ndarray
    keys: weir_keys.KeyColumn
    times: np.ndarray
    lower: np.ndarray
    until: np.ndarray
    #: Their columns, see ``row_codec``.
    data: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    def columns(self) -> tuple[np.ndarray, ...]:
        """What ``recent_kernels`` take of rows."""
        offsets = self.keys.offsets.astype(np.int64, copy=False)
        return self.hashes, self.keys.data, offsets, self.times, self.lower, self.until

    def only(self, rows: np.ndarray, data: np.ndarray, offsets: np.ndarray) -> HeldRows:
        """Some of them, by their numbers (int64), with these columns."""
        keys = weir_keys.select_keys(self.keys, rows)
        times, lower, until = self.times[rows], self.lower[rows], self.until[rows]
        return HeldRows(self.hashes[rows], keys, times, lower, until, data, offsets)

    def chosen(self, rows: np.ndarray) -> HeldRows:
        """Some of them, by their numbers (int64), with their columns."""
        firsts = self.offsets[:-1][rows]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(self.offsets[1:][rows] - firsts, out=offsets[1:])
        data = np.empty(int(offsets[-1]), dtype=np.uint8)
        key_kernels.gather_bytes(self.data, firsts, offsets, data)
        return self.only(rows, data, offsets)

    def with_more(self, more: HeldRows) -> HeldRows:
        """These, and after them others."""
        both = [np.concatenate(pair) for pair in zip(self._numbers(), more._numbers(), strict=True)]
        keys = weir_keys.joined_keys([self.keys, more.keys])
        data = np.concatenate([self.data, more.data])
        offsets = np.concatenate([self.offsets, more.offsets[1:] + self.offsets[-1]])
        return HeldRows(both[0], keys, both[1], both[2], both[3], data, offsets)

    def _numbers(self) -> tuple[np.ndarray, ...]:
        return self.hashes, self.times, self.lower, self.until


class _Side:
    """What is held of one side, and where the rows of a key are."""

    def __init__(self) -> None:
        self.rows: HeldRows | None = None
        self._heads = np.zeros(0, dtype=np.int32)
        self._nexts = np.zeros(0, dtype=np.int32)

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows)

    def put(self, rows: HeldRows | None) -> None:
        """Hold these rows instead, which may begin with those that were held."""
        before = len(self)
        self.rows = rows
        if rows is None:
            self._nexts = np.zeros(0, dtype=np.int32)
            return
        count = len(rows)
        if count < before or count > len(self._nexts):
            size = 1 << (2 * count).bit_length()
            self._heads, self._nexts = np.zeros(size, dtype=np.int32), np.zeros(size // 2, dtype=np.int32)
            before = 0
        kernels.file_rows(rows.hashes, before, self._heads, self._nexts)

    def index(self) -> tuple[np.ndarray, np.ndarray]:
        """What ``recent_kernels.match`` takes."""
        return self._heads, self._nexts


class RecentRows:
    """Of a join within bounds that tells of pairs only: rows of both sides that are complete soon."""

    def __init__(self) -> None:
        self._sides = (_Side(), _Side())

    def room(self, side: int) -> int:
        """How many more rows of a side may be held."""
        rows = self._sides[side].rows
        if rows is None:
            return ROWS_MAX
        return 0 if len(rows.data) > BYTES_MAX else max(ROWS_MAX - len(rows), 0)

    def hold(self, side: int, rows: HeldRows) -> None:
        """Hold more rows of a side."""
        held = self._sides[side]
        held.put(rows if held.rows is None else held.rows.with_more(rows))

    def rows(self, side: int) -> HeldRows | None:
        """What is held of a side; None: nothing."""
        return self._sides[side].rows

    def match(
        self, side: int, new: HeldRows, *, is_point: bool, pairs_max: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of new rows of a side with rows that are held of the other one, at most so many at a time.

        Args:
            side: that of the new rows.
            new: their columns are not looked at.
            is_point: the new rows have intervals, those that are held have times.
            pairs_max: pairs at a time.

        Yields:
            Numbers of new rows, and of those that are held; int64.
        """
        other = self._sides[1 - side]
        if other.rows is None:
            return
        given: list[Any] = [*new.columns(), *other.rows.columns(), *other.index(), is_point]
        left_off = np.array([0, -1], dtype=np.int64)
        while left_off[0] < len(new):
            new_found, found = np.empty(pairs_max, dtype=np.int64), np.empty(pairs_max, dtype=np.int64)
            first, first_held = left_off.tolist()
            arguments = [*given, first, first_held, new_found, found, left_off]
            count = kernels.match(*arguments)
            if count:
                yield new_found[:count], found[:count]

    def drop(self, watermark_ms: int) -> None:
        """Let go of rows that can match no more; some of them a little later."""
        for side in self._sides:
            if side.rows is None:
                continue
            stay = side.rows.until >= watermark_ms
            count = int(np.count_nonzero(stay))
            if count == 0:
                side.put(None)
            elif count <= len(side) // 2:
                side.put(side.rows.chosen(np.flatnonzero(stay)))

    def take(self, side: int, watermark_ms: int) -> HeldRows | None:
        """Let go of a side, and return those rows that can still match; None: there are none."""
        rows = self._sides[side].rows
        self._sides[side].put(None)
        if rows is None:
            return None
        stay = np.flatnonzero(rows.until >= watermark_ms)
        return rows.chosen(stay) if len(stay) else None
