"""Percentiles from counts by bucket. Pure."""

from __future__ import annotations

from collections.abc import Sequence

#: Upper bounds of the buckets in ms, inclusive; a last bucket without bound follows.
BUCKETS_MS = (
    *(0.5, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 50, 75),
    *(100, 150, 200, 300, 500, 750, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000),
)


def share_below(counts: Sequence[int], share: float) -> float | None:
    """What this share of the rows took at most, in ms; None: there are no rows.

    Args:
        counts: rows by bucket, one for each of ``BUCKETS_MS`` and one for what is above all bounds.
        share: 0 to 1.

    Returns:
        A time within the bucket in which the row lies, as if the rows of a bucket were evenly spread; the highest
        bound if it is above all of them.
    """
    total = sum(counts)
    if not total or len(counts) != len(BUCKETS_MS) + 1:
        return None
    wanted, seen = share * total, 0
    for index, count in enumerate(counts[:-1]):
        if count and seen + count >= wanted:
            lower = BUCKETS_MS[index - 1] if index else 0.0
            return lower + (BUCKETS_MS[index] - lower) * (wanted - seen) / count
        seen += count
    return float(BUCKETS_MS[-1])
