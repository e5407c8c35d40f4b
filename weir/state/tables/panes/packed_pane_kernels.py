"""Compiled loops over packed rows of panes; ``packed_rows`` has their bytes, and alone calls them.

All integers are little endian. Arrays of bytes that are read or written go on for ``PADDING_BYTES`` after what counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import input_array
from weir.state.tables.panes.number_kernels import get, put
from weir.state.tables.panes.packed_cell_kernels import put_column, take_column
from weir.state.tables.panes.packed_key_kernels import (
    REFERENCE_BYTES,
    put_integers,
    put_keys,
    put_reference,
    take_integers,
    take_keys,
    take_reference,
)

VERSION = 2
#: Version, flags, number of entries (2 bytes), of cells (2 bytes), bytes of all keys (4 bytes).
HEADER_BYTES = 10
#: Flags: the row's own keys have eight bytes; entries differ in which cells have a value; some keys are another pane's.
KEYS_ARE_INTEGERS, PRESENCE_DIFFERS, REFERS = 1, 2, 4
#: Entries of a row: it stays below the size of other writes.
ROW_ENTRIES_MAX = 4_096
#: The end of no pane.
NO_REFERENCE_MS = -(2**63)


_IN_U8, _IN_I64 = input_array(types.uint8), input_array(types.int64)
_IN_I64_2D, _IN_U8_2D = input_array(types.int64, 2), input_array(types.uint8, 2)
_U8, _I64, _U64 = types.uint8[::1], types.int64[::1], types.uint64[::1]
_I64_2D, _U8_2D = types.int64[:, ::1], types.uint8[:, ::1]


@byte_kernel(
    types.void(
        _IN_U8,
        _IN_I64,
        _IN_I64,
        types.int64,
        _IN_I64,
        types.int64,
        _IN_I64_2D,
        _IN_U8_2D,
        _U64,
        _I64,
        _U8,
        _I64,
    ),
)
def pack(
    data: Any,
    offsets: Any,
    bounds: Any,
    are_integers: Any,
    positions: Any,
    reference_ms: Any,
    cells: Any,
    presence: Any,
    words: Any,
    lengths: Any,
    out: Any,
    out_offsets: Any,
) -> None:
    """Rows of the entries between ``bounds``, none of them empty, one after the other.

    ``positions``: of each key among those of its group in the pane that ends at ``reference_ms``, -1: it is not there;
    in a row these come last, the others are ascending. ``words`` has room for the entries of the longest row,
    ``lengths`` for 65 numbers, ``out``, which is all zero, for everything.
    """
    cell_count = cells.shape[1]
    at = 0
    for row in range(bounds.size - 1):
        first, stop = bounds[row], bounds[row + 1]
        out_offsets[row] = at
        differs = 0
        for entry in range(first + 1, stop):
            for index in range(presence.shape[1]):
                if presence[entry, index] != presence[first, index]:
                    differs = PRESENCE_DIFFERS
        own = first
        while own < stop and positions[own] >= 0:
            own += 1
        out[at] = VERSION
        out[at + 1] = (KEYS_ARE_INTEGERS if are_integers else 0) | differs | (REFERS if own > first else 0)
        at = put(out, at + 2, stop - first, 2)
        at = put(out, at, cell_count, 2)
        at = put(out, at, offsets[stop] - offsets[first], 4)
        if own > first:
            at = put_reference(positions, first, own, reference_ms, words, lengths, out, at)
        if own < stop:
            if are_integers:
                at = put_integers(data, offsets, own, stop, words, lengths, out, at)
            else:
                at = put_keys(data, offsets, own, stop, out, at)
        for entry in range(first, stop if differs else first + 1):
            for index in range(presence.shape[1]):
                out[at] = presence[entry, index]
                at += 1
        for cell in range(cell_count):
            at = put_column(cells, cell, first, stop, words, lengths, out, at)
    out_offsets[bounds.size - 1] = at


@byte_kernel_part
def _difference(left: Any, start: Any, stop: Any, right: Any, first: Any, last: Any) -> Any:
    """Below 0: the left key comes before the right one; 0: they are the same."""
    length = min(stop - start, last - first)
    for index in range(length):
        a, b = np.int64(left[start + index]), np.int64(right[first + index])
        if a != b:
            return a - b
    return np.int64((stop - start) - (last - first))


@byte_kernel(types.int64(_IN_U8, _IN_I64, _IN_I64, _IN_I64, _IN_I64, _IN_I64, _IN_U8, _IN_I64, _I64))
def match(
    data: Any,
    offsets: Any,
    order: Any,
    starts: Any,
    firsts: Any,
    counts: Any,
    known_data: Any,
    known_offsets: Any,
    positions: Any,
) -> int:
    """Positions of keys among the known ones of their group, -1: it is none; returns how many were found.

    Keys of group g are those that ``order`` lists from ``starts[g]`` to ``starts[g + 1]``, the known ones ``counts[g]``
    from ``firsts[g]`` on; both ascend. The positions are in this order.
    """
    found = 0
    for group in range(starts.size - 1):
        known, stop = firsts[group], firsts[group] + counts[group]
        for entry in range(starts[group], starts[group + 1]):
            positions[entry] = -1
            key = order[entry]
            while known < stop:
                difference = _difference(
                    known_data,
                    known_offsets[known],
                    known_offsets[known + 1],
                    data,
                    offsets[key],
                    offsets[key + 1],
                )
                if difference >= 0:
                    if difference == 0:
                        positions[entry] = known - firsts[group]
                        found += 1
                    break
                known += 1
    return found


@byte_kernel(types.void(_IN_U8, _IN_I64, _I64))
def find_references(data: Any, offsets: Any, references: Any) -> None:
    """The end of the pane whose keys each row has; ``NO_REFERENCE_MS``: it has its own only."""
    for row in range(offsets.size - 1):
        start = offsets[row]
        references[row] = NO_REFERENCE_MS
        long_enough = offsets[row + 1] - start >= HEADER_BYTES + REFERENCE_BYTES
        if long_enough and data[start] == VERSION and data[start + 1] & REFERS:
            references[row] = np.int64(get(data, start + HEADER_BYTES, 8))


@byte_kernel(types.int64(_IN_U8, _IN_I64, types.int64, _I64))
def measure(data: Any, offsets: Any, cell_count: Any, totals: Any) -> int:
    """Add up entries, bytes of keys and the longest row's entries into ``totals``.

    Returns the first row that is too short or long, of another version, or of another number of cells; -1: none is.
    """
    for row in range(offsets.size - 1):
        start = offsets[row]
        if offsets[row + 1] - start < HEADER_BYTES or not 0 < data[start] <= VERSION:
            return row
        count = np.int64(get(data, start + 2, 2))
        if not 0 < count <= ROW_ENTRIES_MAX or np.int64(get(data, start + 4, 2)) != cell_count:
            return row
        totals[0] += count
        totals[1] += np.int64(get(data, start + 6, 4))
        totals[2] = max(totals[2], count)
    return -1


@byte_kernel_part
def _take_cells(
    data: Any,
    at: Any,
    stop: Any,
    version: Any,
    flags: Any,
    entry: Any,
    count: Any,
    words: Any,
    cells: Any,
    presence: Any,
) -> Any:
    """Read presence and cells of ``count`` entries from ``entry`` on; returns where they end, -1: they do not fit."""
    presence_bytes = presence.shape[1]
    step = presence_bytes if flags & PRESENCE_DIFFERS else 0
    if at + presence_bytes + (count - 1) * step > stop:
        return np.int64(-1)
    for number in range(count):
        for index in range(presence_bytes):
            presence[entry + number, index] = data[at + number * step + index]
    at += presence_bytes + (count - 1) * step
    for cell in range(cells.shape[1]):
        at = take_column(data, at, stop, version, entry, count, cell, words, cells)
        if at < 0:
            return np.int64(-1)
    return np.int64(at)


@byte_kernel(
    types.int64(_IN_U8, _IN_I64, _U64, _IN_U8, _IN_I64, _IN_I64, _IN_I64, _U8, _I64, _I64_2D, _U8_2D, _I64)
)
def unpack(
    data: Any,
    offsets: Any,
    words: Any,
    known_data: Any,
    known_offsets: Any,
    firsts: Any,
    known_counts: Any,
    keys: Any,
    key_offsets: Any,
    cells: Any,
    presence: Any,
    counts: Any,
) -> int:
    """All entries of rows; ``key_offsets`` begins with 0, ``counts`` gets the entries of each row.

    The keys that a row may refer to are ``known_counts[row]`` known ones from ``firsts[row]`` on. Without room for
    cells, keys alone are read. Returns the first row whose bytes do not fit; -1: there is none.
    """
    entry = np.int64(0)
    for row in range(offsets.size - 1):
        at, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        version, flags = data[at], data[at + 1]
        count = np.int64(get(data, at + 2, 2))
        key_stop = key_offsets[entry] + np.int64(get(data, at + 6, 4))
        at += HEADER_BYTES
        counts[row] = count
        referred = np.int64(0)
        if version > 1 and flags & REFERS:
            if at + REFERENCE_BYTES > stop:
                return row
            referred = np.int64(get(data, at + 8, 2))
            if not 0 < referred <= count:
                return row
            at = take_reference(
                data,
                at,
                stop,
                entry,
                referred,
                key_stop,
                words,
                known_data,
                known_offsets,
                firsts[row],
                known_counts[row],
                keys,
                key_offsets,
            )
        if at >= 0 and referred < count:
            own = entry + referred
            if flags & KEYS_ARE_INTEGERS:
                at = take_integers(data, at, stop, own, count - referred, key_stop, words, keys, key_offsets)
            else:
                at = take_keys(data, at, stop, own, count - referred, key_stop, keys, key_offsets)
        if at < 0 or key_offsets[entry + count] != key_stop:
            return row
        if cells.shape[0]:
            at = _take_cells(data, at, stop, version, flags, entry, count, words, cells, presence)
            if at != stop:
                return row
        entry += count
    return -1
