"""The bytes of panes that get hardly any more rows: all entries of a pane and a key group together.

A table keeps a pane like this when its first window has fired (docs/design/0004). The store has it under namespace
``p`` of the state; an entry of its own, with the same end and user key, counts instead of what is packed::

    key group | state id | 01 'p' | end of the pane, 8 bytes | number of the row in pane and group, 2 bytes, big endian

A row has up to 4,096 entries. It may refer to a pane that ended before: then its first entries are those whose keys
are in that pane's rows of the same key group, as far as these refer to none themselves, in their order; the row does
not have these keys. Other keys ascend, also from row to row. A pane to which rows refer stays as long as they do. A
promise: the tests have golden bytes. Integers are little endian.

========================  ==========================================================================================
1                         format version, 1 or 2
1                         flags: 1 the row's own keys have 8 bytes; 2 entries differ in which cells have a value;
                          4 it refers to another pane
2, 2, 4                   number of entries (at least 1), number of cells, bytes of all keys
reference, with flag 4    end of the other pane, 8; number of entries with its keys, at least 1, 2; where the first of
                          them is among its keys, 4; code, 1; how many keys are between each and the one before
keys, with flag 1         the first key as a number, 8; code, 1; what each is above the one before
keys, without it          for each: how many bytes it shares with the one before, how many follow, these
presence                  ceil(cells / 8), as in ``weir.state.tables.cells.accumulators``; with flag 2 for each entry
for each cell, version 2  form, 1; with form 2 the slope; base; shift, 1; code, 1; a number for each entry. Its value is
                          base and number shifted left; with form 1 the base and number / 2, or -(number + 1) / 2 if
                          the number is odd; with form 2 also slope times the entry's first cell
for each cell, version 1  base, 8; shift, 1; code, 1; a number for each entry, as with form 0
========================  ==========================================================================================

``weir.state.tables.panes.number_kernels`` has the codes and bits of numbers; version 1 has no code above 64. Keys of a
row come only if there are some besides those of the other pane. Lengths, slopes and bases have seven bits in a byte,
the upper bit says that more follow; slopes and bases are folded first, as numbers are with form 1. All values are taken
as numbers of 64 bits, also floats; what passes 64 bits is cut off.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weir.keys import hashing as weir_keys
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables.panes import packed_pane_kernels as kernels
from weir.state.tables.panes.window_entries import key_offsets
from weir.state.tables.timers.time_first import time_bytes

NAMESPACE = b"p"
_NUMBER_BYTES = 2
_CELLS = slice(4, 6)


def cells_of(row: bytes) -> int:
    """The number of cells of a row."""
    return int.from_bytes(row[_CELLS], "little")


@dataclass(frozen=True, slots=True, eq=False)
class PackedPane:
    """Rows of one pane, those of a key group one after the other."""

    end_ms: int
    #: Key group of each row; uint16, shape (rows,), ascending.
    groups: np.ndarray
    #: int64, shape (rows + 1,).
    offsets: np.ndarray
    #: uint8.
    data: np.ndarray
    #: End of the pane to which each row refers, int64; ``NO_REFERENCE_MS``: to none.
    references_ms: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(self.groups.nbytes + self.offsets.nbytes + self.data.nbytes + self.references_ms.nbytes)

    def runs(self) -> list[tuple[int, PackedPane]]:
        """Rows one after the other that have the same number of cells, and that number.

        Rows of before aggregates were added have fewer.
        """
        if not len(self.groups):
            return []
        # Rows that are too short for a number are damaged, which who unpacks them finds out.
        is_whole = np.diff(self.offsets) >= _CELLS.stop
        at = np.where(is_whole, self.offsets[:-1] + _CELLS.start, 0)
        cells = np.zeros(len(at), dtype=np.int64)
        if is_whole.any():
            cells = (self.data[at].astype(np.int64) | self.data[at + 1].astype(np.int64) << 8) * is_whole
        bounds = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
        if len(bounds) == 2:
            return [(int(cells[0]), self)]
        found, numbers = [], np.arange(len(cells))
        for start, stop in itertools.pairwise(bounds):
            found.append((int(cells[start]), self._of_rows((numbers >= start) & (numbers < stop))))
        return found

    def referred_ms(self) -> list[int]:
        """Ends of the panes to which rows refer."""
        found = np.unique(self.references_ms)
        return [int(end_ms) for end_ms in found if end_ms != kernels.NO_REFERENCE_MS]

    def of_groups(self, wanted: np.ndarray) -> PackedPane:
        """The rows of some key groups (bool, by group)."""
        return self._of_rows(wanted[self.groups])

    def with_own_keys(self) -> PackedPane:
        """The rows that refer to no other pane."""
        return self._of_rows(self.references_ms == kernels.NO_REFERENCE_MS)

    def _of_rows(self, kept: np.ndarray) -> PackedPane:
        if kept.all():
            return self
        rows = np.flatnonzero(kept)
        column = weir_keys.select_keys(weir_keys.KeyColumn(self.data, self.offsets), rows)
        return PackedPane(
            self.end_ms, self.groups[rows], column.offsets, column.data, self.references_ms[rows]
        )

    def stored(self, state_id: int) -> list[tuple[bytes, bytes]]:
        """Keys and values for the store, in order."""
        raw, bounds = self.data.tobytes(), self.offsets.tolist()
        values = [raw[start:stop] for start, stop in itertools.pairwise(bounds)]
        return list(zip(row_keys(self.groups, state_id, self.end_ms), values, strict=True))


def row_keys(groups: np.ndarray, state_id: int, end_ms: int) -> list[bytes]:
    """Store keys of the rows of a pane, of which those of a key group follow each other."""
    found, number, before = [], 0, -1
    for group in groups.tolist():
        number = number + 1 if group == before else 0
        before = group
        found.append(_pane_prefix(group, state_id, end_ms) + number.to_bytes(_NUMBER_BYTES, "big"))
    return found


def _pane_prefix(group: int, state_id: int, end_ms: int) -> bytes:
    return layout.key_prefix(group, state_id, NAMESPACE) + time_bytes(end_ms)


def range_of_pane(group: int, state_id: int, end_ms: int) -> tuple[bytes, bytes | None]:
    """Bounds of the rows of a pane of a key group, in the store."""
    prefix = _pane_prefix(group, state_id, end_ms)
    return prefix, prefix_end(prefix)


def range_of_group(group: int, state_id: int) -> tuple[bytes, bytes | None]:
    """Bounds of the rows of all panes of a key group, in the store."""
    prefix = layout.key_prefix(group, state_id, NAMESPACE)
    return prefix, prefix_end(prefix)


def packed_from(end_ms: int, rows: Sequence[tuple[int, bytes]]) -> PackedPane:
    """A pane from (key group, value) of its rows, in order."""
    groups = np.array([group for group, _ in rows], dtype=np.uint16)
    lengths = np.fromiter((len(value) for _, value in rows), np.int64, len(rows))
    data = np.frombuffer(b"".join(value for _, value in rows), dtype=np.uint8)
    return made_pane(end_ms, groups, key_offsets(lengths), data)


def made_pane(end_ms: int, groups: np.ndarray, offsets: np.ndarray, data: np.ndarray) -> PackedPane:
    """A pane from its arrays."""
    references_ms = np.empty(len(groups), dtype=np.int64)
    kernels.find_references(data, offsets, references_ms)
    return PackedPane(end_ms, groups, offsets, data, references_ms)


def end_of(key: bytes) -> int:
    """The end of the pane of a row, from its store key."""
    start = layout.NO_NAMESPACE_HEADER_BYTES + len(NAMESPACE)
    return int.from_bytes(key[start : start + 8], "big") - (1 << 63)
