"""Queries of the Nexmark benchmark over an online auction that Weir makes up.

weir run weir.examples.nexmark --param query=q1 --param events=1000000
weir run weir.examples.nexmark --param query=q22 --param output=parts
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

import weir

#: Dollars to euros, as in the reference.
_RATE = 0.908


def build(
    query: str = "q0", events: int = 1_000_000, parallelism: int = 1, seed: int = 0, output: str = ""
) -> weir.Dataflow:
    """The dataflow of one query.

    Args:
        query: one of ``QUERIES``.
        events: people, auctions and bids together.
        parallelism: subtasks of each step.
        seed: of the events.
        output: directory of the result as Parquet; "": it is counted and dropped.
    """
    if query not in QUERIES:
        raise weir.GraphError(f"query is {query!r}; there are {', '.join(QUERIES)}")
    flow = weir.Dataflow(f"nexmark_{query}")
    bids = flow.source("bids", weir.Nexmark("bid", events=events, seed=seed), parallelism=parallelism)
    sink = weir.ParquetSink(output) if output else weir.Blackhole()
    QUERIES[query](bids).sink("out", sink)
    return flow


def q0(bids: weir.Stream) -> weir.Stream:
    """Pass through: what it costs to move a row."""
    return bids.select("bid", "auction", "bidder", "price", "date_time", "extra")


def q1(bids: weir.Stream) -> weir.Stream:
    """Currency conversion."""
    euros = bids.with_columns("euros", price=pl.col("price").cast(pl.Float64) * _RATE)
    return euros.select("bid", "auction", "bidder", "price", "date_time", "extra")


def q2(bids: weir.Stream) -> weir.Stream:
    """Selection: bids on some auctions."""
    return bids.filter("some", pl.col("auction") % 123 == 0).select("bid", "auction", "price")


def q14(bids: weir.Stream) -> weir.Stream:
    """Calculation: a price range, a time of day, letters that are counted."""
    euros = bids.with_columns("euros", price=pl.col("price").cast(pl.Float64) * _RATE)
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


def q21(bids: weir.Stream) -> weir.Stream:
    """Channel ids: of well-known channels a number, of others what the URL says."""
    channel = pl.col("channel").str.to_lowercase()
    channel_id = pl.col("url").str.extract(r"(&|^)channel_id=([^&]*)", 2)
    for name, number in (("apple", "0"), ("google", "1"), ("facebook", "2"), ("baidu", "3")):
        channel_id = pl.when(channel == name).then(pl.lit(number)).otherwise(channel_id)
    told = bids.with_columns("ids", channel_id=channel_id).filter("known", pl.col("channel_id").is_not_null())
    return told.select("bid", "auction", "bidder", "price", "channel", "channel_id")


def q22(bids: weir.Stream) -> weir.Stream:
    """Parts of the URL."""
    parts = pl.col("url").str.splitn("/", 7)
    directories = [parts.struct.field(f"field_{number + 2}").alias(f"dir{number}") for number in (1, 2, 3)]
    return bids.with_columns("parts", *directories).select(
        "bid", "auction", "bidder", "price", "channel", "dir1", "dir2", "dir3"
    )


#: By name; the others of the benchmark need windows, joins or results that are taken back.
QUERIES: dict[str, Callable[[weir.Stream], weir.Stream]] = {
    "q0": q0,
    "q1": q1,
    "q2": q2,
    "q14": q14,
    "q21": q21,
    "q22": q22,
}
