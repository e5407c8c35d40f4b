"""A compiled loop that finds the rows that are not beaten. Called by ``rows_part`` only."""

from __future__ import annotations

from typing import Any

from numba import types

from weir.kernels.declare import kernel
from weir.kernels.kernel_types import input_array

_I64 = input_array(types.int64)
_OUT, _TABLE = types.int64[::1], types.int64[:, ::1]


@kernel(types.int64(_I64, _I64, _TABLE, _OUT, _OUT))
def unbeaten(groups: Any, codes: Any, best: Any, counts: Any, rows: Any) -> int:
    """Choose the rows of each group that fewer rows of it than are wanted have a higher code than; returns how many.

    Args:
        groups: of each row, from 0 on.
        codes: of each row.
        best: scratch, shape (groups, wanted); gets the highest codes of each group, ascending.
        counts: by group, 0; changed.
        rows: as long as ``groups``; gets the numbers of the chosen rows, ascending.
    """
    wanted = best.shape[1]
    for row in range(groups.size):
        group, code = groups[row], codes[row]
        held = counts[group]
        if held < wanted:
            place = held
            while place > 0 and best[group, place - 1] > code:
                best[group, place] = best[group, place - 1]
                place -= 1
            best[group, place] = code
            counts[group] = held + 1
        elif code > best[group, 0]:
            place = 0
            while place + 1 < wanted and best[group, place + 1] < code:
                best[group, place] = best[group, place + 1]
                place += 1
            best[group, place] = code
    count = 0
    for row in range(groups.size):
        group = groups[row]
        if counts[group] < wanted or codes[row] >= best[group, 0]:
            rows[count] = row
            count += 1
    return count
