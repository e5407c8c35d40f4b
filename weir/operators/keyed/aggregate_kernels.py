"""Compiled loops of keyed aggregations: update accumulators row by row and write the running value of each row.

Called by ``aggregate_functions`` only. All kernels release the GIL, have explicit signatures and are cached on disk.
Common arguments:

- ``slots``: int32, shape (rows,): whose accumulators a row updates.
- ``cells``: int64 or float64, shape (capacity, cells); ``cell``: the column to update.
- ``presence``, ``byte``, ``bit``: where the flag "has had a value" of the cell is.
- ``values``: shape (rows,); ``valid``: uint8, shape (rows,), 0 for null; or shape (0,), no nulls.
- ``out``: running value after each row; ``out_valid``: uint8, 0 where there has been no value yet.

The integer sum returns the row that overflowed, or -1.
"""

from __future__ import annotations

from typing import Any

from numba import types

from weir.kernels.declare import kernel


def _input(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C", readonly=True, aligned=False)


_SLOTS, _VALID = _input(types.int32), _input(types.uint8)
_INTS, _FLOATS = _input(types.int64), _input(types.float64)
_INT_CELLS, _FLOAT_CELLS, _PRESENCE = types.int64[:, ::1], types.float64[:, ::1], types.uint8[:, ::1]
_OUT_I64, _OUT_F64, _OUT_U8, _OUT_I32 = (
    types.int64[::1],
    types.float64[::1],
    types.uint8[::1],
    types.int32[::1],
)
_INT = types.int64


@kernel(types.void(_SLOTS, _INT_CELLS, _INT, _VALID, _OUT_I64))
def running_count(slots: Any, cells: Any, cell: Any, valid: Any, out: Any) -> None:
    """Rows so far, or values that are not null."""
    if valid.size == 0:
        for row in range(slots.size):
            count = cells[slots[row], cell] + 1
            cells[slots[row], cell] = count
            out[row] = count
        return
    for row in range(slots.size):
        count = cells[slots[row], cell] + valid[row]
        cells[slots[row], cell] = count
        out[row] = count


@kernel(types.int64(_SLOTS, _INT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _INTS, _VALID, _OUT_I64, _OUT_U8))
def running_sum_int(
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
            total = added
            cells[slot, cell] = total
            presence[slot, byte] |= bit
        out[row] = total
        out_valid[row] = (presence[slot, byte] & bit) != 0
    return -1


@kernel(
    types.void(_SLOTS, _FLOAT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _FLOATS, _VALID, _OUT_F64, _OUT_U8)
)
def running_sum_float(
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
        if valid.size == 0 or valid[row]:
            cells[slot, cell] += values[row]
            presence[slot, byte] |= bit
        out[row] = cells[slot, cell]
        out_valid[row] = (presence[slot, byte] & bit) != 0


_EXTREME_INT = (_SLOTS, _INT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _INTS, _VALID, types.boolean)
_EXTREME_FLOAT = (_SLOTS, _FLOAT_CELLS, _INT, _PRESENCE, _INT, types.uint8, _FLOATS, _VALID, types.boolean)


@kernel(
    types.void(*_EXTREME_INT, _OUT_I64, _OUT_U8),
    types.void(*_EXTREME_FLOAT, _OUT_F64, _OUT_U8),
)
def running_extreme(
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
        if valid.size == 0 or valid[row]:
            value = values[row]
            best = cells[slot, cell]
            absent = (presence[slot, byte] & bit) == 0
            better = value > best if largest else value < best
            if absent or better or best != best:
                cells[slot, cell] = value
                presence[slot, byte] |= bit
        out[row] = cells[slot, cell]
        out_valid[row] = (presence[slot, byte] & bit) != 0


@kernel(types.void(_SLOTS, _FLOAT_CELLS, _INT_CELLS, _INT, _FLOATS, _VALID, _OUT_F64, _OUT_U8))
def running_mean(
    slots: Any, sums: Any, counts: Any, cell: Any, values: Any, valid: Any, out: Any, out_valid: Any
) -> None:
    """Mean of the values so far: the sum is in ``cell``, their number (same memory, int64) in the next one."""
    for row in range(slots.size):
        slot = slots[row]
        if valid.size == 0 or valid[row]:
            sums[slot, cell] += values[row]
            counts[slot, cell + 1] += 1
        count = counts[slot, cell + 1]
        out_valid[row] = count != 0
        out[row] = sums[slot, cell] / count if count else 0.0


@kernel(types.int64(_SLOTS, _OUT_I32, _OUT_I32))
def last_rows(slots: Any, last: Any, rows: Any) -> int:
    """Numbers of the rows after which their slot does not come again, ascending; returns how many.

    ``last`` is scratch, shape (capacity,).
    """
    for row in range(slots.size):
        last[slots[row]] = row
    count = 0
    for row in range(slots.size):
        if last[slots[row]] == row:
            rows[count] = row
            count += 1
    return count
