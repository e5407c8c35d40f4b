"""Queries of Nexmark whose results are updated: they are changelogs, of which the last state counts."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

import weir
from weir.examples.nexmark_streams import Auction

_PRICES = {"category": int, "price": int, "one": int}


def q4(auction: Auction) -> weir.Stream:
    """Average price, by category, for which auctions are sold, as far as is known: of rows of a category the last."""
    best = _valid(auction, "id", "category").select("prices", "id", "category", "price").key_by("id")
    final = best.top("final", by="price", rows=1).map_batches("changes", _signed_prices, _PRICES)
    totals = final.key_by("category").aggregate(
        "totals", emit="per_batch", total=weir.sum("price"), n=weir.sum("one")
    )
    average = pl.col("total").cast(pl.Float64) / pl.col("n")
    return totals.with_columns("average", average=average).select("told", "category", "total", "n", "average")


def q9(auction: Auction) -> weir.Stream:
    """Winning bids: of each auction the highest bid while it was open, of equal ones the first."""
    columns = ("item_name", "description", "initial_bid", "reserve", "seller", "category")
    valid = _valid(auction, "id", *columns)
    named = valid.rename("named", {"date_time_right": "bid_time", "extra": "bid_extra"})
    ordered = named.select(
        "ordered",
        "id",
        "item_name",
        "description",
        "initial_bid",
        "reserve",
        "date_time",
        "expires",
        "seller",
        "category",
        "bidder",
        "price",
        "bid_time",
        "bid_extra",
    )
    return ordered.key_by("id").top("winning", by="price", rows=1)


def q18(auction: Auction) -> weir.Stream:
    """The last bid of each bidder on each auction."""
    return auction.bids.key_by("bidder", "auction").deduplicate("last", keep="last")


def q19(auction: Auction) -> weir.Stream:
    """The ten highest bids of each auction, with their places."""
    bids = auction.bids.select("bid", "auction", "bidder", "price", "channel", "date_time", "extra")
    return bids.key_by("auction").top("best", by="price", rows=10, rank="place")


def _valid(auction: Auction, *columns: str) -> weir.Stream:
    """Auctions, with these columns, and each bid that came while they were open."""
    auctions = auction.auctions.select("auction", *columns, "date_time", "expires").key_by("id")
    bids = auction.bids.select("bid", "auction", "bidder", "price", "date_time", "extra").key_by("auction")
    return auctions.join("valid", bids, between=("date_time", "expires"))


def _signed_prices(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What each change adds to the sum of prices and to their number."""
    adds = pl.col("_change").is_in(["insert", "update_after"])
    sign = pl.when(adds).then(1).otherwise(-1)
    signed = pl.DataFrame(batch).select("category", price=pl.col("price") * sign, one=sign.cast(pl.Int64))
    return signed.to_arrow().combine_chunks().to_batches()[0]
