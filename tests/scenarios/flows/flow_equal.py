"""The jobs of ``tests/equal`` side by side in one dataflow, each output with a sink and the event times of its rows."""

import polars as pl
import pyarrow as pa

import weir
from experiments.held_source import held
from tests.equal.equal_jobs import flow_of


def with_time(batch):
    """The user columns and the event time."""
    time_ms = batch["_event_time_ms"]
    return batch.drop_columns(["_event_time_ms", "_ingest_time_us"]).append_column("time_ms", time_ms)


def build(input: str, output: str, names: str, parallelism: int, release: str) -> weir.Dataflow:
    def end(name, stream):
        # Without it a side output would be tied to its step, which then could not be scaled.
        told = stream.rebalance() if "_side_" in name else stream
        if stream.is_changelog:
            told = told.with_columns(f"{name}_timed", time_ms=pl.col("_event_time_ms"))
        else:
            # An expression is checked for each step in each process, which takes longer than the steps here.
            schema = stream.schema.append(pa.field("time_ms", pa.int64()))
            told = told.map_batches(f"{name}_timed", with_time, schema)
        told.sink(f"{name}_out", weir.JsonLinesSink(f"{output}/{name}"))

    def read(source, lines):
        return held(lines, f"{release}_quiet" if source == "quiet" else release)

    return flow_of(input, names.split(","), parallelism, end, read, puts_aside=True)[0]
