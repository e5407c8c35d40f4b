"""Queries of Nexmark on real task managers give what a batch computation does, through rescales and kill -9."""

import polars as pl
import pytest

import weir
from benchmarks.nexmark_reference import equal_rows, table_of
from tests.scenarios.flows import flow_nexmark
from weir.nexmark.model import STREAMS
from weir.nexmark.source import NexmarkSource
from weir.plan.stages import physical_graph

pytestmark = pytest.mark.scenario

#: Of event time each event has a place of its own, and there are 100 windows of 10 s.
EVENTS, RATE, EVENTS_PER_SECOND = 20_000, 1_200, 20
SLIDE_MS, SIZE_MS = 2_000, 10_000


def streams(directory):
    """The auction as files, and as frames."""
    directory.mkdir()
    found = {}
    for stream in STREAMS:
        spec = weir.Nexmark(stream, events=EVENTS, events_per_second=EVENTS_PER_SECOND, splits=1)
        frame = pl.concat([pl.DataFrame(batch) for batch, _ in NexmarkSource(spec).read(0, None)])
        frame.write_ndjson(directory / f"{stream}.jsonl")
        found[stream] = frame
    return found


def test_stateful_queries_equal_a_batch_through_rescales_and_the_loss_of_a_task_manager(
    run_disturbed, tmp_path
):
    auction = streams(tmp_path / "auction")
    parameters = {"directory": tmp_path / "auction", "output": tmp_path / "out", "rate": RATE}
    graph = physical_graph(flow_nexmark.build("", "", 1.0, "").build())
    [stage] = [stage.index for stage in graph.stages if any(n.name == "winning" for n in stage.nodes)]
    assert graph.stages[stage].nodes[0].name == "valid", "one stage, by one key"
    run_disturbed("flow_nexmark", parameters, stages=[stage], parallelisms=(3, 2), rows=200)
    expected = {
        "q5": hot_items(auction["bid"]),
        "q8": new_sellers(auction["person"], auction["auction"]),
        "q9": winning_bids(auction["auction"], auction["bid"]),
    }
    for query, wanted in expected.items():
        parts = [part for part in sorted((tmp_path / f"out-{query}").glob("part-*")) if part.stat().st_size]
        found = pl.concat([pl.read_ndjson(part) for part in parts])
        found = table_of(found) if query == "q9" else found
        assert wanted.height > 10
        assert equal_rows(found.select(wanted.columns).cast(wanted.schema), wanted), query


def hot_items(bids):
    start = pl.col("date_time") // SLIDE_MS * SLIDE_MS
    windows = pl.concat(
        [bids.select("auction", window_start=start - back) for back in range(0, SIZE_MS, SLIDE_MS)]
    )
    counts = windows.group_by("auction", "window_start").agg(n=pl.len().cast(pl.Int64))
    hottest = counts.filter(pl.col("n") == pl.col("n").max().over("window_start"))
    return hottest.select("auction", "n", "window_start")


def new_sellers(people, auctions):
    window = (pl.col("date_time") // SIZE_MS * SIZE_MS).alias("window_start")
    sellers = auctions.select(pl.col("seller").alias("id"), window).unique()
    return people.select("id", "name", window).unique().join(sellers, on=["id", "window_start"])


def winning_bids(auctions, bids):
    pairs = auctions.join(bids, left_on="id", right_on="auction", suffix="_bid")
    valid = pairs.filter(pl.col("date_time_bid").is_between(pl.col("date_time"), pl.col("expires")))
    best = valid.sort("price", "date_time_bid", descending=[True, False]).group_by("id").first()
    named = best.rename({"date_time_bid": "bid_time", "extra_bid": "bid_extra"})
    columns = ("id", "initial_bid", "reserve", "date_time", "expires", "seller", "category")
    return named.select(*columns, "bidder", "price", "bid_time", "bid_extra")
