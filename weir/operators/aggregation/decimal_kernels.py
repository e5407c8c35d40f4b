"""Compiled loops of aggregates over decimals; for running aggregates and for windows. Called by ``decimal_folds`` only.

A decimal is an integer of 128 bits in two columns of int64: its low bits, then its high ones. Common arguments:

- ``slots``: int32, shape (rows,): whose accumulators a row updates. ``cells``: int64, shape (capacity, cells);
  ``cell``: the first column of the accumulator. ``presence``, ``byte``, ``bit``: where the flag "has had a value" is.
- ``values``: int64, shape (rows, 2); ``valid``: uint8, shape (rows,), 0 for rows that do not count; or of length 0.
- ``out``, ``out_valid``: int64, shape (rows, 2), and uint8: the result after each row; of length 0: not wanted.
- ``index``: int64, shape (entries,): which of the ``into`` accumulators an entry goes to; -1: none.

Sums and means return the row or entry that passed 38 digits, or -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel, kernel_part
from weir.kernels.kernel_types import input_array

_SLOTS, _VALID, _INDEX = input_array(types.int32), input_array(types.uint8), input_array(types.int64)
_VALUES, _COUNTS, _PRESENCE_IN = (
    input_array(types.int64, 2),
    input_array(types.int64),
    input_array(types.uint8, 2),
)
_CELLS, _PRESENCE = types.int64[:, ::1], types.uint8[:, ::1]
_INT, _BIT, _FLAG = types.int64, types.uint8, types.boolean
_OUT, _OUT_VALID = types.int64[:, ::1], types.uint8[::1]

#: 10**38 and -10**38, and 10**37: a decimal has up to 38 digits.
_HIGH, _LOW = (
    part(value) for part, value in zip((np.int64, np.uint64), divmod(10**38, 1 << 64), strict=True)
)
_HIGH_BELOW, _LOW_BELOW = (
    part(value) for part, value in zip((np.int64, np.uint64), divmod(-(10**38), 1 << 64), strict=True)
)


@kernel_part
def _fits(low: Any, high: Any) -> Any:
    """Whether a number has up to 38 digits. Two that have it do not pass 128 bits so that their sum seemed to fit."""
    if high >= 0:
        return high < _HIGH or (high == _HIGH and low < _LOW)
    return high > _HIGH_BELOW or (high == _HIGH_BELOW and low > _LOW_BELOW)


@kernel_part
def _add(cells: Any, slot: Any, cell: Any, low: Any, high: Any) -> bool:
    """Add to an accumulator; False, and nothing has changed: it would pass 38 digits."""
    total_low = np.uint64(cells[slot, cell]) + np.uint64(low)
    carry = np.int64(1) if total_low < np.uint64(low) else np.int64(0)
    total_high = cells[slot, cell + 1] + high + carry
    if not _fits(total_low, total_high):
        return False
    cells[slot, cell] = np.int64(total_low)
    cells[slot, cell + 1] = total_high
    return True


@kernel_part
def _is_better(low: Any, high: Any, best_low: Any, best_high: Any, largest: Any) -> Any:
    if high != best_high:
        return (high > best_high) == largest
    return np.uint64(low) != np.uint64(best_low) and (np.uint64(low) > np.uint64(best_low)) == largest


@kernel(types.int64(_SLOTS, _CELLS, _INT, _PRESENCE, _INT, _BIT, _VALUES, _VALID, _OUT, _OUT_VALID))
def add(
    slots: Any,
    cells: Any,
    cell: Any,
    presence: Any,
    byte: Any,
    bit: Any,
    values: Any,
    valid: Any,
    out: Any,
    out_valid: Any,
) -> int:
    """Sum, checked."""
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            if not _add(cells, slot, cell, values[row, 0], values[row, 1]):
                return row
            presence[slot, byte] |= bit
        if out_valid.size:
            out[row, 0], out[row, 1] = cells[slot, cell], cells[slot, cell + 1]
            out_valid[row] = (presence[slot, byte] & bit) != 0
    return -1


@kernel(types.void(_SLOTS, _CELLS, _INT, _PRESENCE, _INT, _BIT, _VALUES, _VALID, _FLAG, _OUT, _OUT_VALID))
def extreme(
    slots: Any,
    cells: Any,
    cell: Any,
    presence: Any,
    byte: Any,
    bit: Any,
    values: Any,
    valid: Any,
    largest: Any,
    out: Any,
    out_valid: Any,
) -> None:
    """Minimum or maximum."""
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            low, high = values[row, 0], values[row, 1]
            absent = (presence[slot, byte] & bit) == 0
            if absent or _is_better(low, high, cells[slot, cell], cells[slot, cell + 1], largest):
                cells[slot, cell], cells[slot, cell + 1] = low, high
                presence[slot, byte] |= bit
        if out_valid.size:
            out[row, 0], out[row, 1] = cells[slot, cell], cells[slot, cell + 1]
            out_valid[row] = (presence[slot, byte] & bit) != 0


@kernel(types.int64(_SLOTS, _CELLS, _INT, _VALUES, _VALID, _OUT, types.int64[::1]))
def add_counted(slots: Any, cells: Any, cell: Any, values: Any, valid: Any, out: Any, out_counts: Any) -> int:
    """Sum, checked, and the number of values, in the third column."""
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            if not _add(cells, slot, cell, values[row, 0], values[row, 1]):
                return row
            cells[slot, cell + 2] += 1
        if out_counts.size:
            out[row, 0], out[row, 1] = cells[slot, cell], cells[slot, cell + 1]
            out_counts[row] = cells[slot, cell + 2]
    return -1


@kernel(types.int64(_INDEX, _VALUES, _INT, _CELLS))
def merge(index: Any, cells: Any, cell: Any, into: Any) -> int:
    """Add up sums, checked."""
    for entry in range(index.size):
        if index[entry] >= 0 and not _add(
            into, index[entry], cell, cells[entry, cell], cells[entry, cell + 1]
        ):
            return entry
    return -1


@kernel(types.void(_INDEX, _VALUES, _PRESENCE_IN, _INT, _INT, _BIT, _FLAG, _CELLS, _PRESENCE))
def merge_extreme(
    index: Any,
    cells: Any,
    presence: Any,
    cell: Any,
    byte: Any,
    bit: Any,
    largest: Any,
    into: Any,
    into_presence: Any,
) -> None:
    """Minimum or maximum of accumulators; presence is merged here as well."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0 and (presence[entry, byte] & bit) != 0:
            low, high = cells[entry, cell], cells[entry, cell + 1]
            absent = (into_presence[target, byte] & bit) == 0
            if absent or _is_better(low, high, into[target, cell], into[target, cell + 1], largest):
                into[target, cell], into[target, cell + 1] = low, high
                into_presence[target, byte] |= bit


@kernel(types.int64(_OUT, _COUNTS, _INT))
def divide(sums: Any, counts: Any, digits: Any) -> int:
    """Make sums means, in place, with so many further digits, rounded half away from zero.

    Counts are below 2**59; a sum whose count is 0 stays.
    """
    for row in range(counts.size):
        count = np.uint64(counts[row])
        if count == 0:
            continue
        low, high = np.uint64(sums[row, 0]), sums[row, 1]
        negative = high < 0
        top = np.uint64(high)
        if negative:
            low = ~low + np.uint64(1)
            top = ~top + (np.uint64(1) if low == 0 else np.uint64(0))
        # Long division, bit by bit: the remainder stays below twice the count.
        rest = np.uint64(0)
        for _ in range(128):
            rest = (rest << np.uint64(1)) | (top >> np.uint64(63))
            top = (top << np.uint64(1)) | (low >> np.uint64(63))
            low = low << np.uint64(1)
            if rest >= count:
                rest -= count
                low |= np.uint64(1)
        for _ in range(digits):
            # Below 2**127, times ten: sixteen times too much would have to fit.
            if top >> np.uint64(60):
                return row
            rest *= np.uint64(10)
            digit = rest // count
            rest -= digit * count
            eight_top = (top << np.uint64(3)) | (low >> np.uint64(61))
            eight_low = low << np.uint64(3)
            two_top = (top << np.uint64(1)) | (low >> np.uint64(63))
            two_low = low << np.uint64(1)
            low = eight_low + two_low
            top = eight_top + two_top + (np.uint64(1) if low < eight_low else np.uint64(0))
            low += digit
            top += np.uint64(1) if low < digit else np.uint64(0)
            if not _fits(low, np.int64(top)):
                return row
        if rest * np.uint64(2) >= count:
            low += np.uint64(1)
            top += np.uint64(1) if low == 0 else np.uint64(0)
        if not _fits(low, np.int64(top)):
            return row
        if negative:
            low = ~low + np.uint64(1)
            top = ~top + (np.uint64(1) if low == 0 else np.uint64(0))
        sums[row, 0], sums[row, 1] = np.int64(low), np.int64(top)
    return -1
