"""Texts of first and last values of windows: cells have their codes, a table of its own has the texts by pane and key.

An entry of that table is ``user key | text | length of the user key`` (``weir.operators.aggregation.part_entries``),
and its cell the code, which is larger than 0. Codes are numbers from a random one on, so that those of two runs, or of
two subtasks, are hardly ever equal. A text that a pane needs is in that pane: what moves to another one is added there.
This is a persisted format.
"""

from __future__ import annotations

import secrets

import numpy as np
import pyarrow as pa

from weir.keys import hashing as weir_keys
from weir.operators.aggregation.columns import Cells
from weir.operators.aggregation.part_entries import PartEntries, part_keys
from weir.operators.windows.panes.folds import Folds
from weir.operators.windows.panes.known_texts import KnownTexts, as_bytes
from weir.operators.windows.panes.text_folds import TextByTimeFold
from weir.specs.windows import TEXTS_STATE
from weir.state.tables.opened import OperatorTables
from weir.state.tables.panes.window_entries import NOTHING_MS

_CODE_BITS = 61
#: Of the bound of the state's cache: what texts in memory may take besides.
_MEMORY_SHARE = 4
_NAMES = ["text"]

#: Ends of panes, hashes of user keys, and these.
Entries = tuple[np.ndarray, np.ndarray, weir_keys.KeyColumn]


class WindowTexts:
    """The texts of one step; does nothing where no aggregate is of texts."""

    def __init__(self, folds: Folds, tables: OperatorTables) -> None:
        self._folds = [fold for fold in folds.folds if isinstance(fold, TextByTimeFold)]
        self._next = 1 + secrets.randbits(_CODE_BITS)
        self._known = KnownTexts(tables.cache_bytes // _MEMORY_SHARE)
        for fold in self._folds:
            fold.texts = self._known
        self._table = tables.windows(1, TEXTS_STATE) if self._folds else None

    @property
    def memory_bytes(self) -> int:
        """Memory for texts, beside that of the table."""
        return self._known.memory_bytes

    def take(
        self,
        piece: pa.RecordBatch,
        slots: np.ndarray,
        cells: Cells,
        entries: Entries,
        start: int,
    ) -> None:
        """Bring codes into cells that have numbers of rows now.

        Args:
            piece: rows that have just been taken in,
            slots: the slot of each,
            cells: the table's,
            entries: of a batch,
            start: which of its rows is the first of these.
        """
        numbers = None if not self._folds else TextByTimeFold.numbers_of(len(slots))
        found = []
        for fold in self._folds:
            rows = np.flatnonzero(cells.integers[slots, fold.cell] == numbers)
            if len(rows):
                column = piece.column(str(fold.aggregate.column))
                found.append((fold, rows, as_bytes(column.take(pa.array(rows)))))
        if not found:
            return
        rows = np.concatenate([rows for _, rows, _ in found])
        texts = pa.concat_arrays([texts for _, _, texts in found])
        codes = self._codes(entries, start + rows, texts)
        taken = 0
        for fold, rows, _ in found:
            cells.integers[slots[rows], fold.cell] = codes[taken : taken + len(rows)]
            taken += len(rows)

    def move(self, entries: Entries, cells: Cells) -> None:
        """Add the texts of entries to the panes to which these are about to be written; changes their codes.

        Args:
            entries: where they are to be,
            cells: and what they have.
        """
        for fold in self._folds:
            rows = np.flatnonzero(fold.are_there(cells))
            if len(rows):
                codes = np.ascontiguousarray(cells.integers[rows, fold.cell])
                self._read_missing(codes, NOTHING_MS, int(entries[0].max()))
                cells.integers[rows, fold.cell] = self._codes(entries, rows, self._known.of(codes))

    def prepare(self, cells: Cells, after_ms: int, until_ms: int) -> None:
        """Bring the texts of results into memory, whose panes end after one time and until the other."""
        for fold in self._folds:
            codes = cells.integers[fold.are_there(cells), fold.cell]
            self._read_missing(codes, after_ms, until_ms)

    def drop(self, until_ms: int) -> None:
        """Forget the texts of panes up to this end."""
        if self._table is not None:
            self._table.drop(until_ms)
            self._known.drop(until_ms)

    def advance(self, until_ms: int) -> None:
        """Note up to where windows have fired."""
        if self._table is not None:
            self._table.advance(until_ms)

    def _codes(self, entries: Entries, rows: np.ndarray, texts: pa.Array) -> np.ndarray:
        """The codes of texts in the panes and keys of some entries, new ones for what is not there."""
        table = self._table
        assert table is not None
        ends_ms, hashes, keys = entries[0][rows], entries[1][rows], weir_keys.select_keys(entries[2], rows)
        values = weir_keys.key_bytes(pa.RecordBatch.from_arrays([texts], _NAMES), _NAMES)
        codes = np.empty(len(texts), dtype=np.int64)
        for start, stop, slots in table.update(ends_ms, *part_keys(hashes, keys, values)):
            cells = table.cells[:, 0]
            new = np.flatnonzero(cells[slots] == 0)
            if len(new):
                # Of a text that comes twice one of the codes stays.
                cells[slots[new]] = self._next + np.arange(len(new))
                until_ms = int(ends_ms[start:stop][new].max())
                self._known.add(self._next, texts.take(pa.array(start + new)), until_ms)
                self._next += len(new)
            table.presence[slots, 0] = 1
            codes[start:stop] = cells[slots]
        return codes

    def _read_missing(self, codes: np.ndarray, after_ms: int, until_ms: int) -> None:
        if self._table is None or self._known.are_known(codes).all():
            return
        found, texts = [np.empty(0, dtype=np.int64)], [pa.array([], pa.large_binary())]
        for entries in self._table.entries(after_ms, until_ms):
            found.append(entries.cells[:, 0])
            texts.append(texts_of_entries(PartEntries(entries.keys, entries.cells, entries.ends_ms)))
        self._known.put_read(np.concatenate(found), pa.concat_arrays(texts), until_ms)


def texts_of_entries(entries: PartEntries) -> pa.Array:
    """The text of each entry, as large binary."""
    return as_bytes(weir_keys.decode_keys(entries.values, [pa.binary()])[0])
