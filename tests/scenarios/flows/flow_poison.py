"""Lines -> a step that cannot stand some of them -> JSON lines."""

import functools

import weir
from experiments.held_source import held


def picky(batch, poison, also):
    if not {poison, also}.isdisjoint(batch.column("id").to_pylist()):
        raise ValueError("too hot")
    return batch


def build(
    input: str, output: str, rate: float, poison: int, also: int = -1, release: str = ""
) -> weir.Dataflow:
    flow = weir.Dataflow("poison")
    source = weir.JsonLines(input, schema={"id": int, "server": str}, rate=rate)
    lines = flow.source("lines", held(source, release))
    lines.map_batches("picky", functools.partial(picky, poison=poison, also=also)).sink(
        "out", weir.JsonLinesSink(output)
    )
    return flow
