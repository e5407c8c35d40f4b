"""Compiled loops over rows that a join holds in memory: file them by key, match, and to bytes and back.

Common arguments, of the rows that are held: ``hashes`` (uint64), ``key_data`` and ``key_offsets`` (their keys),
``times``, ``lower`` and ``until`` (int64), ``heads`` and ``tails`` (int32, a power of two: by the lowest bits of a hash
the number of the row that came first, and last, plus one; 0: none) and ``nexts`` (int32, shape (rows,): of each row the
one after it, plus one). ``new_*`` are the same of the rows that come.

The bytes of a row: its length (4, all included), that of its key (4), event time, ``lower`` and ``until`` (8 each), its
key, its columns (``row_codec``); integers are little endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import byte_kernel, byte_kernel_part
from weir.kernels.kernel_types import input_array

#: Of a row, before its key.
HEAD_BYTES = 32


_U8, _U64, _I32, _I64 = (input_array(each) for each in (types.uint8, types.uint64, types.int32, types.int64))
_OUT_U8, _OUT_I32, _OUT_I64 = types.uint8[::1], types.int32[::1], types.int64[::1]
_INT = types.int64
_ROWS = (_U64, _U8, _I64, input_array(types.int64, 2))


@byte_kernel(types.void(_U64, _INT, _OUT_I32, _OUT_I32, _OUT_I32))
def file_rows(hashes: Any, first: Any, heads: Any, tails: Any, nexts: Any) -> None:
    """File the rows from ``first`` on."""
    mask = np.uint64(heads.size - 1)
    for row in range(first, hashes.size):
        place = hashes[row] & mask
        nexts[row] = 0
        last = tails[place]
        if last:
            nexts[last - 1] = row + 1
        else:
            heads[place] = row + 1
        tails[place] = row + 1


@byte_kernel_part
def _is_equal(data: Any, offsets: Any, row: Any, other_data: Any, other_offsets: Any, other: Any) -> Any:
    start, other_start = offsets[row], other_offsets[other]
    length = offsets[row + 1] - start
    if other_offsets[other + 1] - other_start != length:
        return False
    index = 0
    while index < length and data[start + index] == other_data[other_start + index]:
        index += 1
    return index == length


@byte_kernel(
    types.int64(*_ROWS, *_ROWS, _I32, _I32, types.boolean, _INT, _INT, types.int64[:, ::1], _OUT_I64)
)
def match(
    new_hashes: Any,
    new_key_data: Any,
    new_key_offsets: Any,
    new_numbers: Any,
    hashes: Any,
    key_data: Any,
    key_offsets: Any,
    numbers: Any,
    heads: Any,
    nexts: Any,
    is_point: Any,
    first: Any,
    first_held: Any,
    found: Any,
    left_off: Any,
) -> int:
    """Pairs of new rows and rows that are held, from a new row on, as many as there is room for; returns how many.

    ``numbers``: times, ``lower`` and ``until``, one below the other. ``is_point``: the new rows have intervals, those
    that are held have times; else it is the other way round. ``first`` and ``first_held``: the new row, and the row
    that is held, plus one, to begin with (-1: with its first one). ``found``: the pairs, numbers of new rows above
    those of held ones, by the new row, then as held ones came. ``left_off``: where to go on.
    """
    mask = np.uint64(heads.size - 1)
    count = 0
    for row in range(first, new_hashes.size):
        entry = np.int64(heads[new_hashes[row] & mask])
        if row == first and first_held >= 0:
            entry = first_held
        while entry:
            held = entry - 1
            if hashes[held] == new_hashes[row]:
                if is_point:
                    belongs = new_numbers[1, row] <= numbers[0, held] <= new_numbers[2, row]
                else:
                    belongs = numbers[1, held] <= new_numbers[0, row] <= numbers[2, held]
                if belongs and _is_equal(new_key_data, new_key_offsets, row, key_data, key_offsets, held):
                    if count == found.shape[1]:
                        left_off[0], left_off[1] = row, entry
                        return count
                    found[0, count] = row
                    found[1, count] = held
                    count += 1
            entry = np.int64(nexts[held])
    left_off[0], left_off[1] = new_hashes.size, 0
    return count


@byte_kernel_part
def _put(out: Any, at: Any, value: Any, width: Any) -> None:
    rest = np.uint64(value)
    for index in range(width):
        out[at + index] = rest & np.uint64(255)
        rest >>= np.uint64(8)


@byte_kernel_part
def _get(data: Any, at: Any, width: Any) -> Any:
    value = np.uint64(0)
    for index in range(width):
        value |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return np.int64(value)


@byte_kernel(types.void(_I64, _U8, _I64, _I64, _I64, _I64, _U8, _I64, _I64, _OUT_U8))
def encode_rows(
    rows: Any,
    key_data: Any,
    key_offsets: Any,
    times: Any,
    lower: Any,
    until: Any,
    data: Any,
    offsets: Any,
    out_offsets: Any,
    out: Any,
) -> None:
    """Write these rows, by their numbers; row i of them is ``out[out_offsets[i]:out_offsets[i + 1]]``."""
    for index in range(rows.size):
        row, at = rows[index], out_offsets[index]
        key_start, start = key_offsets[row], offsets[row]
        key_length, length = key_offsets[row + 1] - key_start, offsets[row + 1] - start
        _put(out, at, HEAD_BYTES + key_length + length, 4)
        _put(out, at + 4, key_length, 4)
        _put(out, at + 8, times[row], 8)
        _put(out, at + 16, lower[row], 8)
        _put(out, at + 24, until[row], 8)
        at += HEAD_BYTES
        for place in range(key_length):
            out[at + place] = key_data[key_start + place]
        at += key_length
        for place in range(length):
            out[at + place] = data[start + place]


@byte_kernel(types.int64(_U8, _OUT_I64, _OUT_I64, _OUT_I64, _OUT_I64, _OUT_I64))
def decode_rows(data: Any, starts: Any, key_lengths: Any, times: Any, lower: Any, until: Any) -> int:
    """Find rows one after the other; returns how many there are, -1 if the bytes are not those of rows.

    ``starts`` (one longer than the others): where each begins, and the last one ends.
    """
    at = np.int64(0)
    count = 0
    while at < data.size:
        if data.size - at < HEAD_BYTES or count == times.size:
            return -1
        length, key_length = _get(data, at, 4), _get(data, at + 4, 4)
        if length < HEAD_BYTES + key_length or length > data.size - at:
            return -1
        starts[count], key_lengths[count] = at, key_length
        times[count], lower[count] = _get(data, at + 8, 8), _get(data, at + 16, 8)
        until[count] = _get(data, at + 24, 8)
        count += 1
        at += length
    starts[count] = at
    return count
