"""Three jobs as Weir has them, which ``benchmarks.runners`` runs on Spark beside the same ones in PySpark."""

from __future__ import annotations

import polars as pl

import weir

BID = {"auction": int, "bidder": int, "price": int, "at": int, "url": str}
AUCTION = {"id": int, "seller": int, "at": int}


def build(job: str, input: str, output: str) -> weir.Dataflow:
    """The dataflow.

    Args:
        job: "rows", "windows" or "join".
        input: folder with ``bids`` and ``auctions``.
        output: folder of Parquet files.
    """
    flow = weir.Dataflow(job)
    source = weir.JsonLines(f"{input}/bids", schema=BID, event_time="at")
    bids = flow.source("bids", source, watermark=weir.bounded_out_of_orderness("2s"))
    if job == "rows":
        kept = bids.filter(
            "kept", (pl.col("auction") % 3 != 0) & pl.col("url").str.contains("a", literal=True)
        )
        euros = kept.select("euros", "auction", "bidder", euros=pl.col("price") * 908 // 1000)
        euros.sink("out", weir.ParquetSink(output))
    elif job == "windows":
        windows = bids.key_by("auction").window(weir.sliding("10s", "2s"))
        totals = windows.aggregate("totals", n=weir.count(), most=weir.max("price"), total=weir.sum("price"))
        totals.sink("out", weir.ParquetSink(output))
    else:
        source = weir.JsonLines(f"{input}/auctions", schema=AUCTION, event_time="at")
        auctions = flow.source("auctions", source, watermark=weir.bounded_out_of_orderness("2s"))
        pairs = auctions.key_by("id").join("pairs", bids.key_by("auction"), within=("0s", "20s"))
        pairs.select("pair", "id", "seller", "bidder", "price").sink("out", weir.ParquetSink(output))
    return flow
