"""Compiled loops that choose rows by key; called by ``deduplicate`` and ``running_aggregates`` only."""

from __future__ import annotations

from typing import Any

from numba import types

from weir.kernels.declare import kernel
from weir.kernels.kernel_types import input_array

_I64 = input_array(types.int64)
_OUT_I64, _OUT_I32, _OUT_U8 = types.int64[::1], types.int32[::1], types.uint8[::1]


@kernel(types.int64(_I64, _I64, types.int64, _OUT_I64, _OUT_U8, _OUT_I64))
def first_within(inverse: Any, times_ms: Any, within_ms: int, last_ms: Any, present: Any, rows: Any) -> int:
    """Choose rows so far from the last chosen one of their key, and note their times.

    Args:
        inverse: for each row the position of its key.
        times_ms: of each row.
        within_ms: above 0.
        last_ms: by key, the time of its last chosen row; changed.
        present: by key, 1: there is one; changed.
        rows: as long as ``inverse``; gets the chosen rows.

    Returns:
        How many were chosen.
    """
    count = 0
    for row in range(inverse.size):
        key = inverse[row]
        # Without overflow: times may be at either end.
        if present[key] and (times_ms[row] <= last_ms[key] or times_ms[row] - within_ms < last_ms[key]):
            continue
        present[key] = 1
        last_ms[key] = times_ms[row]
        rows[count] = row
        count += 1
    return count


@kernel(types.int64(input_array(types.int32), _OUT_I32, _OUT_I32))
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
