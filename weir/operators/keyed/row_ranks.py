"""Numbers that sort as rows do by several columns of any type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from weir.rows.records import UNNAMED_COLUMN
from weir.specs.row_order import OrderColumn


def row_ranks(rows: pl.DataFrame, order: Sequence[OrderColumn]) -> np.ndarray:
    """A number of each row, the lowest of the first ones; rows that are equal in the order have one in common.

    Args:
        rows: with the columns of the order.
        order: at least one column.

    Returns:
        int64, shape (rows,).
    """
    names = [each.name for each in order]
    ordered = rows.select(names).with_row_index(UNNAMED_COLUMN)
    ordered = sorted_rows(ordered, order)
    differs = pl.any_horizontal(pl.col(each).ne_missing(pl.col(each).shift()) for each in names)
    found = ordered.select(UNNAMED_COLUMN, differs.cast(pl.Int64).cum_sum().alias("rank"))
    ranks = np.empty(rows.height, dtype=np.int64)
    ranks[found[UNNAMED_COLUMN].to_numpy()] = found["rank"].to_numpy()
    return ranks


def sorted_rows(
    rows: pl.DataFrame, order: Sequence[OrderColumn], before: Sequence[str] = (), after: Sequence[str] = ()
) -> pl.DataFrame:
    """The rows in an order; equal ones stay as they are.

    Args:
        rows: with all of the columns.
        order: the order.
        before: columns that count before it, ascending.
        after: columns that count after it, ascending.
    """
    names = [*before, *(each.name for each in order), *after]
    descending = [*(False for _ in before), *(not each.ascending for each in order), *(False for _ in after)]
    nulls_last = [*(True for _ in before), *(not each.nulls_first for each in order), *(True for _ in after)]
    return rows.sort(names, descending=descending, nulls_last=nulls_last, maintain_order=True)
