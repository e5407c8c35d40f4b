"""A left and a full join within bounds of two files, whose rows are out of order."""

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "key": int, "at": int}
WITHIN_MS = (-50, 200)
BOUND_MS = 400


def build(left: str, right: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("join_kills")
    watermark = weir.bounded_out_of_orderness(f"{BOUND_MS}ms")
    sides = [
        # One split each: what is late is known from the file.
        flow.source(
            name,
            held(weir.JsonLines(path, schema=SCHEMA, event_time="at", rate=rate), release),
            watermark=watermark,
            parallelism=1,
        ).key_by("key")
        for name, path in (("left", left), ("right", right))
    ]
    for how in ("left", "full"):
        joined = sides[0].join(f"{how}_joined", sides[1], within=WITHIN_MS, how=how, parallelism=2)
        joined.sink(f"{how}_out", weir.JsonLinesSink(f"{output}-{how}"))
    return flow
