"""Parts of kernels for one cell of the entries of a packed row; ``weir.state.tables.panes.packed_rows`` has the bytes.

A cell is written in the form that takes the fewest bits: what each is above the least, without the bits that are zero
in all of them; how far each is from their mean; or how far it is from a multiple of the entry's first cell, which is
often a number of rows of which this is a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weir.kernels.declare import byte_kernel_part
from weir.state.tables.panes.number_kernels import (
    choose_code,
    folded,
    get,
    put_numbers,
    put_signed,
    take_numbers,
    take_signed,
    unfolded,
)

#: Bits of the form: around a base, not above it; a multiple of the first cell is taken away.
AROUND, SLOPES = 1, 2
#: What a cell takes at most besides its numbers: form, slope and base, shift, code.
COLUMN_BYTES = 23
#: Of version 1: the base (8 bytes), the shift, the width.
_COLUMN_BYTES_1 = 10
#: Beyond, means and slopes of numbers are not exact, and are not used.
_MEAN_MAX = 2.0**62
_SLOPE_MAX = 2.0**40
#: Bits that a slope has to save.
_SLOPE_BITS = 32
#: Ways to write a cell: above the least, around the mean, and that with a slope, the last one.
_WAYS, _WITH_SLOPE = 3, 2

_ZERO, _ONE = np.uint64(0), np.uint64(1)


@byte_kernel_part
def _slope(cells: Any, cell: Any, first: Any, stop: Any) -> Any:
    """By how much a cell grows with the first one, about; 0: it is not known."""
    total, of_first = 0.0, 0.0
    for entry in range(first, stop):
        total += np.float64(cells[entry, cell])
        of_first += np.float64(cells[entry, 0])
    if of_first == 0.0:
        return np.int64(0)
    slope = np.rint(total / of_first)
    return np.int64(slope) if abs(slope) < _SLOPE_MAX else np.int64(0)


@byte_kernel_part
def _above_least(cells: Any, cell: Any, first: Any, stop: Any, words: Any) -> Any:
    """Fill ``words``; returns the least value and the shift."""
    least = cells[first, cell]
    for entry in range(first, stop):
        least = min(least, cells[entry, cell])
    all_bits = _ZERO
    for entry in range(first, stop):
        word = np.uint64(cells[entry, cell]) - np.uint64(least)
        words[entry - first] = word
        all_bits |= word
    shift = np.int64(0)
    while all_bits and not all_bits & _ONE:
        all_bits >>= _ONE
        shift += 1
    if shift:
        for index in range(stop - first):
            words[index] >>= np.uint64(shift)
    return least, shift


@byte_kernel_part
def _around_mean(cells: Any, cell: Any, first: Any, stop: Any, slope: Any, words: Any) -> Any:
    """Fill ``words``; returns the base."""
    total = 0.0
    for entry in range(first, stop):
        word = np.uint64(cells[entry, cell]) - np.uint64(slope) * np.uint64(cells[entry, 0])
        words[entry - first] = word
        total += np.float64(np.int64(word))
    mean = np.rint(total / (stop - first))
    base = np.int64(mean) if abs(mean) < _MEAN_MAX else np.int64(0)
    for index in range(stop - first):
        words[index] = folded(np.int64(words[index] - np.uint64(base)))
    return base


@byte_kernel_part
def put_column(
    cells: Any, cell: Any, first: Any, stop: Any, words: Any, lengths: Any, out: Any, at: Any
) -> Any:
    """Append one cell of all entries; returns where it ends."""
    count = stop - first
    slope = _slope(cells, cell, first, stop) if cell else np.int64(0)
    base, shift, code = np.int64(0), np.int64(0), np.int64(0)
    chosen, least_bits = np.int64(0), np.int64(1) << np.int64(62)
    # Each way, and then once more the one that was chosen.
    for attempt in range(_WAYS + 1):
        way = np.int64(attempt) if attempt < _WAYS else chosen
        if way == _WITH_SLOPE and slope == 0:
            continue
        if way == 0:
            base, shift = _above_least(cells, cell, first, stop, words)
        else:
            shift = np.int64(0)
            taken = slope if way == _WITH_SLOPE else np.int64(0)
            base = _around_mean(cells, cell, first, stop, taken, words)
        code, bits = choose_code(words, count, lengths)
        bits += _SLOPE_BITS if way == _WITH_SLOPE else 0
        if bits < least_bits:
            chosen, least_bits = way, bits
    form = np.int64(AROUND) if chosen else np.int64(0)
    if chosen == _WITH_SLOPE:
        form |= SLOPES
    out[at] = form
    at += 1
    if form & SLOPES:
        at = put_signed(out, at, slope)
    at = put_signed(out, at, base)
    out[at], out[at + 1] = shift, code
    return put_numbers(words, 0, count, code, out, at + 2)


@byte_kernel_part
def take_column(
    data: Any, at: Any, stop: Any, version: Any, entry: Any, count: Any, cell: Any, words: Any, cells: Any
) -> Any:
    """Read one cell of ``count`` entries from ``entry`` on; returns where it ends, -1: its bytes do not fit."""
    form, slope, base = np.int64(0), _ZERO, _ZERO
    if version == 1:
        if at + _COLUMN_BYTES_1 > stop:
            return np.int64(-1)
        base = get(data, at, 8)
        at += 8
    else:
        if at >= stop:
            return np.int64(-1)
        form = np.int64(data[at])
        at += 1
        if form & SLOPES:
            slope, at = take_signed(data, at, stop)
        if at >= 0:
            base, at = take_signed(data, at, stop)
    if at < 0 or at + 2 > stop:
        return np.int64(-1)
    shift, code = np.uint64(data[at]), np.int64(data[at + 1])
    if shift > np.uint64(63) or form > AROUND | SLOPES:
        return np.int64(-1)
    at = take_numbers(data, at + 2, stop, code, words, count)
    for number in range(count if at >= 0 else 0):
        word = unfolded(words[number]) if form & AROUND else words[number] << shift
        word += base
        if form & SLOPES:
            word += slope * np.uint64(cells[entry + number, 0])
        cells[entry + number, cell] = np.int64(word)
    return np.int64(at)
