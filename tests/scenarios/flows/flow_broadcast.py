"""Rules that are read once, at the start, and rows that show which of them their subtask knows."""

import weir
from experiments.held_source import held


class Known(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        rules[row["server"]] = row["rule"]

    def process(self, row, rules):
        yield {**row, "rule": rules.get(row["server"], ""), "known": len(rules)}


def build(input: str, rules: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("broadcast")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate), release)
    )
    known = flow.source("rules", weir.JsonLines(rules, schema={"server": str, "rule": str}))
    columns = {"id": int, "server": str, "rule": str, "known": int}
    told = events.key_by("server").connect_broadcast("told", known, Known, columns)
    told.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
