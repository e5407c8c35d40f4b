"""Single events to a latency sink; beside it the union of a source that is idle most of the time and a busy one."""

import weir

SCHEMA = {"id": int, "server": str}


def build(input: str, output: str, trickle_events: int) -> weir.Dataflow:
    flow = weir.Dataflow("trickle")
    trickle = flow.source("trickle", weir.JsonLines(input, schema=SCHEMA, rate=25, events=trickle_events))
    trickle.key_by("server").count("count", parallelism=2).sink("out", weir.LatencySink(output, "trickle"))
    idle = flow.source("idle", weir.JsonLines(input, schema=SCHEMA, rate=0.001))
    busy = flow.source("busy", weir.JsonLines(input, schema=SCHEMA, rate=100))
    idle.rebalance().union("both", busy.rebalance()).key_by("server").count("both_count").sink(
        "both_out", weir.Blackhole()
    )
    return flow
