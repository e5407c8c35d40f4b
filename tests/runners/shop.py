"""A job that runs on Spark as a user's does: by its module here, and as a file in a folder of its own."""

import polars as pl
import pyarrow.compute as pc

import weir

ROW = {"k": str, "at": int, "v": int}


class Counter(weir.KeyedProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.n.value += 1
        if row["v"] == 13:
            raise ValueError("thirteen")
        yield {"k": key[0], "n": self.n.value}


def doubled(batch):
    place = batch.schema.get_field_index("v")
    return batch.set_column(place, "v", pc.multiply(batch.column(place), 2))


def build(input: str, output: str, rate: float | None = None, follow: bool = False) -> weir.Dataflow:
    flow = weir.Dataflow("shop")
    lines = weir.JsonLines(input, schema=ROW, rate=rate, follow=follow)
    rows = flow.source("rows", lines, event_time="at", watermark=weir.bounded_out_of_orderness("0s"))
    if follow:
        rows.map_batches("doubled", doubled, ROW).sink("out", weir.Print())
    else:
        rows.key_by("k").process("each", Counter, {"k": str, "n": int}).sink("out", weir.Print())
    totals = rows.key_by("k").window(weir.tumbling("5s")).aggregate("totals", total=weir.sum("v"))
    totals.sink("files", weir.JsonLinesSink(output))
    return flow
