"""Ranges of owners' keys of which nothing counts that the store has: it is deleted there before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weir.state.api import prefix_end

#: ``start <= key < stop``.
Range = tuple[bytes, bytes]
#: Of an owner so many at most: each read looks at them, and a store reads more slowly with many deleted ranges.
RANGES_MAX = 16


def whole(owner: bytes) -> Range:
    """Return the range of all keys of an owner."""
    stop = prefix_end(owner)
    # What an owner begins with, see ``weir.state.layout``, is not all 255.
    assert stop is not None
    return owner, stop


def joined(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """Return what is in any of these, in order; ranges that touch are one."""
    found: list[Range] = []
    for start, stop in sorted([*ranges, *others]):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        else:
            found.append((start, stop))
    return found


def left_of(start: bytes, stop: bytes, hidden: Sequence[Range]) -> list[Range]:
    """Return what of ``start <= key < stop`` is in none of the hidden ranges, which are in order."""
    found: list[Range] = []
    for hidden_start, hidden_stop in hidden:
        if hidden_stop <= start:
            continue
        if stop <= hidden_start:
            break
        if start < hidden_start:
            found.append((start, hidden_start))
        start = hidden_stop
    if start < stop:
        found.append((start, stop))
    return found


def hides(hidden: Sequence[Range], key: bytes) -> bool:
    """Return whether a key is in one of these ranges."""
    return any(start <= key < stop for start, stop in hidden)


def merged(
    first: Mapping[bytes, list[Range]], second: Mapping[bytes, list[Range]]
) -> dict[bytes, list[Range]]:
    """Return the ranges of both, by owner."""
    return {**second, **{owner: joined(ranges, second.get(owner, ())) for owner, ranges in first.items()}}
