"""Texts in memory by their codes: what cells of windows have in place of a text is a code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from weir.errors import StateError
from weir.state.tables.panes.window_entries import NOTHING_MS

#: Blocks are put together up to so many texts, and bytes.
_BLOCK_TEXTS, _BLOCK_BYTES = 65_536, 4 << 20
_BYTES = pa.large_binary()


class _Block(NamedTuple):
    """Texts whose codes follow one another."""

    first: int
    texts: pa.LargeBinaryArray
    #: None of the panes that need one of them ends later.
    until_ms: int


class KnownTexts:
    """The texts that came last, in blocks; and those of some panes that were read again."""

    def __init__(self, bytes_max: int = 0) -> None:
        """``bytes_max``: bound of the blocks together; at least one stays."""
        self._bytes_max = bytes_max
        self._blocks: list[_Block] = []
        self._read = np.empty(0, dtype=np.int64), pa.array([], _BYTES)
        self._read_until_ms = NOTHING_MS

    @property
    def memory_bytes(self) -> int:
        """Bytes of all texts and their offsets."""
        return sum(int(texts.nbytes) for texts in (self._read[1], *(block.texts for block in self._blocks)))

    def add(self, first: int, texts: pa.Array, until_ms: int) -> None:
        """Texts with the codes from ``first`` on, all of them larger than those of before."""
        blocks = self._blocks
        blocks.append(_Block(first, texts, until_ms))
        while len(blocks) > 1 and _go_together(blocks[-2], blocks[-1]):
            last, before = blocks.pop(), blocks.pop()
            whole = pa.concat_arrays([before.texts, last.texts])
            blocks.append(_Block(before.first, whole, max(before.until_ms, last.until_ms)))
        if len(blocks) > 1 and sum(block.texts.nbytes for block in blocks) > self._bytes_max:
            del blocks[0]

    def put_read(self, codes: np.ndarray, texts: pa.Array, until_ms: int) -> None:
        """Texts of panes up to this end that were read again, in place of those before."""
        order = np.argsort(codes)
        self._read = codes[order], texts.take(pa.array(order))
        self._read_until_ms = until_ms

    def drop(self, until_ms: int) -> None:
        """Forget texts that no later pane needs."""
        self._blocks = [block for block in self._blocks if block.until_ms > until_ms]
        if len(self._read[0]) and self._read_until_ms <= until_ms:
            self._read = np.empty(0, dtype=np.int64), pa.array([], _BYTES)

    def are_known(self, codes: np.ndarray) -> np.ndarray:
        """Which codes have a text here; bool."""
        blocks, _ = self._places(codes)
        read = self._read[0]
        at = np.searchsorted(read, codes)
        known: np.ndarray = blocks >= 0
        if len(read):
            known |= read[np.minimum(at, len(read) - 1)] == codes
        return known

    def of(self, codes: np.ndarray) -> pa.Array:
        """The texts of codes, as large binary.

        Raises:
            StateError: one is not known.
        """
        blocks, rows = self._places(codes)
        pieces, orders = list[pa.Array](), list[np.ndarray]()
        for number in np.unique(blocks).tolist():
            whose = np.flatnonzero(blocks == number)
            if number >= 0:
                pieces.append(self._blocks[number].texts.take(pa.array(rows[whose])))
            else:
                known, texts = self._read
                at = np.searchsorted(known, codes[whose])
                if not len(known) or (known[np.minimum(at, len(known) - 1)] != codes[whose]).any():
                    raise StateError("the state of windows lacks a text that they have")
                pieces.append(texts.take(pa.array(at)))
            orders.append(whose)
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return pa.array([], _BYTES)
        return pa.concat_arrays(pieces).take(pa.array(np.argsort(np.concatenate(orders))))

    def _places(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The block of each code, -1 if it is in none, and its place there."""
        firsts = np.array([block.first for block in self._blocks], dtype=np.int64)
        if not len(firsts):
            return np.full(len(codes), -1, dtype=np.int64), codes
        lengths = np.array([len(block.texts) for block in self._blocks], dtype=np.int64)
        blocks = np.searchsorted(firsts, codes, side="right") - 1
        rows = codes - firsts[blocks]
        return np.where((blocks >= 0) & (rows < lengths[blocks]), blocks, -1), rows


def as_bytes(column: pa.Array) -> pa.Array:
    """Texts or bytes as large binary."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string(column.type) else _BYTES)
    return column.view(_BYTES)


def texts_of(codes: np.ndarray, valid: np.ndarray, known: KnownTexts, dtype: pa.DataType) -> pa.Array:
    """The texts of codes, null where ``valid`` (bool) says so, as a column of type ``dtype``."""
    found = known.of(codes[valid])
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        found = found.view(pa.large_string())
    found = found if found.type == dtype else found.cast(dtype)
    if valid.all():
        return found
    places = np.cumsum(valid) - 1
    return found.take(pa.array(places, mask=~valid))


def _go_together(before: _Block, last: _Block) -> bool:
    is_near = before.first + len(before.texts) == last.first and len(before.texts) <= 2 * len(last.texts)
    is_small = len(before.texts) + len(last.texts) <= _BLOCK_TEXTS
    return is_near and is_small and before.texts.nbytes + last.texts.nbytes <= _BLOCK_BYTES
