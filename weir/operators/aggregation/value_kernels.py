"""Compiled loops of variance, first and last, and largest values; for running aggregates and for windows.

All kernels release the GIL, have explicit signatures and are cached on disk. Common arguments:

- ``slots``: int32, shape (rows,): whose accumulators a row updates. ``cells``: int64, shape (capacity, cells), and
  ``floats``: the same memory as float64; ``cell``: the first column of the accumulator.
- ``presence``, ``byte``, ``bit``: where the flag "has had a value" of that column is.
- ``values``: shape (rows,); ``valid``: uint8, shape (rows,), 0 for rows that do not count; or shape (0,), all count.
- ``out``, ``out_valid``: the result after each row, of running aggregates; of length 0: not wanted.
- ``index``: int64, shape (entries,): which of the ``into`` accumulators an entry goes to; -1: none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from weir.kernels.declare import kernel, kernel_part
from weir.kernels.kernel_types import input_array

_SLOTS, _VALID, _INDEX = input_array(types.int32), input_array(types.uint8), input_array(types.int64)
_INTS, _FLOATS = input_array(types.int64), input_array(types.float64)
_INT_CELLS, _FLOAT_CELLS, _PRESENCE = types.int64[:, ::1], types.float64[:, ::1], types.uint8[:, ::1]
_INT_CELLS_IN, _FLOAT_CELLS_IN = input_array(types.int64, 2), input_array(types.float64, 2)
_PRESENCE_IN = input_array(types.uint8, 2)
_INT, _BIT, _FLAG = types.int64, types.uint8, types.boolean
_OUT_INTS, _OUT_FLOATS, _OUT_VALID = types.int64[::1], types.float64[::1], types.uint8[::1]


@kernel(
    types.void(_SLOTS, _INT_CELLS, _FLOAT_CELLS, _INT, _FLOATS, _VALID, _INT, _FLAG, _OUT_FLOATS, _OUT_VALID)
)
def moments(
    slots: Any,
    cells: Any,
    floats: Any,
    cell: Any,
    values: Any,
    valid: Any,
    less: Any,
    root: Any,
    out: Any,
    out_valid: Any,
) -> None:
    """Number, mean and sum of squared differences from it, in three columns (Welford).

    ``less``: what the number of values is lessened by in the variance; ``root``: the result is the square root of it.
    """
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            count = cells[slot, cell] + 1
            cells[slot, cell] = count
            difference = values[row] - floats[slot, cell + 1]
            mean = floats[slot, cell + 1] + difference / count
            floats[slot, cell + 1] = mean
            floats[slot, cell + 2] += difference * (values[row] - mean)
        if out.size:
            divisor = cells[slot, cell] - less
            out_valid[row] = divisor > 0
            found = floats[slot, cell + 2] / max(divisor, 1)
            out[row] = np.sqrt(found) if root else found


@kernel(types.void(_INDEX, _INT_CELLS_IN, _FLOAT_CELLS_IN, _INT, _INT_CELLS, _FLOAT_CELLS))
def merge_moments(index: Any, cells: Any, floats: Any, cell: Any, into: Any, into_floats: Any) -> None:
    """Combine accumulators of :func:`moments` (Chan)."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0 and cells[entry, cell] > 0:
            count, before = cells[entry, cell], into[target, cell]
            total = count + before
            difference = floats[entry, cell + 1] - into_floats[target, cell + 1]
            into[target, cell] = total
            into_floats[target, cell + 1] += difference * (count / total)
            into_floats[target, cell + 2] += floats[entry, cell + 2] + difference * difference * (
                before * (count / total)
            )


@kernel(
    types.void(
        _SLOTS,
        _INT_CELLS,
        _INT,
        _PRESENCE,
        _INT,
        _BIT,
        _INTS,
        _INTS,
        _VALID,
        _FLAG,
        _OUT_INTS,
        _OUT_VALID,
    )
)
def by_time(
    slots: Any,
    cells: Any,
    cell: Any,
    presence: Any,
    byte: Any,
    bit: Any,
    values: Any,
    times: Any,
    valid: Any,
    latest: Any,
    out: Any,
    out_valid: Any,
) -> None:
    """The value (any 8 bytes) with the first or the last time, and that time, in two columns.

    Of rows with the same time the first one is the one that came first, and the last one the one that came last.
    """
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            time, best = times[row], cells[slot, cell + 1]
            better = time >= best if latest else time < best
            if better or (presence[slot, byte] & bit) == 0:
                cells[slot, cell] = values[row]
                cells[slot, cell + 1] = time
                presence[slot, byte] |= bit
        if out.size:
            out[row] = cells[slot, cell]
            out_valid[row] = (presence[slot, byte] & bit) != 0


@kernel(types.void(_INDEX, _INT_CELLS_IN, _PRESENCE_IN, _INT, _INT, _BIT, _FLAG, _INT_CELLS, _PRESENCE))
def merge_by_time(
    index: Any,
    cells: Any,
    presence: Any,
    cell: Any,
    byte: Any,
    bit: Any,
    latest: Any,
    into: Any,
    into_presence: Any,
) -> None:
    """Combine accumulators of :func:`by_time`."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0 and (presence[entry, byte] & bit) != 0:
            time, best = cells[entry, cell + 1], into[target, cell + 1]
            better = time >= best if latest else time < best
            if better or (into_presence[target, byte] & bit) == 0:
                into[target, cell] = cells[entry, cell]
                into[target, cell + 1] = time
                into_presence[target, byte] |= bit


@kernel_part
def _insert(counts: Any, values: Any, slot: Any, cell: Any, size: Any, value: Any) -> None:
    """Put a value among the largest ``size`` of a slot, which descend."""
    count = counts[slot, cell]
    if count == size and not value > values[slot, cell + size]:
        return
    if count < size:
        count += 1
        counts[slot, cell] = count
    place = count
    while place > 1 and values[slot, cell + place - 1] < value:
        values[slot, cell + place] = values[slot, cell + place - 1]
        place -= 1
    values[slot, cell + place] = value


_TOP = (_SLOTS, _INT_CELLS)


@kernel(
    types.void(*_TOP, _INT_CELLS, _INT, _INT, _INTS, _VALID, types.int64[:, ::1], _OUT_INTS),
    types.void(*_TOP, _FLOAT_CELLS, _INT, _INT, _FLOATS, _VALID, types.float64[:, ::1], _OUT_INTS),
)
def largest(
    slots: Any,
    counts: Any,
    values_kept: Any,
    cell: Any,
    size: Any,
    values: Any,
    valid: Any,
    out: Any,
    out_counts: Any,
) -> None:
    """The largest ``size`` values, descending; NaN does not count. Their number is in the first column.

    ``out``: shape (rows, size), of which the first ``out_counts`` are filled.
    """
    for row in range(slots.size):
        slot = slots[row]
        if (valid.size == 0 or valid[row]) and values[row] == values[row]:
            _insert(counts, values_kept, slot, cell, size, values[row])
        if out_counts.size:
            out_counts[row] = counts[slot, cell]
            for place in range(counts[slot, cell]):
                out[row, place] = values_kept[slot, cell + 1 + place]


@kernel(
    types.void(_INDEX, _INT_CELLS_IN, _INT_CELLS_IN, _INT, _INT, _INT_CELLS, _INT_CELLS),
    types.void(_INDEX, _INT_CELLS_IN, _FLOAT_CELLS_IN, _INT, _INT, _INT_CELLS, _FLOAT_CELLS),
)
def merge_largest(
    index: Any, counts: Any, values: Any, cell: Any, size: Any, into_counts: Any, into_values: Any
) -> None:
    """Combine accumulators of :func:`largest`."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0:
            for place in range(counts[entry, cell]):
                _insert(into_counts, into_values, target, cell, size, values[entry, cell + 1 + place])
