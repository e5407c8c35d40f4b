"""Queries of Nexmark over windows of time."""

from __future__ import annotations

from typing import Any

import polars as pl

import weir
from weir.dataflow.streams import WindowResults
from weir.examples.nexmark_streams import Auction

_DAY = "1d"
_TEN_SECONDS_MS = 10_000
#: The price ranges that statistics tell apart, in cents.
_CHEAP, _DEAR = 10_000, 1_000_000


def q5(auction: Auction) -> weir.Stream:
    """Hot items: in each window of 10 s, one every 2 s, the auctions with the most bids."""
    counts = (
        auction.bids.key_by("auction").window(weir.sliding("10s", "2s")).aggregate("bids_of", n=weir.count())
    )
    return counts.window_top("hottest", by="n", ties=True).select("hot", "auction", "n", "window_start")


def q7(auction: Auction) -> weir.Stream:
    """The highest bids of each window of 10 s, over all auctions: every subtask chooses first."""
    start = pl.col("date_time") // _TEN_SECONDS_MS * _TEN_SECONDS_MS
    bids = auction.bids.select("bid", "auction", "price", "bidder", "date_time")
    placed = bids.with_columns("placed", window_start=start, window_end=start + _TEN_SECONDS_MS)
    highest = WindowResults(placed.flow, placed.node).window_top("highest", by="price", ties=True)
    return highest.select("told", "auction", "price", "bidder", "date_time")


def q8(auction: Auction) -> weir.Stream:
    """New people who open an auction in the window of 10 s in which they came."""
    window = weir.tumbling("10s")
    people = auction.people.key_by("id", "name").window(window).aggregate("came", came=weir.count())
    sellers = auction.auctions.key_by("seller").window(window).aggregate("opened", opened=weir.count())
    new = people.key_by("id").join("new_sellers", sellers.key_by("seller"), window=window)
    return new.select("told", "id", "name", "window_start")


def q11(auction: Auction) -> weir.Stream:
    """Bids of each bidder in sessions that 10 s without a bid end."""
    sessions = auction.bids.key_by("bidder").window(weir.session("10s"))
    counts = sessions.aggregate("bids_of", bid_count=weir.count())
    return counts.select("told", "bidder", "bid_count", "window_start", "window_end")


def q12(auction: Auction) -> weir.Stream:
    """Bids of each bidder in windows of 10 s of the clock."""
    window = weir.tumbling("10s", time="processing")
    counts = auction.bids.key_by("bidder").window(window).aggregate("bids_of", bid_count=weir.count())
    return counts.select("told", "bidder", "bid_count", "window_start", "window_end")


def q15(auction: Auction) -> weir.Stream:
    """Bids, bidders and auctions of each day, by price range."""
    bids = auction.bids.select("bid", "auction", "bidder", "price", "date_time")
    found = bids.window_all(weir.tumbling(_DAY)).aggregate("statistics", **_statistics())
    return found.with_columns("told", day=day_of("window_start")).select("statistic", "day", *_statistics())


def q16(auction: Auction) -> weir.Stream:
    """The same for each channel, with the minute of its last bid; each channel has all its bidders and auctions."""
    bids = auction.bids.select("bid", "channel", "auction", "bidder", "price", "date_time")
    placed = bids.with_columns("placed", minute=pl.col("date_time") // 60_000 % 1_440)
    channels = placed.key_by("channel").window(weir.tumbling(_DAY))
    found = channels.aggregate("statistics", minute=weir.max("minute"), **_statistics())
    last = pl.from_epoch(pl.col("minute") * 60_000, time_unit="ms").dt.strftime("%H:%M")
    told = found.with_columns("told", day=day_of("window_start"), minute=last)
    return told.select("statistic", "channel", "day", "minute", *_statistics())


def q17(auction: Auction) -> weir.Stream:
    """Statistics of each auction and day."""
    price = pl.col("price")
    days = auction.bids.key_by("auction").window(weir.tumbling(_DAY))
    found = days.aggregate(
        "statistics",
        total_bids=weir.count(),
        rank1_bids=weir.count().where(price < _CHEAP),
        rank2_bids=weir.count().where((price >= _CHEAP) & (price < _DEAR)),
        rank3_bids=weir.count().where(price >= _DEAR),
        min_price=weir.min("price"),
        max_price=weir.max("price"),
        avg_price=weir.mean("price"),
        sum_price=weir.sum("price"),
    )
    told = found.with_columns("told", day=day_of("window_start"))
    bids = ("total_bids", "rank1_bids", "rank2_bids", "rank3_bids")
    prices = ("min_price", "max_price", "avg_price", "sum_price")
    return told.select("statistic", "auction", "day", *bids, *prices)


def day_of(column: str) -> pl.Expr:
    """The day of a time in ms since 1970, as text."""
    return pl.from_epoch(column, time_unit="ms").dt.strftime("%Y-%m-%d")


def _statistics() -> dict[str, Any]:
    """Numbers of bids, different bidders and different auctions, by price range."""
    price = pl.col("price")
    ranks = {"rank1": price < _CHEAP, "rank2": (price >= _CHEAP) & (price < _DEAR), "rank3": price >= _DEAR}
    counts = {}
    for name, call in (
        ("bids", weir.count()),
        ("bidders", weir.count_distinct("bidder")),
        ("auctions", weir.count_distinct("auction")),
    ):
        counts[f"total_{name}"] = call
        counts |= {f"{rank}_{name}": call.where(condition) for rank, condition in ranks.items()}
    return counts
