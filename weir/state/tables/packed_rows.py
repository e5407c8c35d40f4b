"""The bytes of panes that get hardly any more rows: all entries of a pane and a key group together.

A table keeps a pane like this when its first window has fired (docs/design/0004). The store has it under namespace
``p`` of the state; an entry of its own, with the same end and user key, counts instead of what is packed::

    key group | state id | 01 'p' | end of the pane, 8 bytes | number of the row in pane and group, 2 bytes, big endian

A row has up to 4,096 entries; all rows of a pane and group have them in the order of their keys. A promise: the tests
have golden bytes. Integers are little endian.

========================  ==========================================================================================
1                         format version, now 1
1                         flags: 1 all keys have 8 bytes; 2 entries differ in which cells have a value
2, 2, 4                   number of entries (at least 1), number of cells, bytes of all keys
keys, with flag 1         the first key as a number, 8; width in bits, 1; what each is above the one before
keys, without it          for each: how many bytes it shares with the one before, how many follow, these
presence                  ceil(cells / 8), as in ``weir.state.tables.accumulators``; with flag 2 for each entry
for each cell             the least value, 8; shift, 1; width, 1; for each entry what it is above the least, shifted
========================  ==========================================================================================

Numbers of some width lie bit by bit, the lowest one first, and end with a whole byte. A width above 56 is 64. Lengths
have seven bits in a byte, the upper bit says that more follow. All values are taken as numbers of 64 bits, also floats.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir import keys as weir_keys
from weir.errors import StateMismatchError
from weir.state import layout
from weir.state.api import prefix_end
from weir.state.tables import packed_pane_kernels as kernels
from weir.state.tables.accumulators import presence_bytes
from weir.state.tables.time_first import time_bytes
from weir.state.tables.window_entries import WindowEntries, key_offsets

NAMESPACE = b"p"
_INTEGER_BYTES = 8
#: What a row may take besides keys, presence and cells: header, and lengths and bytes that are not full.
_ROW_BYTES = kernels.HEADER_BYTES + kernels.INTEGERS_BYTES + 16
_LENGTHS_BYTES = 10
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

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return int(self.groups.nbytes + self.offsets.nbytes + self.data.nbytes)

    def of_groups(self, wanted: np.ndarray) -> PackedPane:
        """The rows of some key groups (bool, by group)."""
        kept = wanted[self.groups]
        if kept.all():
            return self
        rows = np.flatnonzero(kept)
        column = weir_keys.select_keys(weir_keys.KeyColumn(self.data, self.offsets), rows)
        return PackedPane(self.end_ms, self.groups[rows], column.offsets, column.data)

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
    return PackedPane(end_ms, groups, key_offsets(lengths), data)


def pack_pane(
    end_ms: int, keys: weir_keys.KeyColumn, groups: np.ndarray, cells: np.ndarray, presence: np.ndarray
) -> PackedPane:
    """Put the entries of a pane together; there is one at least. The arrays are as in :class:`WindowEntries`."""
    order, are_integers = _order(keys, groups)
    keys, groups = weir_keys.select_keys(keys, order), groups[order]
    changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
    firsts = [0, *changes.tolist(), len(groups)]
    bounds = [
        start
        for first, stop in itertools.pairwise(firsts)
        for start in range(first, stop, kernels.ROW_ENTRIES_MAX)
    ]
    rows = np.array([*bounds, len(groups)], dtype=np.int64)
    entry_bytes = _LENGTHS_BYTES + presence.shape[1] + 8 * cells.shape[1]
    row_bytes = _ROW_BYTES + (kernels.COLUMN_BYTES + 1) * cells.shape[1]
    out = np.empty(len(keys.data) + entry_bytes * len(groups) + row_bytes * len(bounds), dtype=np.uint8)
    offsets = np.empty(len(rows), dtype=np.int64)
    kernels.pack(
        keys.data,
        keys.offsets,
        rows,
        are_integers,
        cells[order],
        presence[order],
        np.empty(kernels.ROW_ENTRIES_MAX, dtype=np.uint64),
        out,
        offsets,
    )
    return PackedPane(end_ms, groups[rows[:-1]], offsets, out[: int(offsets[-1])].copy())


def _order(keys: weir_keys.KeyColumn, groups: np.ndarray) -> tuple[np.ndarray, bool]:
    """Positions that sort entries by group and then by key, and whether all keys have the length of integers."""
    lengths = np.diff(keys.offsets)
    start, stop = int(keys.offsets[0]), int(keys.offsets[-1])
    are_integers = bool((lengths == _INTEGER_BYTES).all())
    if are_integers:
        order = np.argsort(keys.data[start:stop].view(">u8").astype(np.uint64))
    else:
        buffers = [None, pa.py_buffer(np.asarray(keys.offsets, dtype=np.int64)), pa.py_buffer(keys.data)]
        column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
        order = pc.sort_indices(column).to_numpy().astype(np.int64)
    return order[np.argsort(groups[order], kind="stable")], are_integers


def unpack_panes(panes: Iterable[PackedPane], cell_count: int) -> WindowEntries | None:
    """All entries of panes; None: there are none.

    Raises:
        StateMismatchError: a row has another version, or not the bytes of one.
    """
    listed = [pane for pane in panes if len(pane.groups)]
    if not listed:
        return None
    groups = np.concatenate([pane.groups for pane in listed])
    lengths = np.concatenate([np.diff(pane.offsets) for pane in listed])
    data = listed[0].data if len(listed) == 1 else np.concatenate([pane.data for pane in listed])
    offsets, totals = key_offsets(lengths), np.zeros(3, dtype=np.int64)
    _check(kernels.measure(data, offsets, cell_count, totals), data, offsets)
    count, key_bytes, longest = totals.tolist()
    keys = np.empty(key_bytes, dtype=np.uint8)
    cells = np.empty((count, cell_count), dtype=np.int64)
    presence = np.empty((count, presence_bytes(cell_count)), dtype=np.uint8)
    starts, counts = np.zeros(count + 1, dtype=np.int64), np.empty(len(groups), dtype=np.int64)
    words = np.empty(longest, dtype=np.uint64)
    wrong = kernels.unpack(data, offsets, words, keys, starts, cells, presence, counts)
    _check(wrong, data, offsets)
    ends_ms = np.repeat([pane.end_ms for pane in listed], [len(pane.groups) for pane in listed])
    return WindowEntries(
        np.repeat(ends_ms.astype(np.int64), counts),
        weir_keys.KeyColumn(keys, starts),
        np.repeat(groups, counts),
        cells,
        presence,
    )


def end_of(key: bytes) -> int:
    """The end of the pane of a row, from its store key."""
    start = layout.NO_NAMESPACE_HEADER_BYTES + len(NAMESPACE)
    return int.from_bytes(key[start : start + 8], "big") - (1 << 63)


def _check(wrong: int, data: np.ndarray, offsets: np.ndarray) -> None:
    if wrong < 0:
        return
    start, stop = int(offsets[wrong]), int(offsets[wrong + 1])
    version = int(data[start]) if stop > start else 0
    if version != kernels.VERSION:
        raise StateMismatchError(
            f"a packed pane has format version {version}, this program reads {kernels.VERSION}; "
            "use the program that wrote it or start from an empty store"
        )
    raise StateMismatchError(
        f"a packed pane of {stop - start} bytes does not have the form of version {version} with this step's "
        "cells: the job's aggregates changed, or the store is damaged; start from an empty store"
    )
