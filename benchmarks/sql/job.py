"""A query of Nexmark as its SQL text, over the streams of the builder's version."""

from __future__ import annotations

import re

import weir
from benchmarks.sql.nexmark_texts import TEXTS
from weir.examples.nexmark import PARTITIONS
from weir.examples.nexmark_streams import Auction


def build(
    query: str = "q0",
    events: int = 1_000_000,
    parallelism: int = 1,
    seed: int = 0,
    output: str = "",
    events_per_second: int = 10_000,
    rate: float = 0.0,
) -> weir.Dataflow:
    """As that of ``weir.examples.nexmark``."""
    flow = weir.Dataflow(f"nexmark_sql_{query}")
    auction = Auction(flow, events, parallelism, seed, events_per_second, rate)
    text = TEXTS[query]
    names = {"bid": "bids", "auction": "auctions", "person": "people"}
    read = {table for table in names if re.search(rf"(FROM|JOIN|\() *{table}\b", text)}
    result = flow.sql(text, **{table: getattr(auction, names[table]) for table in sorted(read)})
    partitions = PARTITIONS.get(query, ())
    result.sink("out", weir.ParquetSink(output, partition_by=partitions) if output else weir.Blackhole())
    return flow
