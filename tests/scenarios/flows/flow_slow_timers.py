"""Many keys whose timers, all due at one watermark, take long each; several watermarks and the end of the input."""

import time

import weir

DELAY_MS = 1_000


class Slow(weir.KeyedProcess):
    rows = weir.ValueState(int, default=0)
    s_per_timer = 0.0

    def process(self, key, row, context):
        self.rows.value += 1
        context.timers.register(context.event_time_ms + DELAY_MS)

    def on_timer(self, key, time_ms, context):
        time.sleep(self.s_per_timer)
        yield {"k": key[0], "at": time_ms, "n": self.rows.value}


def build(input: str, output: str, s_per_timer: float) -> weir.Dataflow:
    flow = weir.Dataflow("slow_timers")
    slow = type("Slow", (Slow,), {"s_per_timer": s_per_timer})
    events = flow.source("events", weir.JsonLines(input, schema={"k": int, "t": int}, event_time="t"))
    told = events.key_by("k").process("slow", slow, {"k": int, "at": int, "n": int})
    told.sink("out", weir.JsonLinesSink(output))
    return flow
