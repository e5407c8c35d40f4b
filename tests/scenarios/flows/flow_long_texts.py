"""Long texts of Parquet to the subtask of their key, which looks at them slowly until it is released."""

import functools
import time
from pathlib import Path

import polars as pl
import pyarrow as pa

import weir

FOUND = pa.schema([pa.field("id", pa.int64(), False), pa.field("is_right", pa.bool_(), False)])


def text_of(number: int) -> str:
    return f"{number} ü " * 30


def look(us_per_row, release, batch):
    if not Path(release).exists():
        time.sleep(batch.num_rows * us_per_row / 1e6)
    numbers, texts = batch.column("id").to_pylist(), batch.column("payload").to_pylist()
    is_right = [text == text_of(number) for number, text in zip(numbers, texts, strict=True)]
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), pa.array(is_right)], schema=FOUND)


def build(input: str, output: str, us_per_row: float, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("long_texts")
    schema = {"id": pl.Int64, "key": pl.String, "payload": pl.String}
    rows = flow.source("rows", weir.Parquet(input, schema=schema), parallelism=2)
    seen = rows.key_by("key").map_batches(
        "look", functools.partial(look, us_per_row, release), FOUND, parallelism=2
    )
    seen.sink("out", weir.JsonLinesSink(output))
    return flow
