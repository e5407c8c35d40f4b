"""Lines -> a Delta Lake table, and Parquet files in partitions that hold the rows of several checkpoints."""

import polars as pl

import weir
from experiments.held_source import held


def build(input: str, output: str, release: str, rate: float) -> weir.Dataflow:
    flow = weir.Dataflow("files")
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate)
    rows = flow.source("rows", held(source, release)).with_columns("day", day=pl.col("id") % 5)
    rows.rebalance().sink("table", weir.DeltaSink(f"{output}/table", partition_by=["day"]), parallelism=2)
    files = weir.ParquetSink(f"{output}/files", partition_by=["day"], roll_ms=1_500)
    rows.rebalance().sink("files", files, parallelism=2)
    return flow
