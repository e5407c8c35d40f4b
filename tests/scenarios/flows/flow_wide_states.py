"""Rows and states of 16 MB: what a step emits says whether all of its values are as they were."""

import functools
import time

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
KEPT = 2


def payload(number, size_bytes):
    return str(number).rjust(size_bytes, "x")


def number_of(text, size_bytes):
    """Of a payload; -1: it is none."""
    digits = text[-9:].lstrip("x")
    return int(digits) if digits.isdecimal() and text == payload(int(digits), size_bytes) else -1


def enlarge(size_bytes, row):
    return {**row, "payload": payload(row["id"], size_bytes)}


class WideStates(weir.KeyedProcess):
    count = weir.ValueState(pl.Int64, default=0)
    last = weir.ValueState(pl.String, default="")
    recent = weir.ListState(pl.String)

    def __init__(self, size_bytes, nap_s):
        self.size_bytes, self.nap_s = size_bytes, nap_s

    def process(self, key, row, context):
        time.sleep(self.nap_s)
        self.count.value += 1
        before = number_of(self.last.value, self.size_bytes)
        self.last.value = row["payload"]
        self.recent.append(row["payload"])
        if len(self.recent) > KEPT:
            self.recent.popleft()
        kept = [number_of(text, self.size_bytes) for text in self.recent]
        yield {"id": row["id"], "server": key[0], "n": self.count.value, "before": before, "recent": kept}


def build(
    input: str,
    output: str,
    release: str,
    size_bytes: int = 16_000_000,
    rate: float = 6,
    nap_s: float = 0.1,
    parallelism: int = 2,
) -> weir.Dataflow:
    flow = weir.Dataflow("wide_states", max_parallelism=16)
    source = held(weir.JsonLines(input, schema=SCHEMA, rate=rate), release)
    rows = flow.source("events", source, parallelism=2)
    wide = rows.map(
        "enlarge", functools.partial(enlarge, size_bytes), SCHEMA | {"payload": str}, parallelism=2
    )
    states = wide.key_by("server").process(
        "states",
        functools.partial(WideStates, size_bytes, nap_s),
        SCHEMA | {"n": int, "before": int, "recent": pl.List(pl.Int64)},
        parallelism=parallelism,
    )
    states.rebalance().sink("lines", weir.JsonLinesSink(output), parallelism=1)
    return flow
