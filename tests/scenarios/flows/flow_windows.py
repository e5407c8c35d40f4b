"""Windows of several kinds over one keyed stream, each with an output of its own."""

import weir
from experiments.held_source import held
from weir.state.tables.panes import window_table

SCHEMA = {"id": int, "server": str}
SIZE_MS, SLIDE_MS, GAP_MS = 200, 50, 20
#: Of a key in one result.
ROWS = 7
# Panes of sliding windows have some twenty entries in a subtask here, and are to be packed in spite of that.
window_table.PACKED_ENTRIES_MIN = 2


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
    parts = keyed.window(weir.tumbling(SIZE_MS), early=weir.every("50ms"), results="discarding")
    parts.aggregate("parts", n=weir.count(), total=weir.sum("id"), last=weir.max("id")).rebalance().sink(
        "out_parts", weir.JsonLinesSink(f"{output}-parts")
    )
    by_rows = keyed.window(weir.global_window(), early=weir.every(rows=ROWS), results="discarding")
    by_rows.aggregate("by_rows", n=weir.count(), total=weir.sum("id"), last=weir.max("id")).rebalance().sink(
        "out_by_rows", weir.JsonLinesSink(f"{output}-by-rows")
    )
    visits = keyed.window(weir.session(GAP_MS), early=weir.every("50ms"), results="discarding")
    visits.aggregate("visits", n=weir.count(), total=weir.sum("id"), last=weir.max("id")).rebalance().sink(
        "out_visits", weir.JsonLinesSink(f"{output}-visits")
    )
    return flow
