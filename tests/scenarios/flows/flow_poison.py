"""Lines -> a step that cannot stand one of them -> JSON lines."""

import functools

import weir


def picky(batch, poison):
    if poison in batch.column("id").to_pylist():
        raise ValueError("too hot")
    return batch


def build(input: str, output: str, rate: float, poison: int) -> weir.Dataflow:
    flow = weir.Dataflow("poison")
    lines = flow.source("lines", weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate))
    lines.map_batches("picky", functools.partial(picky, poison=poison)).sink(
        "out", weir.JsonLinesSink(output)
    )
    return flow
