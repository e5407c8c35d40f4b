"""Combinations of kept rows: one row of each of several sides, for groups of rows that go together.

The combinations of a group are numbered from 0. A number says which row of each side is in it, as digits do, so that
any piece of them is found without those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weir.errors import StateError

#: Of one group; those of all rows of a batch together fit into 63 bits.
_COMBINATIONS_MAX = 1 << 46


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of one side, group after group; arrays are int64."""

    #: Where each row begins, shape (rows,); -1: a row that is not there.
    starts: np.ndarray
    #: Position in ``starts`` of the first row of each group, and how many it has; shape (groups,).
    firsts: np.ndarray
    counts: np.ndarray

    def or_none(self) -> GroupedRows:
        """Return the groups as they are, but a group without rows has one that is not there."""
        is_empty = self.counts == 0
        firsts = np.where(is_empty, len(self.starts), self.firsts)
        return GroupedRows(np.append(self.starts, -1), firsts, np.maximum(self.counts, 1))

    def only(self, groups: np.ndarray) -> GroupedRows:
        """Return some of the groups, by position."""
        return GroupedRows(self.starts, self.firsts[groups], self.counts[groups])


def grouped_by_key(starts: np.ndarray, stops: np.ndarray) -> GroupedRows:
    """Rows of a side of a block, each key a group.

    Args:
        starts: where the rows begin, key after key, int64.
        stops: where those of each key end in ``starts``, int64, shape (keys,).
    """
    counts = np.diff(stops, prepend=0)
    return GroupedRows(starts, stops - counts, counts)


def totals(sides: Mapping[int, GroupedRows]) -> np.ndarray:
    """How many combinations each group has, int64, shape (groups,).

    Raises:
        StateError: there are more than any job could write.
    """
    counts = [rows.counts for rows in sides.values()]
    if np.any(np.prod(counts, axis=0, dtype=np.float64) > _COMBINATIONS_MAX):
        raise StateError(
            f"the rows of a key make more than {_COMBINATIONS_MAX:,} combinations; join by a key that has fewer rows, "
            "or within bounds of time"
        )
    found: np.ndarray = np.prod(counts, axis=0, dtype=np.int64)
    return found


def chosen(
    sides: Mapping[int, GroupedRows], groups: np.ndarray, numbers: np.ndarray
) -> dict[int, np.ndarray]:
    """The rows of some combinations: by side where they begin (-1: the row is not there).

    Args:
        sides: ascending; the last one changes quickest, as in nested loops.
        groups: of each combination, int64.
        numbers: of each within its group, int64.
    """
    found: dict[int, np.ndarray] = {}
    for side in reversed(list(sides)):
        rows = sides[side]
        counts = rows.counts[groups]
        found[side] = rows.starts[rows.firsts[groups] + numbers % counts]
        numbers = numbers // counts
    return {side: found[side] for side in sides}


def pieces(counts: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Number what items make, of which each makes so many (int64): so many at a time at most.

    Yields the position of the item, and the number of what it makes, from 0; int64.
    """
    ends = np.cumsum(counts)
    begins = ends - counts
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, size):
        numbers = np.arange(start, min(start + size, total))
        items = np.searchsorted(ends, numbers, side="right")
        yield items, numbers - begins[items]
