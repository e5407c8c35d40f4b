"""Windows of three kinds over one keyed stream, each with an output of its own."""

import weir
from experiments.held_source import held

SCHEMA = {"id": int, "server": str}
SIZE_MS, SLIDE_MS, GAP_MS = 200, 50, 20


def build(input: str, rate: float, output: str, release: str) -> weir.Dataflow:
    flow = weir.Dataflow("windows")
    events = flow.source(
        "events", held(weir.JsonLines(input, schema=SCHEMA, event_time="id", rate=rate), release)
    )
    keyed = events.key_by("server")
    windows = {
        "sliding": weir.sliding(SIZE_MS, SLIDE_MS),
        "tumbling": weir.tumbling(SIZE_MS),
        "sessions": weir.session(GAP_MS),
    }
    for name, window in windows.items():
        results = keyed.window(window).aggregate(
            name, n=weir.count(), total=weir.sum("id"), last=weir.max("id")
        )
        results.rebalance().sink(f"out_{name}", weir.JsonLinesSink(f"{output}-{name}"))
    return flow
