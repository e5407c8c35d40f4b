"""Compiled loops of aggregates: take rows into accumulators, and accumulators of panes into those of windows.

Called by folds only. All kernels release the GIL, have explicit signatures and are cached on disk.

Common arguments:

- ``slots``: int32, shape (rows,): whose accumulators a row updates. ``cells``: int64 or float64, shape (capacity,
  cells); ``cell``: the column to update. ``presence``, ``byte``, ``bit``: where the flag "has had a value" is.
- ``values``: shape (rows,); ``valid``: uint8, shape (rows,), 0 for rows that do not count; or shape (0,), all count.
- ``out``, ``out_valid``: the result after each row, of running aggregates; of length 0: not wanted.
- ``index``: int64, shape (entries,): which of the ``into`` accumulators an entry goes to; -1: none.

Integer sums return the row or entry that overflowed, or -1.
"""

from __future__ import annotations

from typing import Any

from numba import types

from weir.kernels.declare import kernel
from weir.kernels.kernel_types import input_array

_SLOTS, _VALID, _INDEX = input_array(types.int32), input_array(types.uint8), input_array(types.int64)
_INTS, _FLOATS = input_array(types.int64), input_array(types.float64)
_INT_CELLS, _FLOAT_CELLS, _PRESENCE = types.int64[:, ::1], types.float64[:, ::1], types.uint8[:, ::1]
_INT = types.int64

_LARGEST = types.boolean
_OUT_INTS, _OUT_FLOATS, _OUT_VALID = types.int64[::1], types.float64[::1], types.uint8[::1]


@kernel(types.void(_SLOTS, _INT_CELLS, _INT, _VALID, _OUT_INTS))
def count(slots: Any, cells: Any, cell: Any, valid: Any, out: Any) -> None:
    """Number of rows that count."""
    for row in range(slots.size):
        number = cells[slots[row], cell]
        if valid.size == 0 or valid[row]:
            number += 1
            cells[slots[row], cell] = number
        if out.size:
            out[row] = number


_SUM_INT = (_SLOTS, _INT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _INTS, _VALID)
_SUM_FLOAT = (_SLOTS, _FLOAT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _FLOATS, _VALID)


@kernel(types.int64(*_SUM_INT, _OUT_INTS, _OUT_VALID))
def sum_int(
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
    """Sum of integers, checked."""
    for row in range(slots.size):
        slot = slots[row]
        total = cells[slot, cell]
        if valid.size == 0 or valid[row]:
            added = total + values[row]
            if ((total ^ added) & (values[row] ^ added)) < 0:
                return row
            cells[slot, cell] = total = added
            presence[slot, byte] |= bit
        if out.size:
            out[row] = total
            out_valid[row] = (presence[slot, byte] & bit) != 0
    return -1


@kernel(types.void(*_SUM_FLOAT, _OUT_FLOATS, _OUT_VALID))
def sum_float(
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
) -> None:
    """Sum of floating-point numbers, in the order of the rows."""
    for row in range(slots.size):
        slot = slots[row]
        total = cells[slot, cell]
        if valid.size == 0 or valid[row]:
            total += values[row]
            cells[slot, cell] = total
            presence[slot, byte] |= bit
        if out.size:
            out[row] = total
            out_valid[row] = (presence[slot, byte] & bit) != 0


@kernel(
    types.void(*_SUM_INT, _LARGEST, _OUT_INTS, _OUT_VALID),
    types.void(*_SUM_FLOAT, _LARGEST, _OUT_FLOATS, _OUT_VALID),
)
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
    """Minimum or maximum; a NaN counts only if there is nothing else."""
    for row in range(slots.size):
        slot = slots[row]
        best = cells[slot, cell]
        if valid.size == 0 or valid[row]:
            value = values[row]
            better = value > best if largest else value < best
            if better or best != best or (presence[slot, byte] & bit) == 0:
                cells[slot, cell] = best = value
                presence[slot, byte] |= bit
        if out.size:
            out[row] = best
            out_valid[row] = (presence[slot, byte] & bit) != 0


@kernel(types.void(_SLOTS, _FLOAT_CELLS, _INT_CELLS, _INT, _FLOATS, _VALID, _OUT_FLOATS, _OUT_VALID))
def mean(
    slots: Any, sums: Any, counts: Any, cell: Any, values: Any, valid: Any, out: Any, out_valid: Any
) -> None:
    """Mean of values: their sum is in ``cell``, their number (same memory, int64) in the next one."""
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            sums[slot, cell] += values[row]
            counts[slot, cell + 1] += 1
        if out.size:
            number = counts[slot, cell + 1]
            out[row] = sums[slot, cell] / max(number, 1)
            out_valid[row] = number != 0


_INT_CELLS_IN, _FLOAT_CELLS_IN = input_array(types.int64, 2), input_array(types.float64, 2)
_PRESENCE_IN = input_array(types.uint8, 2)


@kernel(types.int64(_INDEX, _INT_CELLS_IN, _INT, _INT_CELLS))
def merge_int(index: Any, cells: Any, cell: Any, into: Any) -> int:
    """Add up integers, checked."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0:
            total, value = into[target, cell], cells[entry, cell]
            added = total + value
            if ((total ^ added) & (value ^ added)) < 0:
                return entry
            into[target, cell] = added
    return -1


@kernel(types.void(_INDEX, _FLOAT_CELLS_IN, _INT, _FLOAT_CELLS))
def merge_float(index: Any, cells: Any, cell: Any, into: Any) -> None:
    """Add up floating-point numbers."""
    for entry in range(index.size):
        if index[entry] >= 0:
            into[index[entry], cell] += cells[entry, cell]


@kernel(
    types.void(_INDEX, _INT_CELLS_IN, _PRESENCE_IN, _INT, _INT, types.uint8, _LARGEST, _INT_CELLS, _PRESENCE),
    types.void(
        _INDEX, _FLOAT_CELLS_IN, _PRESENCE_IN, _INT, _INT, types.uint8, _LARGEST, _FLOAT_CELLS, _PRESENCE
    ),
)
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
    """Minimum or maximum of accumulators; call :func:`merge_presence` after it."""
    for entry in range(index.size):
        target = index[entry]
        if target >= 0 and (presence[entry, byte] & bit) != 0:
            value, best = cells[entry, cell], into[target, cell]
            better = value > best if largest else value < best
            if better or best != best or (into_presence[target, byte] & bit) == 0:
                into[target, cell] = value
                into_presence[target, byte] |= bit


@kernel(types.void(_INDEX, _PRESENCE_IN, _PRESENCE))
def merge_presence(index: Any, presence: Any, into: Any) -> None:
    """A window has had a value if one of its panes has."""
    for entry in range(index.size):
        if index[entry] >= 0:
            for byte in range(presence.shape[1]):
                into[index[entry], byte] |= presence[entry, byte]
