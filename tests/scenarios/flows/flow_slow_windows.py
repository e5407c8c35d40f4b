"""Windows of many keys that one watermark completes, and a function that takes long: theirs, a later one, or async.

It takes long only while a file is there: what a test has nothing more to do with need not last.
"""

import asyncio
import time
from pathlib import Path

import polars as pl

import weir


def build(input: str, output: str, kind: str, s_per_call: float, slow: str) -> weir.Dataflow:
    def call_s():
        return s_per_call if Path(slow).exists() else 0.0

    def counted(key, window, rows):
        time.sleep(call_s())
        return pl.DataFrame({"n": [rows.height]})

    def called(row):
        time.sleep(call_s())
        return row

    async def asked(row):
        await asyncio.sleep(call_s())
        return {"k": row["k"], "window_start": row["t"] // 20_000 * 20_000, "n": 1}

    flow = weir.Dataflow("slow_windows")
    told = {"k": int, "window_start": int, "n": int}
    events = flow.source("events", weir.JsonLines(input, schema={"k": int, "t": int}, event_time="t"))
    if kind == "async":
        found = events.map_async("asked", asked, told, in_flight_max=2, timeout="60s")
    elif kind == "function":
        windows = events.key_by("k").window(weir.tumbling("20s"))
        found = windows.process("counted", counted, {"n": int}).select("told", *told)
    else:
        windows = events.key_by("k").window(weir.tumbling("20s"))
        found = windows.aggregate("counted", n=weir.count()).select("told", *told).map("slow", called, told)
    found.sink("out", weir.JsonLinesSink(output))
    return flow
