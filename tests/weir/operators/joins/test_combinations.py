"""Combinations of rows are those of nested loops, and too many of them are refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import StateError
from weir.operators.joins.combinations import chosen, grouped_by_key, pieces, totals

#: By side, how many rows each of three keys has.
COUNTS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=4)


def sides_of(counts, may_lack=()):
    sides = {}
    for side, of_keys in enumerate(counts):
        starts = 100 * side + np.arange(sum(of_keys))
        rows = grouped_by_key(starts, np.cumsum(of_keys))
        sides[side] = rows.or_none() if side in may_lack else rows
    return sides


@given(counts=COUNTS, may_lack=st.sets(st.integers(0, 3)), size=st.integers(1, 9))
def test_combinations_are_those_of_nested_loops(counts, may_lack, size):
    sides = sides_of(counts, may_lack)
    expected = []
    for key in range(3):
        rows = []
        for side, of_keys in enumerate(counts):
            first = 100 * side + sum(of_keys[:key])
            own = list(range(first, first + of_keys[key]))
            rows.append(own or [-1] if side in may_lack else own)
        expected += [(key, *found) for found in itertools.product(*rows)]
    found = []
    for groups, numbers in pieces(totals(sides), size):
        assert 0 < len(groups) <= size
        found += zip(
            groups.tolist(),
            *(starts.tolist() for starts in chosen(sides, groups, numbers).values()),
            strict=True,
        )
    assert found == expected


def test_more_combinations_than_can_be_numbered_are_refused():
    with pytest.raises(
        StateError, match="make more than 70,368,744,177,664 combinations; join by a key that has"
    ):
        totals({side: grouped_by_key(np.arange(20_000), np.array([20_000])) for side in range(15)})
