"""Which times belong to a row of a join, and until when it can match."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.specs.joins import JoinBounds

#: Times beyond are taken for these: what is added to them still fits.
_MIN_MS, _MAX_MS = -(2**62), 2**62


def row_bounds(
    bounds: JoinBounds | None, side: int, batch: pa.RecordBatch, times_ms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First and last time that belong to each row, as a join keeps them.

    Args:
        bounds: of the join.
        side: that of the rows.
        batch: the rows.
        times_ms: their event times, int64, shape (rows,).

    Returns:
        ``lower`` and ``until``, int64, shape (rows,). Of the side that has intervals: their ends; an interval whose
        end is null is empty. Of the other side ``until`` is the last watermark at which a row may come whose interval
        holds the time: intervals of columns begin at the event time of their row at the earliest.
    """
    if bounds is None:
        return np.full(len(times_ms), -(2**63)), np.full(len(times_ms), 2**63 - 1)
    times = np.clip(times_ms, _MIN_MS, _MAX_MS)
    if bounds.window_ms is not None:
        slide_ms = bounds.slide_ms or bounds.window_ms
        last = times - (times - bounds.offset_ms) % slide_ms
        return last - (bounds.window_ms - slide_ms), last + (bounds.window_ms - 1)
    if side != bounds.side:
        return times, times - (bounds.lower_ms or 0)
    lower, upper = times, times
    is_empty = np.zeros(len(times), dtype=bool)
    if bounds.lower_column is not None:
        lower, is_null = _column_ms(batch, bounds.lower_column)
        lower, is_empty = np.maximum(lower, times), is_empty | is_null
    elif bounds.lower_ms is not None:
        lower = times + bounds.lower_ms
    if bounds.upper_column is not None:
        upper, is_null = _column_ms(batch, bounds.upper_column)
        is_empty = is_empty | is_null
    elif bounds.upper_ms is not None:
        upper = times + bounds.upper_ms
    if is_empty.any():
        lower = np.where(is_empty, _MAX_MS, lower)
        upper = np.where(is_empty, _MIN_MS, upper)
    return lower, upper


def shared_windows(
    bounds: JoinBounds, times_ms: np.ndarray, others_ms: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sliding windows that both rows of each pair are in, one at least.

    Args:
        bounds: with the length of windows and the time between them.
        times_ms: event times of one row of each pair, int64, shape (pairs,).
        others_ms: those of the other row.

    Returns:
        Positions of the pairs, as often as they share a window, and where these windows begin, ms; int64.
    """
    assert bounds.window_ms is not None
    assert bounds.slide_ms is not None
    earlier, later = np.minimum(times_ms, others_ms), np.maximum(times_ms, others_ms)
    last = earlier - (earlier - bounds.offset_ms) % bounds.slide_ms
    first = later - (later - bounds.offset_ms) % bounds.slide_ms - (bounds.window_ms - bounds.slide_ms)
    counts = (last - first) // bounds.slide_ms + 1
    pairs = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return pairs, first[pairs] + place * bounds.slide_ms


def _column_ms(batch: pa.RecordBatch, name: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of times as whole ms (int64), cut towards the past as event times are, and where it is null."""
    column = batch.column(name)
    if pa.types.is_timestamp(column.type):
        if column.type.unit in ("us", "ns"):
            # The cast cuts towards 1970.
            column = pc.floor_temporal(column, unit="millisecond")
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).view(pa.int64())
    elif column.type != pa.int64():
        # Beyond 63 bits is beyond every time.
        column = (
            pc.min_element_wise(column, pa.scalar(_MAX_MS, column.type))
            if column.type == pa.uint64()
            else column
        )
        column = column.cast(pa.int64())
    is_null: np.ndarray = column.is_null().to_numpy(zero_copy_only=False)
    values = column.fill_null(0).to_numpy(zero_copy_only=True)
    return np.clip(values, _MIN_MS, _MAX_MS), is_null
