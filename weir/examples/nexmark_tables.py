"""Queries of Nexmark whose results are updated: they are changelogs, of which the last state counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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


def q6(auction: Auction) -> weir.Stream:
    """Average price of the last ten auctions of each seller that are over, by the time of the winning bid."""
    columns = {"seller": int, "price": int, "bid_time": int}
    valid = _valid(auction, "id", "seller").select(
        "prices", "id", "seller", "price", "date_time_right", "expires"
    )
    closed = valid.key_by("id").process("closed", Winner, columns | {"id": int}).select("sold", *columns)
    last = closed.key_by("seller").top("last", by="bid_time", rows=10)
    return last.key_by("seller").aggregate("average", average=weir.mean("price"))


class Winner(weir.KeyedProcess):
    """The highest of an auction's bids, of equal ones the first, when the auction is over."""

    best = weir.ValueState(pl.Struct({"seller": pl.Int64, "price": pl.Int64, "bid_time": pl.Int64}))

    def process(
        self, key: tuple[int], row: dict[str, Any], context: weir.KeyContext
    ) -> Iterable[dict[str, Any]]:
        """Remember the bid if it is better; bids may come out of order."""
        best = self.best.value
        price, bid_time = row["price"], row["date_time_right"]
        if best is None or (price, -bid_time) > (best["price"], -best["bid_time"]):
            self.best.value = {"seller": row["seller"], "price": price, "bid_time": bid_time}
        if best is None:
            # At this time a bid may still come.
            context.timers.register(row["expires"] + 1)
        return ()

    def on_timer(self, key: tuple[int], time_ms: int, context: weir.KeyContext) -> Iterable[dict[str, Any]]:
        """The winning bid."""
        best = self.best.value
        assert best is not None
        self.best.clear()
        yield {"id": key[0], **best}


def q9(auction: Auction) -> weir.Stream:
    """Winning bids: of each auction the highest bid while it was open, of equal ones the first.

    ``top`` goes by one column, so prices and times are put into one: the time since the auction began has 32 bits.
    Bids do not always come in the order of their times, since several subtasks read them.
    """
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
        order=pl.col("price") * 2**32 - (pl.col("bid_time") - pl.col("date_time")),
    )
    winning = ordered.key_by("id").top("winning", by="order", rows=1)
    return winning.drop("result", "order")


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
