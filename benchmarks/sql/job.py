"""A query of Nexmark as its SQL text, over the streams of the builder's version."""

from __future__ import annotations

import re

import pyarrow as pa

import weir
from benchmarks.sql.nexmark_texts import TEXTS
from weir.examples.nexmark import MAX_DRIFT, PARTITIONS
from weir.examples.nexmark_rows import side_input
from weir.examples.nexmark_streams import Auction
from weir.nexmark.model import EVENTS_PER_EPOCH, PLACES
from weir.sql.program import build_program

#: Queries whose text calls a function of Python, as the builder's version does: they are texts from source to sink.
CALLING = ("q13",)
_PROGRAM = """
CREATE SOURCE bid (WATERMARK FOR date_time AS date_time - INTERVAL '2' SECOND)
    WITH (connector = 'nexmark', stream = 'bid', {settings});
CREATE FUNCTION item_of RETURNS VARCHAR AS 'benchmarks.sql.job:item_of';
CREATE SINK out WITH ({sink}) AS {query};
"""


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
    if query in CALLING:
        return _program(query, events, parallelism, seed, output, events_per_second, rate)
    flow = weir.Dataflow(f"nexmark_sql_{query}")
    auction = Auction(flow, events, parallelism, seed, events_per_second, rate, MAX_DRIFT.get(query, ""))
    text = TEXTS[query]
    names = {"bid": "bids", "auction": "auctions", "person": "people"}
    read = {table for table in names if re.search(rf"(FROM|JOIN|\() *{table}\b", text)}
    result = flow.sql(text, **{table: getattr(auction, names[table]) for table in sorted(read)})
    partitions = PARTITIONS.get(query, ())
    result.sink("out", weir.ParquetSink(output, partition_by=partitions) if output else weir.Blackhole())
    return flow


def item_of(auction: pa.Array) -> pa.Array:
    """What the bounded side input of q13 says of each auction; string, shape (rows,)."""
    return side_input(auction.to_numpy())


def _program(
    query: str, events: int, parallelism: int, seed: int, output: str, events_per_second: int, rate: float
) -> weir.Dataflow:
    settings: dict[str, float] = {
        "events": events,
        "seed": seed,
        "events_per_second": events_per_second,
        "splits": 1 if rate else 8,
    }
    if rate:
        first, stop = PLACES["bid"]
        settings["rate"] = rate * (stop - first) / EVENTS_PER_EPOCH
    told = ", ".join(f"{name} = '{value}'" for name, value in settings.items())
    sink = f"connector = 'parquet', path = '{output}'" if output else "connector = 'blackhole'"
    text = _PROGRAM.format(settings=told, sink=sink, query=TEXTS[query])
    return build_program(f"{query}.sql", text, f"nexmark_sql_{query}", parallelism)
