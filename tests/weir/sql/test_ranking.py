"""The first rows of a window: those that cannot be among them are left out before the rest is sorted."""

from __future__ import annotations

import random

import polars as pl
import pytest

from weir.sql.ranking import Ordering

KINDS = (pl.Int64, pl.UInt64, pl.Datetime("ns"), pl.Date, pl.Float64, pl.String, pl.Duration("us"))


def order_of(value, other, descends, nulls_first):
    """Sorts as SQL does, of two columns, the second one ascending."""
    is_null = value is None
    return (is_null != nulls_first, 0 if is_null else -value if descends else value, other)


@pytest.mark.parametrize("seed", range(120))
def test_they_are_the_first_of_all_rows(seed):
    chance = random.Random(seed)
    kind, count, numbers = chance.choice(KINDS), chance.randrange(1, 60), chance.choice([3, 9])
    # Values that are all there are sorted as numbers, by another way.
    null_share = chance.choice([0, 0.2])
    values = [None if chance.random() < null_share else chance.randrange(numbers) for _ in range(count)]
    others = [chance.randrange(4) for _ in range(count)]
    descends, nulls_first, has_ties = (chance.random() < 0.5 for _ in range(3))
    bound = chance.choice([1, 2, 7])
    column = pl.Series("value", values, pl.Int32 if kind is pl.Date else pl.Int64).cast(kind)
    rows = pl.DataFrame([column, pl.Series("other", others), pl.Series("number", range(count))])
    ordering = Ordering((("value", descends, nulls_first), ("other", False, False)), bound, "place", has_ties)

    keys = [
        order_of(value, other, descends, nulls_first) for value, other in zip(values, others, strict=True)
    ]
    wanted = []
    for at, number in enumerate(sorted(range(count), key=keys.__getitem__)):
        place = 1 + sum(key < keys[number] for key in keys) if has_ties else at + 1
        wanted += [(number, place)] if place <= bound else []
    found = ordering({}, None, rows)
    assert found.select("number", "place").rows() == wanted
