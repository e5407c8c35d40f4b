"""Query 9 of Nexmark: of equally high bids the first one wins, in whatever order they are read."""

import pytest

from weir import testing
from weir.examples import nexmark

AUCTION = {
    **dict.fromkeys(("id", "initial_bid", "reserve", "seller", "category"), 1),
    **dict.fromkeys(("item_name", "description", "extra"), ""),
    "date_time": 1_000,
    "expires": 9_000,
}


def bid(bidder, price, at_ms):
    texts = dict.fromkeys(("channel", "url", "extra"), "")
    return {"auction": 1, "bidder": bidder, "price": price, "date_time": at_ms, **texts}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_of_equally_high_bids_the_first_one_wins(order):
    bids = [bid(7, 100_000_000, 2_000), bid(8, 100_000_000, 2_001), bid(9, 99_999_999, 1_500)]
    flow = nexmark.build("q9")
    given = {"auctions": [AUCTION], "bids": [bids[number] for number in order]}
    result = testing.folded(testing.run(flow, given)["result"].to_polars())
    assert result.select("bidder", "price", "bid_time").rows() == [(7, 100_000_000, 2_000)]
    assert "order" not in result.columns
