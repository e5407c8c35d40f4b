"""Rules that come in rounds, and rows that show which of them their subtask knows."""

import weir
from experiments.held_source import held


class Known(weir.BroadcastProcess):
    def on_broadcast(self, row, rules):
        rules[row["server"]] = row["round"]

    def process(self, row, rules):
        yield {**row, "round": rules.get(row["server"], -1), "known": len(rules)}


def build(input: str, rules: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("broadcast")
    events, known = (
        flow.source(name, held(weir.JsonLines(path, schema=schema, rate=rate), release))
        for name, path, schema in (
            ("events", input, {"id": int, "server": str}),
            ("rules", rules, {"server": str, "round": int}),
        )
    )
    columns = {"id": int, "server": str, "round": int, "known": int}
    told = events.key_by("server").connect_broadcast("told", known, Known, columns)
    told.rebalance().sink("out", weir.JsonLinesSink(output))
    return flow
