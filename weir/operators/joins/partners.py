"""Rows of one side that new rows of the other one match, wherever they are: their times and columns."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.operators.joins.kept_block import Block
from weir.operators.joins.recent_rows import HeldRows
from weir.operators.joins.row_codec import RowCodec


class Partners(Protocol):
    """Of all methods ``rows`` (int64) says which."""

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Event times, int64."""
        ...

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """Columns, of the codec."""
        ...


class KeptPartners:
    """Rows of a block, by where they begin."""

    def __init__(self, block: Block, codec: RowCodec, columns_at: int) -> None:
        """``columns_at``: where the columns of a row begin within it."""
        self._block, self._codec, self._columns_at = block, codec, columns_at

    def times(self, rows: np.ndarray) -> np.ndarray:
        """See :class:`Partners`."""
        return self._block.times(rows)

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """See :class:`Partners`."""
        return self._codec.decode(self._block.data, rows + self._columns_at)


class RecentPartners:
    """Rows that are held, by their numbers."""

    def __init__(self, held: HeldRows, codec: RowCodec) -> None:
        self._held, self._codec = held, codec

    def times(self, rows: np.ndarray) -> np.ndarray:
        """See :class:`Partners`."""
        times: np.ndarray = self._held.times[rows]
        return times

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """See :class:`Partners`."""
        return self._codec.decode(self._held.data, self._held.offsets[:-1][rows])
