"""Timers by event time, several rows to one, and by the clock; each tells how many of its kind its key has had.

A side output has every row, with its number among those of its key.
"""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
SPAN_MS, DELAY_MS, CLOCK_MS = 100, 300, 50


class Timed(weir.KeyedProcess):
    fired = weir.ValueState(pl.Int64, default=0)
    rows = weir.ValueState(pl.Int64, default=0)
    told = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.rows.value += 1
        yield weir.side("seen", {"id": row["id"], "server": key[0], "n": self.rows.value})
        context.timers.register(row["id"] // SPAN_MS * SPAN_MS + DELAY_MS)
        # Always taken back before it fires.
        context.timers.register(row["id"] + 1_000_000_000)
        context.timers.delete(row["id"] + 1_000_000_000)
        context.timers.register_processing(context.timers.now_ms // CLOCK_MS * CLOCK_MS + CLOCK_MS)

    def on_timer(self, key, time_ms, context):
        if not context.timers.is_processing:
            self.fired.value += 1
            yield {"server": key[0], "kind": "event", "at": time_ms, "n": self.fired.value}
        elif self.rows.value > self.told.value:
            self.told.value = self.rows.value
            yield {"server": key[0], "kind": "clock", "at": time_ms, "n": self.rows.value}


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("timers")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release)
    )
    columns = {"server": str, "kind": str, "at": int, "n": int}
    sides = {"seen": {"id": int, "server": str, "n": int}}
    timed = events.key_by("server").process("timed", Timed, columns, side_outputs=sides)
    timed.rebalance().sink("out", weir.JsonLinesSink(output))
    timed.side_output("seen").rebalance().sink("seen", weir.JsonLinesSink(f"{output}-seen"))
    return flow
