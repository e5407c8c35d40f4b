"""Rows that a paced source has decoded and not given out: what the first filters keep of them is known at once.

A paced source decodes thousands of rows at a time and gives a few of them out every few ms. What a few rows cost at a
filter is nothing but calls, so the filters that need not see rows at their time look at the whole block: a poll then
gives out a part of what is left of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Picked:
    """Some rows of a block, in their order, and where each of them was in it."""

    __slots__ = ("_numbers", "batch")

    def __init__(self, numbers: np.ndarray, batch: pa.RecordBatch) -> None:
        """``numbers``: where the rows of ``batch`` were; integers, ascending, shape (rows,)."""
        self._numbers: list[int] = numbers.tolist()
        self.batch = batch

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """First and end of the rows of ``batch`` that were at ``start`` or after it and before ``stop``."""
        first = bisect_left(self._numbers, start)
        return first, bisect_left(self._numbers, stop, first)


class RowsAhead:
    """A block of decoded rows after the first filters of a chain."""

    __slots__ = ("_kept", "batch", "filters")

    def __init__(self, block: pa.RecordBatch, kept: Sequence[np.ndarray]) -> None:
        """Take what is left of the block.

        Args:
            block: the rows as they are given out by the source.
            kept: for each filter, in order, the numbers within the block of the rows that pass it; ascending.
        """
        self.filters = len(kept)
        #: What passes all of them.
        self.batch = block
        if kept and len(kept[-1]) < block.num_rows:
            self.batch = block.take(pa.array(kept[-1]))
        self._kept: list[list[int]] = [numbers.tolist() for numbers in kept]

    def passed(self, start: int, stop: int) -> tuple[list[int], int, int]:
        """Let the rows of the block at ``start`` or after it and before ``stop`` pass the filters.

        Returns:
            How many rows enter each filter, and first and end of those in ``batch`` that pass all.
        """
        entered = []
        first, end = start, stop
        for numbers in self._kept:
            entered.append(end - first)
            first = bisect_left(numbers, start)
            end = bisect_left(numbers, stop, first)
        return entered, first, end


class PartAhead(NamedTuple):
    """The part of a block that one poll returns."""

    rows: RowsAhead
    #: Numbers within the block.
    start: int
    stop: int
