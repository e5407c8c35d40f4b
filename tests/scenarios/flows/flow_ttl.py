"""A count that expires by event time; each row tells what it found, and the times by which that can be checked."""

import polars as pl

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
TTL_MS = 400
#: Of a key without rows.
UNKNOWN = -1


class Expiring(weir.KeyedProcess):
    lately = weir.ValueState(pl.Int64, default=0, ttl=weir.Ttl(f"{TTL_MS}ms"))
    recent = weir.ListState(pl.Int64, ttl=weir.Ttl(f"{TTL_MS}ms"))
    rows = weir.ValueState(pl.Int64, default=0)
    written = weir.ValueState(pl.Int64, default=UNKNOWN)

    def process(self, key, row, context):
        found, recent, before = self.lately.value, len(self.recent), self.written.value
        self.lately.value = found + 1
        self.recent.append(row["id"])
        self.rows.value += 1
        self.written.value = context.event_time_ms
        yield {
            "id": row["id"],
            "server": key[0],
            "n": self.rows.value,
            "found": found,
            "recent": recent,
            "before": before,
            "now": context.event_time_ms,
        }


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("expiring")
    source = weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate)
    columns = {"id": int, "server": str, "n": int, "found": int, "recent": int, "before": int, "now": int}
    rows = flow.source("events", held(source, release)).key_by("server")
    rows.process("expiring", Expiring, columns).rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
