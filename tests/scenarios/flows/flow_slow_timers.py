"""Many keys whose timers, all due at one watermark, take long each; several watermarks and the end of the input.

They take long only while a file is there: what a test has nothing more to do with need not last.
"""

import time
from pathlib import Path

import weir

DELAY_MS = 1_000


class Slow(weir.KeyedProcess):
    rows = weir.ValueState(int, default=0)
    s_per_timer = 0.0
    slow = Path()

    def process(self, key, row, context):
        self.rows.value += 1
        context.timers.register(context.event_time_ms + DELAY_MS)

    def on_timer(self, key, time_ms, context):
        if self.slow.exists():
            time.sleep(self.s_per_timer)
        yield {"k": key[0], "at": time_ms, "n": self.rows.value}


def build(input: str, output: str, s_per_timer: float, slow: str) -> weir.Dataflow:
    flow = weir.Dataflow("slow_timers")
    steps = type("Slow", (Slow,), {"s_per_timer": s_per_timer, "slow": Path(slow)})
    events = flow.source("events", weir.JsonLines(input, schema={"k": int, "t": int}, event_time="t"))
    told = events.key_by("k").process("slow", steps, {"k": int, "at": int, "n": int})
    told.sink("out", weir.JsonLinesSink(output))
    return flow
