"""A column of a block that is read when it is known where its values go; see ``weir.rows.records.Block``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa


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
