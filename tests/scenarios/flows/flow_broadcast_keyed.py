"""Rows wait for the first rule, are counted by key, and show how many rules their subtask has applied."""

import polars as pl

import weir
from experiments.held_source import held

#: Rows and rules that make the author's code raise, after it has changed what it keeps.
BAD_EVERY, BAD_FACTOR = 1_000, -1
COLUMNS = {"id": int, "server": str, "n": int, "applied": int}


class Counted(weir.BroadcastProcess):
    n = weir.ValueState(pl.Int64, default=0)

    def on_broadcast(self, row, rules):
        rules["applied"] = rules.get("applied", 0) + 1
        rules.setdefault("factors", []).append(row["factor"])
        if row["factor"] == BAD_FACTOR:
            raise ValueError("a bad rule")

    def process(self, row, rules, context):
        assert context.key == (row["server"],)
        self.n.value += 1
        context.timers.register(10**14)
        if row["id"] % BAD_EVERY == 7:
            raise ValueError("a bad row")
        yield {**row, "n": self.n.value, "applied": rules["applied"]}

    def on_timer(self, key, time_ms, context):
        assert len(context.rules["factors"]) == context.rules["applied"]
        yield {"id": -1, "server": key[0], "n": self.n.value, "applied": context.rules["applied"]}


def build(
    input: str, rules: str, rate: float, output: str, release: str, rules_release: str
) -> weir.Dataflow:
    flow = weir.Dataflow("broadcast_keyed")
    schema = {"id": int, "server": str}
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=schema, event_time="id", rate=rate), release)
    )
    known = flow.source("rules", held(weir.JsonLines(rules, schema={"factor": int}, rate=100), rules_release))
    told = events.key_by("server").connect_broadcast(
        "told", known, Counted, COLUMNS, hold_until="first", parallelism=2
    )
    told.sink("out", weir.JsonLinesSink(output))
    return flow
