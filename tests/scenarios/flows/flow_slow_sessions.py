"""Sessions of keys of which one is slow: rows of its subtask wait for credit, while later ones reach other subtasks."""

import time

import polars as pl

import weir
from experiments.held_source import held

GAP_MS = 50


class Sessions(weir.KeyedProcess):
    rows = weir.ValueState(pl.Int64, default=0)
    last = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        if key[0] == "slow":
            time.sleep(row["pause_ms"] / 1e3)
        self.rows.value += 1
        self.last.value = row["id"]
        context.timers.register(row["id"] + GAP_MS)
        return ()

    def on_timer(self, key, time_ms, context):
        if time_ms == self.last.value + GAP_MS:
            yield {"key": key[0], "rows": self.rows.value, "last": self.last.value}
            self.rows.clear()


def build(input: str, output: str, release: str, rate: float) -> weir.Dataflow:
    flow = weir.Dataflow("slow-sessions")
    schema = {"id": int, "key": str, "pause_ms": int}
    source = held(weir.JsonLines(input, schema=schema, event_time="id", rate=rate), release)
    in_order = weir.bounded_out_of_orderness("0ms")
    keyed = flow.source("events", source, watermark=in_order).key_by("key")
    columns = {"key": str, "rows": int, "last": int}
    keyed.process("sessions", Sessions, columns, parallelism=2).sink("out", weir.JsonLinesSink(output))
    return flow
