"""Whether results are those of the reference, where SQL leaves the order of equal rows open."""

import polars as pl
import pytest

from benchmarks.nexmark_reference import equal_choice

BIDS = pl.DataFrame({"auction": [7, 7, 7, 8], "bidder": [1, 2, 3, 4], "price": [50, 20, 20, 20]})


def result(*bidders: int) -> pl.DataFrame:
    """The two highest bids of auction 7, by these bidders."""
    prices = [50, 20][: len(bidders)]
    places = list(range(1, len(bidders) + 1))
    return pl.DataFrame({"auction": [7] * len(bidders), "bidder": bidders, "price": prices, "place": places})


@pytest.mark.parametrize(
    ("found", "is_equal"),
    [
        (result(1, 2), True),
        (result(1, 3), True),
        (result(1, 4), False),
        (result(3, 1), False),
        (result(1), False),
        (result(1, 2).with_columns(place=pl.col("place") + 1), False),
        (pl.concat([result(1, 2), result(1, 2)]), False),
    ],
    ids=["the same", "another equal bid", "no bid", "other places", "too few", "shifted places", "twice"],
)
def test_equally_high_bids_may_come_in_any_order(found, is_equal):
    assert equal_choice(found, result(1, 2), BIDS) is is_equal
