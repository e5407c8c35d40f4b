"""Clicks of users in the logs of several servers, which are all over the same hours; visits by timers."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "user": int, "at": int}
GAP_MS = 30_000


class Visits(weir.KeyedProcess):
    clicks = weir.ValueState(pl.Int64, default=0)
    ends = weir.ValueState(pl.Int64, default=0)

    def process(self, key, row, context):
        self.clicks.value += 1
        end = context.event_time_ms + GAP_MS
        if end > self.ends.value:
            context.timers.delete(self.ends.value)
            context.timers.register(end)
            self.ends.value = end

    def on_timer(self, key, time_ms, context):
        yield {"user": key[0], "at": time_ms, "n": self.clicks.value}
        self.clicks.clear()


def build(input: str, rate: float, output: str, release: str, readers: int) -> weir.Dataflow:
    flow = weir.Dataflow("time_order")
    clicks = flow.source(
        "clicks",
        held(weir.JsonLines(input, schema=SCHEMA, event_time="at", rate=rate), release),
        parallelism=readers,
        watermark=weir.bounded_out_of_orderness("0s"),
    )
    # Another key: the clicks of a user come from every subtask.
    counted = clicks.key_by("id").count("counted", parallelism=2)
    visits = counted.key_by("user").process(
        "visits", Visits, {"user": int, "at": int, "n": int}, parallelism=2
    )
    visits.sink("out", weir.JsonLinesSink(output))
    return flow
