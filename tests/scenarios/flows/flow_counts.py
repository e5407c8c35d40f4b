"""The obvious counting job: read, add one, write; once per record and once per batch."""

import polars as pl

import weir
from benchmarks.functions_job import PerBatch, PerRecord

COLUMNS = {"server_name": pl.String, "n": pl.Int64}


def build(input: str, output: str, parallelism: int = 2) -> weir.Dataflow:
    flow = weir.Dataflow("counts")
    source = weir.JsonLines(input, schema={"id": int, "server_name": str})
    events = flow.source("events", source, parallelism=parallelism)
    for name, process in (("records", PerRecord), ("batches", PerBatch)):
        counts = events.key_by("server_name").process(name, process, COLUMNS)
        counts.sink(f"{name}_out", weir.ParquetSink(f"{output}/{name}"))
    return flow
