"""The auction as a source: every row once, whatever the number of subtasks, and from any position on."""

import dataclasses

import polars as pl
import pytest

import weir
from weir.author.operator import OperatorContext
from weir.nexmark.source import NexmarkSource, create_reader

EVENTS = 120_000


def rows(source, split, position=None):
    return list(source.read(split, position))


@pytest.mark.parametrize("splits", [1, 3, 8])
def test_splits_have_every_row_once_and_go_on_from_their_positions(splits):
    source = NexmarkSource(weir.Nexmark("bid", events=EVENTS, splits=splits))
    read = {split: rows(source, split) for split in source.splits()}
    batches = [batch for parts in read.values() for batch, _ in parts]
    assert sum(batch.num_rows for batch in batches) == EVENTS * 46 // 50
    for split, parts in read.items():
        for number, (_, position) in enumerate(parts):
            assert rows(source, split, position) == parts[number + 1 :]


def test_a_job_reads_what_it_needs_only_and_has_event_times():
    def build(parallelism):
        flow = weir.Dataflow("bids")
        bids = flow.source("bids", weir.Nexmark("bid", events=EVENTS, seed=5), parallelism=parallelism)
        bids.select("chosen", "auction", "date_time").with_columns(
            "times", time=pl.col("_event_time_ms")
        ).sink("out", weir.Blackhole())
        return weir.run(flow, collect="times")["times"].to_polars()

    one, three = build(1), build(3)
    assert one.columns == ["auction", "date_time", "time"]
    assert (one["date_time"] == one["time"]).all()
    assert one.sort(one.columns).equals(three.sort(one.columns))
    assert one.height == EVENTS * 46 // 50


def test_no_events():
    assert NexmarkSource(weir.Nexmark("person", events=0)).splits() == []


def left(reader):
    """The rows that are left to read."""
    rows = []
    while not (poll := reader.poll(100)).finished:
        if poll.batch is not None:
            rows += poll.batch.select(["auction", "price"]).to_pylist()
    return sorted(rows, key=str)


def test_it_is_read_on_from_a_checkpoint():
    spec = weir.Nexmark("bid", events=EVENTS)
    context = OperatorContext("job", "bids", 0, 0, 1)
    reader = create_reader(spec)
    reader.open(context)
    first = reader.poll(100).batch
    snapshot = reader.snapshot()
    again = create_reader(spec)
    again.open(dataclasses.replace(context, restored={0: snapshot}))
    assert first.num_rows == 100
    # Which split comes first is open.
    assert left(again) == left(reader)
