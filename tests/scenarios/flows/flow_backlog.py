"""A step that takes long for each row, behind a source that has all of them at once."""

import os
import time

import weir


def doze(row, s_per_row, slow):
    if not slow or os.path.exists(slow):
        time.sleep(s_per_row)
    return row


def build(input: str, output: str, s_per_row: float, chained: bool = False, slow: str = "") -> weir.Dataflow:
    """With ``slow``, rows take long only as long as there is such a file."""
    flow = weir.Dataflow("backlog")
    rows = flow.source("events", weir.JsonLines(input, schema={"id": int}))
    if not chained:
        rows = rows.rebalance()
    dozed = rows.map("slow", lambda row: doze(row, s_per_row, slow), {"id": int})
    dozed.sink("out", weir.JsonLinesSink(output))
    return flow
