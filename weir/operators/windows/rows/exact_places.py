"""The first rows of groups where the values of an order are whole numbers, times or truth values: found by NumPy.

Few rows are left to sort where many have been left out before, and a call of Polars takes longer than all of it then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from weir.operators.windows.rows.rows_part import order_codes
from weir.specs.row_order import OrderColumn


def exact_places(
    rows: pa.RecordBatch, groups: np.ndarray, order: Sequence[OrderColumn], count: int, *, ties: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the first rows of each group, those of a group together and in their order, as ``first_rows`` does.

    Args:
        rows: of all groups.
        groups: the group of each row; int64.
        order: of the rows of a group.
        count: of each group.
        ties: also all rows that are equal to the last of these in the order.

    Returns:
        Numbers of the rows, and their places from 0 on, int64; None: other columns decide, or values have other orders.
    """
    codes = [_exact_codes(rows.column(each.name), each) for each in order]
    known = [each for each in codes if each is not None]
    if len(known) < len(codes):
        return None
    ordered = np.lexsort([*(~each for each in reversed(known)), groups])
    numbers = np.arange(len(ordered))
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = np.diff(groups[ordered]) != 0
    differs = is_first.copy()
    for each in known:
        # Not the difference, which may be beyond 64 bits.
        differs[1:] |= each[ordered[1:]] != each[ordered[:-1]]
    places = numbers - np.maximum.accumulate(np.where(is_first, numbers, 0))
    if ties:
        places = places[np.maximum.accumulate(np.where(differs, numbers, 0))]
    elif (~differs & (places <= count)).any():
        return None
    kept = places < count
    return ordered[kept], places[kept]


def _exact_codes(column: pa.Array, order: OrderColumn) -> np.ndarray | None:
    """Numbers of values of which different ones have different numbers; None: there may be equal ones."""
    dtype = column.type
    if column.null_count or not (pat.is_integer(dtype) or pat.is_boolean(dtype) or pat.is_temporal(dtype)):
        return None
    return order_codes(column, order)
