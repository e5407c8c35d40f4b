"""Queries of Nexmark that look at one row at a time."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
import pyarrow as pa

import weir
from weir.examples.nexmark_streams import Auction

#: Dollars to euros, as in the reference.
_RATE = 0.908
#: Keys of the side input.
_SIDE_ROWS = 10_000


def q0(auction: Auction) -> weir.Stream:
    """Pass through: what it costs to move a row."""
    return auction.bids.select("bid", "auction", "bidder", "price", "date_time", "extra")


def q1(auction: Auction) -> weir.Stream:
    """Currency conversion."""
    euros = auction.bids.with_columns("euros", price=pl.col("price").cast(pl.Float64) * _RATE)
    return euros.select("bid", "auction", "bidder", "price", "date_time", "extra")


def q2(auction: Auction) -> weir.Stream:
    """Selection: bids on some auctions."""
    return auction.bids.filter("some", pl.col("auction") % 123 == 0).select("bid", "auction", "price")


def q10(auction: Auction) -> weir.Stream:
    """Log to files: the day and the minute of each bid, which name the folders of the sink."""
    time = pl.from_epoch("date_time", time_unit="ms").dt
    told = auction.bids.with_columns("told", dt=time.strftime("%Y-%m-%d"), hm=time.strftime("%H:%M"))
    return told.select("bid", "auction", "bidder", "price", "date_time", "extra", "dt", "hm")


def q13(auction: Auction) -> weir.Stream:
    """Bids with what a bounded side input, held by every subtask, says of their auction."""
    schema = {name: int for name in ("auction", "bidder", "price", "date_time")} | {"value": str}
    bids = auction.bids.select("bid", "auction", "bidder", "price", "date_time")
    return bids.map_batches("looked_up", _with_side_input, schema)


def q14(auction: Auction) -> weir.Stream:
    """Calculation: a price range, a time of day, letters that are counted."""
    euros = auction.bids.with_columns("euros", price=pl.col("price").cast(pl.Float64) * _RATE)
    kept = euros.filter("range", (pl.col("price") > 1_000_000) & (pl.col("price") < 50_000_000))
    hour = pl.col("date_time") // 3_600_000 % 24
    kind = (
        pl.when((hour >= 8) & (hour <= 18))
        .then(pl.lit("dayTime"))
        .when((hour <= 6) | (hour >= 20))
        .then(pl.lit("nightTime"))
        .otherwise(pl.lit("otherTime"))
    )
    told = kept.with_columns(
        "told",
        bid_time_type=kind,
        c_counts=pl.col("extra").str.count_matches("c", literal=True).cast(pl.Int64),
    )
    return told.select("bid", "auction", "bidder", "price", "bid_time_type", "date_time", "extra", "c_counts")


def q21(auction: Auction) -> weir.Stream:
    """Channel ids: of well-known channels a number, of others what the URL says."""
    channel = pl.col("channel").str.to_lowercase()
    channel_id = pl.col("url").str.extract(r"(&|^)channel_id=([^&]*)", 2)
    for name, number in (("apple", "0"), ("google", "1"), ("facebook", "2"), ("baidu", "3")):
        channel_id = pl.when(channel == name).then(pl.lit(number)).otherwise(channel_id)
    told = auction.bids.with_columns("ids", channel_id=channel_id)
    known = told.filter("known", pl.col("channel_id").is_not_null())
    return known.select("bid", "auction", "bidder", "price", "channel", "channel_id")


def q22(auction: Auction) -> weir.Stream:
    """Parts of the URL."""
    parts = pl.col("url").str.splitn("/", 7)
    directories = [parts.struct.field(f"field_{number + 2}").alias(f"dir{number}") for number in (1, 2, 3)]
    return auction.bids.with_columns("parts", *directories).select(
        "bid", "auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"
    )


def side_input(auctions: np.ndarray) -> pa.StringArray:
    """What the bounded side input has for each auction; shape (rows,)."""
    return _items().take(pa.array(auctions % _SIDE_ROWS))


@cache
def _items() -> pa.StringArray:
    """The value of each key, from 0 on."""
    return pa.array([f"item {key}" for key in range(_SIDE_ROWS)], pa.string())


def _with_side_input(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = side_input(batch.column("auction").to_numpy())
    return batch.add_column(4, pa.field("value", pa.string(), nullable=False), values)
