"""Every row to every subtask of a stage that is rescaled."""

import weir
from experiments.held_source import held


def build(input: str, output: str, rate: float, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("copies")
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate)
    rows = flow.source("rows", held(source, release))
    rows.broadcast().pass_through("copies", parallelism=2).sink("out", weir.JsonLinesSink(output))
    return flow
