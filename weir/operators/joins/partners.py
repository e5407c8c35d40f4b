"""Rows of one side that new rows of the other one match, wherever they are: their times and columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa

from weir.operators.joins.held_rows import HeldRows
from weir.operators.joins.kept_block import Block
from weir.operators.joins.row_codec import RowCodec

_EARLIEST_MS = -(2**63)


class Partners(Protocol):
    """Partners that rows were joined with; ``rows`` (int64) of each method says which."""

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Event times, int64."""

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """Columns, of the codec."""


class KeptPartners:
    """Rows of a block, by where they begin; -1: there is none, its time is the earliest, and its columns are null."""

    def __init__(self, block: Block, codec: RowCodec, columns_at: int) -> None:
        """``columns_at``: where the columns of a row begin within it."""
        self._block, self._codec, self._columns_at = block, codec, columns_at

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Return event times, as :class:`Partners` says."""
        is_there = rows >= 0
        if is_there.all():
            return self._block.times(rows)
        times = np.full(len(rows), _EARLIEST_MS)
        times[is_there] = self._block.times(rows[is_there])
        return times

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """Return columns, as :class:`Partners` says."""
        is_there = rows >= 0
        found = self._codec.decode(self._block.data, rows[is_there] + self._columns_at)
        if is_there.all():
            return found
        positions = pa.array(np.cumsum(is_there) - 1, mask=~is_there)
        return [column.take(positions) for column in found]


class RecentPartners:
    """Rows that are held, by their numbers."""

    def __init__(self, held: HeldRows, codec: RowCodec) -> None:
        self._held, self._codec = held, codec

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Return event times, as :class:`Partners` says."""
        times: np.ndarray = self._held.times[rows]
        return times

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """Return columns, as :class:`Partners` says."""
        return self._codec.decode(self._held.data, self._held.offsets[:-1][rows])


class BothPartners:
    """Rows of a block by where they begin, and rows that are held by ``-1 - number``."""

    def __init__(self, kept: KeptPartners, recent: RecentPartners) -> None:
        self._kept, self._recent = kept, recent

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Return event times, as :class:`Partners` says: each partner's from where it is."""
        is_held = rows < 0
        times = np.empty(len(rows), dtype=np.int64)
        times[is_held] = self._recent.times(-1 - rows[is_held])
        times[~is_held] = self._kept.times(rows[~is_held])
        return times

    def columns(self, rows: np.ndarray) -> list[pa.Array]:
        """Return columns, as :class:`Partners` says: each partner's from where it is."""
        is_held = rows < 0
        order = pa.array(np.argsort(np.argsort(is_held, kind="stable"), kind="stable"))
        parts = (self._kept.columns(rows[~is_held]), self._recent.columns(-1 - rows[is_held]))
        return [pa.concat_arrays(pair).take(order) for pair in zip(*parts, strict=True)]


#: Numbers of new rows, ascending, and of their partners; int64.
Pairs = tuple[np.ndarray, np.ndarray]


def merged(kept: Iterator[Pairs], recent: Iterator[Pairs]) -> Iterator[Pairs]:
    """Yield pairs in the order of the new rows; held ones become ``-1 - number``, see :class:`BothPartners`."""
    sources = (kept, ((new_rows, -1 - rows) for new_rows, rows in recent))
    heads = [next(source, None) for source in sources]
    while any(head is not None for head in heads):
        # Of the one that is behind the next pairs may be of its last row.
        limit = min(int(head[0][-1]) for head in heads if head is not None)
        parts = []
        for index, head in enumerate(heads):
            if head is None:
                continue
            stop = int(np.searchsorted(head[0], limit, side="right"))
            parts.append((head[0][:stop], head[1][:stop]))
            rest = head[0][stop:], head[1][stop:]
            heads[index] = rest if len(rest[0]) else next(sources[index], None)
        new_rows, rows = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        order = np.argsort(new_rows, kind="stable")
        if len(order):
            yield new_rows[order], rows[order]
