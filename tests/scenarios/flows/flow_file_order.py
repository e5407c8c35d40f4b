"""Windows over the files of several servers, which are all over the same hours."""

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}


def build(input: str, rate: float, output: str, release: str, parallelism: int) -> weir.Dataflow:
    flow = weir.Dataflow("file_order")
    logs = flow.source(
        "logs",
        held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release),
        parallelism=parallelism,
        watermark=weir.bounded_out_of_orderness("0s"),
    )
    windows = logs.key_by("server").window(weir.tumbling("1s"))
    windows.aggregate("windows", n=weir.count()).sink("out", weir.JsonLinesSink(output))
    return flow
