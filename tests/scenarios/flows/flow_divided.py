"""Two running counts of the same keys: one stage at parallelism 1, two stages else."""

import weir
from experiments.held_source import held


def build(input: str, output: str, release: str, parallelism: int) -> weir.Dataflow:
    flow = weir.Dataflow("divided")
    source = held(weir.JsonLines(input, schema={"id": int, "server": str}, rate=2_000), release)
    counted = flow.source("events", source).key_by("server").count("counted", "n", parallelism=1)
    again = counted.key_by("server").count("again", "m", parallelism=parallelism)
    again.rebalance().sink("lines", weir.JsonLinesSink(output), parallelism=1)
    return flow
