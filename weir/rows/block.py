"""Rows of which not all is made yet: a block goes from a source, or from a filter, to the exchange.

A *block* has columns, one of which may come late, and a *selection*: the rows that count. Its rows leave all at once,
or in *windows*, as they become due. A paced source decodes thousands of rows at a time and gives a few of them out
every few ms. What a few rows cost at a filter and at an exchange is nothing but calls, so the filters that need not see
rows at their time, and the exchange, do their work once for the whole block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from weir.rows.records import taken


class TextRoom(Protocol):
    """Memory for texts that are put together where they would be copied to otherwise."""

    #: Where it begins.
    address: int

    def taken(self, size_bytes: int) -> pa.Buffer:
        """Return its first bytes, which are all that is used of it; called once."""


#: Makes room for so many bytes; None: there is none.
MakesRoom: TypeAlias = Callable[[int], TextRoom | None]


class LateColumn(Protocol):
    """A column of a batch that is read when it is known where its values go: once, page by page."""

    #: Its place among the columns of the batch with it.
    place: int
    #: About so many bytes.
    size_bytes: int
    #: Columns of the batch that have the same value in all its rows.
    constants: Collection[str]
    #: After :meth:`joined`: which rows it left; bool, shape (rows,). None: all.
    kept: np.ndarray | None

    def divided(
        self, order: np.ndarray, ends: Sequence[int], rooms: Sequence[MakesRoom | None] = ()
    ) -> list[pa.Array] | None:
        """The values of each consumer, in order; None: :meth:`joined` is to be used.

        Args:
            order: numbers of the rows that count, by consumer; uint32, shape (rows that count,).
            ends: where the rows of each consumer end in ``order``, after a 0; or of each part of them.
            rooms: for each of these what makes room for its texts; None, or none at all: they get memory of their own.
        """

    def joined(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with this column, which it lacks; without the rows that its values made bad.

        Raises:
            InputError: it cannot be read, or a row is bad that must not be.
        """

    def put_into(self, batch: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
        """The batch with these values as the column that it lacks."""


class Block:
    """Rows of which not all is made yet; used by one subtask's thread.

    Args:
        columns: all rows, without the column that comes late.
        selection: numbers of the rows that count; int64, ascending, shape (rows that count,). None: all.
        late: a column that the rows lack. All rows of such a block leave at once.
        kept: for each filter that the rows have passed, in order, the numbers of the rows that pass it, as
            ``selection``, which is the last one.
    """

    __slots__ = ("_kept", "_numbers", "_selected", "columns", "late", "selection")

    def __init__(
        self,
        columns: pa.RecordBatch,
        selection: np.ndarray | None = None,
        late: LateColumn | None = None,
        kept: Sequence[np.ndarray] = (),
    ) -> None:
        self.columns, self.selection, self.late = columns, selection, late
        self._kept = kept
        # Few rows are found sooner in lists; of rows that leave all at once none is looked for.
        self._numbers: list[list[int]] = [] if late is not None else [numbers.tolist() for numbers in kept]
        is_plain = selection is None and late is None
        self._selected: pa.RecordBatch | None = columns if is_plain else None

    @property
    def filters(self) -> int:
        """How many filters the rows have passed."""
        return len(self._kept)

    def passed(self, start: int, stop: int) -> tuple[list[int], int]:
        """Count the rows of a window at the filters.

        Args:
            start: number of the first row that is due.
            stop: number of the first one after it that is not.

        Returns:
            How many rows enter each filter, and how many pass all of them.
        """
        entered, rows = [], stop - start
        if rows == self.columns.num_rows:
            counts = [rows, *map(len, self._kept)]
            return counts[:-1], counts[-1]
        for numbers in self._numbers:
            entered.append(rows)
            first = bisect_left(numbers, start)
            rows = bisect_left(numbers, stop, first) - first
        return entered, rows

    def joined(self) -> Block:
        """The block with the column that comes late; without the rows that its values made bad.

        Raises:
            InputError: it cannot be read, or a row is bad that must not be.
        """
        if self.late is None:
            return self
        whole, kept, selection = self.late.joined(self.columns), self.late.kept, self.selection
        if kept is not None and selection is not None:
            selection = (np.cumsum(kept) - 1)[selection[kept[selection]]]
        return Block(whole, selection)

    def rows(self) -> pa.RecordBatch:
        """The rows that count, with all columns; made once. Raises what :meth:`joined` raises."""
        if self._selected is None:
            whole = self.joined()
            self._selected = whole.columns
            if whole.selection is not None:
                self._selected = taken(whole.columns, whole.selection)
        return self._selected

    def window(self, start: int, stop: int) -> pa.RecordBatch:
        """Return those of :meth:`rows` from number ``start`` on and before ``stop``."""
        if stop - start == self.columns.num_rows:
            return self.rows()
        if self.selection is not None:
            numbers = self._numbers[-1]
            start = bisect_left(numbers, start)
            stop = bisect_left(numbers, stop, start)
        return self.rows().slice(start, stop - start)


class Due(NamedTuple):
    """The window of a block that one poll returns."""

    block: Block
    #: Numbers of rows.
    start: int
    stop: int
