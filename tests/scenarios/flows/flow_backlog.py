"""A step that takes long for each row, behind a source that has all of them at once."""

import os
import time

import weir


def doze(row, s_per_row, slow):
    if not slow or os.path.exists(slow):
        time.sleep(s_per_row)
    return row


class Rules(weir.Source):
    """One rule, as soon as there is a file; it ends when rows are not slow any more."""

    def __init__(self, go, slow):
        self.go, self.slow = go, slow

    def splits(self):
        return ["only"]

    def read(self, split, position):
        while not os.path.exists(self.go):
            yield None
        if position is None:
            yield [{"rule": "all"}], 1
        while os.path.exists(self.slow):
            yield None


class Ruled(weir.BroadcastProcess):
    def __init__(self, s_per_row, slow):
        self.s_per_row, self.slow = s_per_row, slow

    def on_broadcast(self, row, rules):
        rules[row["rule"]] = True

    def process(self, row, rules):
        assert rules
        yield doze(row, self.s_per_row, self.slow)


def build(
    input: str, output: str, s_per_row: float, chained: bool = False, slow: str = "", go: str = ""
) -> weir.Dataflow:
    """With ``slow``, rows take long only as long as there is such a file; with ``go`` they wait for one."""
    flow = weir.Dataflow("backlog")
    rows = flow.source("events", weir.JsonLines(input, schema={"id": int}))
    if go:
        rules = flow.source("rules", weir.UserSource(lambda: Rules(go, slow), schema={"rule": str}))
        ruled = rows.key_by("id").connect_broadcast(
            "slow", rules, lambda: Ruled(s_per_row, slow), {"id": int}, hold_until="first"
        )
        ruled.sink("out", weir.JsonLinesSink(output))
        return flow
    if not chained:
        rows = rows.rebalance()
    dozed = rows.map("slow", lambda row: doze(row, s_per_row, slow), {"id": int})
    dozed.sink("out", weir.JsonLinesSink(output))
    return flow
