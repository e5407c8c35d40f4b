"""Compiled loops over packed rows of panes; ``weir.state.tables.packed_rows`` has their bytes, and alone calls them.

All integers are little endian. Bits of an array of numbers of ``width`` bits go from the lowest bit of a byte to its
highest one, and on in the next byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels import kernel, kernel_part

VERSION = 1
#: Version, flags, number of entries (2 bytes), of cells (2 bytes), bytes of all keys (4 bytes).
HEADER_BYTES = 10
#: Flags: all keys have eight bytes, in ascending order; entries differ in which cells have a value.
KEYS_ARE_INTEGERS, PRESENCE_DIFFERS = 1, 2
#: Before the numbers of a cell: the base (8 bytes), the shift, the width.
COLUMN_BYTES = 10
#: Before the numbers of integer keys: the first key, the width.
INTEGERS_BYTES = 9
#: Entries of a row: it stays below the size of other writes.
ROW_ENTRIES_MAX = 4_096
#: Wider numbers take eight bytes.
_WIDTH_MAX = 56


def _input(dtype: Any, dimensions: int = 1) -> Any:
    return types.Array(dtype, dimensions, "C", readonly=True, aligned=False)


_IN_U8, _IN_I64 = _input(types.uint8), _input(types.int64)
_IN_I64_2D, _IN_U8_2D = _input(types.int64, 2), _input(types.uint8, 2)
_U8, _I64, _U64 = types.uint8[::1], types.int64[::1], types.uint64[::1]
_I64_2D, _U8_2D = types.int64[:, ::1], types.uint8[:, ::1]

_BYTE = np.uint64(0xFF)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@kernel_part
def _put(out: Any, at: Any, value: Any, count: Any) -> Any:
    word = np.uint64(value)
    for index in range(count):
        out[at + index] = np.uint8(word & _BYTE)
        word >>= _EIGHT
    return at + count


@kernel_part
def _get(data: Any, at: Any, count: Any) -> Any:
    word = _ZERO
    for index in range(count):
        word |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return word


@kernel_part
def _width_of(word: Any) -> Any:
    width = 0
    while word:
        width += 1
        word >>= _ONE
    return 64 if width > _WIDTH_MAX else width


@kernel_part
def packed_bytes(count: Any, width: Any) -> Any:
    """Bytes of so many numbers of this width."""
    return (count * width + 7) >> 3


@kernel_part
def _put_bits(values: Any, first: Any, stop: Any, width: Any, out: Any, at: Any) -> Any:
    """Append ``values[first:stop]``; returns where they end."""
    if width == 64:
        for index in range(first, stop):
            at = _put(out, at, values[index], 8)
        return at
    held, bits = _ZERO, 0
    for index in range(first, stop):
        held |= values[index] << np.uint64(bits)
        bits += width
        while bits >= 8:
            out[at] = np.uint8(held & _BYTE)
            held >>= _EIGHT
            bits -= 8
            at += 1
    if bits:
        out[at] = np.uint8(held & _BYTE)
        at += 1
    return at


@kernel_part
def _get_bits(data: Any, at: Any, width: Any, values: Any, count: Any) -> Any:
    """Read ``count`` numbers; returns where they end."""
    if width == 64:
        for index in range(count):
            values[index] = _get(data, at, 8)
            at += 8
        return at
    mask = (_ONE << np.uint64(width)) - _ONE
    held, bits = _ZERO, 0
    for index in range(count):
        while bits < width:
            held |= np.uint64(data[at]) << np.uint64(bits)
            bits += 8
            at += 1
        values[index] = held & mask
        held >>= np.uint64(width)
        bits -= width
    return at


@kernel_part
def _put_length(out: Any, at: Any, length: Any) -> Any:
    """Seven bits in a byte; the upper bit says that more follow."""
    while length >= 128:
        out[at] = np.uint8((length & 127) | 128)
        length >>= 7
        at += 1
    out[at] = np.uint8(length)
    return at + 1


@kernel_part
def _big_endian(data: Any, start: Any) -> Any:
    word = _ZERO
    for index in range(start, start + 8):
        word = (word << _EIGHT) | np.uint64(data[index])
    return word


@kernel_part
def _put_keys(data: Any, offsets: Any, first: Any, stop: Any, out: Any, at: Any) -> Any:
    """Each key as what it shares with the one before, and the rest."""
    for entry in range(first, stop):
        start, end = offsets[entry], offsets[entry + 1]
        shared = 0
        if entry > first:
            before = offsets[entry - 1]
            most = min(start - before, end - start)
            while shared < most and data[before + shared] == data[start + shared]:
                shared += 1
        at = _put_length(out, at, shared)
        at = _put_length(out, at, end - start - shared)
        for index in range(start + shared, end):
            out[at] = data[index]
            at += 1
    return at


@kernel_part
def _put_integers(data: Any, offsets: Any, first: Any, stop: Any, words: Any, out: Any, at: Any) -> Any:
    """The first key, and how far each of the others is from the one before."""
    before = _big_endian(data, offsets[first])
    at = _put(out, at, before, 8)
    all_bits = _ZERO
    for entry in range(first + 1, stop):
        word = _big_endian(data, offsets[entry])
        words[entry - first] = word - before
        all_bits |= word - before
        before = word
    width = _width_of(all_bits)
    out[at] = width
    return _put_bits(words, 1, stop - first, width, out, at + 1)


@kernel_part
def _put_column(cells: Any, cell: Any, first: Any, stop: Any, words: Any, out: Any, at: Any) -> Any:
    """One cell of all entries: what each is above the least, without the bits that are zero in all of them."""
    least = cells[first, cell]
    for entry in range(first, stop):
        least = min(least, cells[entry, cell])
    all_bits = _ZERO
    for entry in range(first, stop):
        word = np.uint64(cells[entry, cell]) - np.uint64(least)
        words[entry - first] = word
        all_bits |= word
    shift = 0
    while all_bits and not all_bits & _ONE:
        all_bits >>= _ONE
        shift += 1
    width = _width_of(all_bits)
    if shift:
        for index in range(stop - first):
            words[index] >>= np.uint64(shift)
    at = _put(out, at, np.uint64(least), 8)
    out[at], out[at + 1] = shift, width
    return _put_bits(words, 0, stop - first, width, out, at + 2)


@kernel(
    types.void(_IN_U8, _IN_I64, _IN_I64, types.int64, _IN_I64_2D, _IN_U8_2D, _U64, _U8, _I64),
)
def pack(
    data: Any,
    offsets: Any,
    bounds: Any,
    are_integers: Any,
    cells: Any,
    presence: Any,
    words: Any,
    out: Any,
    out_offsets: Any,
) -> None:
    """Rows of the entries between ``bounds``, none of them empty, one after the other.

    ``words`` has room for the entries of the longest row, ``out`` for everything.
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
        out[at], out[at + 1] = VERSION, (KEYS_ARE_INTEGERS if are_integers else 0) | differs
        at = _put(out, at + 2, stop - first, 2)
        at = _put(out, at, cell_count, 2)
        at = _put(out, at, offsets[stop] - offsets[first], 4)
        if are_integers:
            at = _put_integers(data, offsets, first, stop, words, out, at)
        else:
            at = _put_keys(data, offsets, first, stop, out, at)
        for entry in range(first, stop if differs else first + 1):
            for index in range(presence.shape[1]):
                out[at] = presence[entry, index]
                at += 1
        for cell in range(cell_count):
            at = _put_column(cells, cell, first, stop, words, out, at)
    out_offsets[bounds.size - 1] = at


@kernel(types.int64(_IN_U8, _IN_I64, types.int64, _I64))
def measure(data: Any, offsets: Any, cell_count: Any, totals: Any) -> int:
    """Add up entries, bytes of keys and the longest row's entries into ``totals``.

    Returns the first row that is too short or long, of another version, or of another number of cells; -1: none is.
    """
    for row in range(offsets.size - 1):
        start = offsets[row]
        if offsets[row + 1] - start < HEADER_BYTES or data[start] != VERSION:
            return row
        count = np.int64(_get(data, start + 2, 2))
        if not 0 < count <= ROW_ENTRIES_MAX or np.int64(_get(data, start + 4, 2)) != cell_count:
            return row
        totals[0] += count
        totals[1] += np.int64(_get(data, start + 6, 4))
        totals[2] = max(totals[2], count)
    return -1


@kernel_part
def _take_length(data: Any, at: Any, stop: Any) -> Any:
    """A length and where it ends; -1: beyond the row."""
    length, bits = np.int64(0), 0
    while at < stop and bits < 35:
        byte = np.int64(data[at])
        at += 1
        length |= (byte & 127) << bits
        if byte < 128:
            return length, at
        bits += 7
    return np.int64(0), np.int64(-1)


@kernel_part
def _take_keys(
    data: Any, at: Any, stop: Any, entry: Any, count: Any, key_stop: Any, keys: Any, offsets: Any
) -> Any:
    for number in range(entry, entry + count):
        shared, at = _take_length(data, at, stop)
        if at < 0:
            return np.int64(-1)
        rest, at = _take_length(data, at, stop)
        position = offsets[number]
        if at < 0 or at + rest > stop or position + shared + rest > key_stop:
            return np.int64(-1)
        if shared and (number == entry or shared > position - offsets[number - 1]):
            return np.int64(-1)
        for index in range(shared):
            keys[position + index] = keys[offsets[number - 1] + index]
        for index in range(rest):
            keys[position + shared + index] = data[at + index]
        at += rest
        offsets[number + 1] = position + shared + rest
    return at


@kernel_part
def _take_integers(
    data: Any, at: Any, stop: Any, entry: Any, count: Any, key_stop: Any, words: Any, keys: Any, offsets: Any
) -> Any:
    if at + INTEGERS_BYTES > stop or offsets[entry] + 8 * count > key_stop:
        return np.int64(-1)
    word, width = _get(data, at, 8), np.int64(data[at + 8])
    at += INTEGERS_BYTES
    if width > 64 or at + packed_bytes(count - 1, width) > stop:
        return np.int64(-1)
    at = _get_bits(data, at, width, words, count - 1)
    for number in range(count):
        if number:
            word += words[number - 1]
        position = offsets[entry + number]
        for index in range(8):
            keys[position + index] = np.uint8((word >> np.uint64(56 - 8 * index)) & _BYTE)
        offsets[entry + number + 1] = position + 8
    return at


@kernel(types.int64(_IN_U8, _IN_I64, _U64, _U8, _I64, _I64_2D, _U8_2D, _I64))
def unpack(
    data: Any, offsets: Any, words: Any, keys: Any, key_offsets: Any, cells: Any, presence: Any, counts: Any
) -> int:
    """All entries of rows; ``key_offsets`` begins with 0, ``counts`` gets the entries of each row.

    Returns the first row whose bytes do not fit; -1: there is none.
    """
    cell_count, presence_bytes = cells.shape[1], presence.shape[1]
    entry = np.int64(0)
    for row in range(offsets.size - 1):
        at, stop = offsets[row], offsets[row + 1]
        flags = data[at + 1]
        count = np.int64(_get(data, at + 2, 2))
        key_stop = key_offsets[entry] + np.int64(_get(data, at + 6, 4))
        at += HEADER_BYTES
        counts[row] = count
        if flags & KEYS_ARE_INTEGERS:
            at = _take_integers(data, at, stop, entry, count, key_stop, words, keys, key_offsets)
        else:
            at = _take_keys(data, at, stop, entry, count, key_stop, keys, key_offsets)
        if at < 0 or key_offsets[entry + count] != key_stop:
            return row
        step = presence_bytes if flags & PRESENCE_DIFFERS else 0
        if at + presence_bytes + (count - 1) * step > stop:
            return row
        for number in range(count):
            for index in range(presence_bytes):
                presence[entry + number, index] = data[at + number * step + index]
        at += presence_bytes + (count - 1) * step
        for cell in range(cell_count):
            if at + COLUMN_BYTES > stop:
                return row
            least, shift, width = _get(data, at, 8), np.uint64(data[at + 8]), np.int64(data[at + 9])
            at += COLUMN_BYTES
            if width > 64 or shift > np.uint64(63) or at + packed_bytes(count, width) > stop:
                return row
            at = _get_bits(data, at, width, words, count)
            for number in range(count):
                cells[entry + number, cell] = np.int64(least + (words[number] << shift))
        if at != stop:
            return row
        entry += count
    return -1
