"""Rows of a file, in order, to a topic of one partition."""

import weir
from experiments.held_source import held


def build(input: str, rate: float, bootstrap: str, target: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("kafka_late")
    rows = flow.source(
        "rows", held(weir.JsonLines(input, schema={"id": int}, rate=rate), release), parallelism=1
    )
    rows.sink("out", weir.KafkaSink(target, bootstrap=bootstrap), parallelism=1)
    return flow
